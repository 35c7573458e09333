"""GPT-2's pair of files: vocab.json, ids by token, and merges.txt, a merge a line.

- Tokens are written in the byte-level alphabet. Neither file says how text is cut: that is pattern
  gpt2, unless the caller knows better.
- Nor do they say which tokens are special. One of several characters that is in no merge never
  comes out of text, so it is: that finds ``<|endoftext|>``. A token of that kind that is not plain
  ASCII could be bytes as well as text, and is taken for bytes.
- vocab.json is written as GPT-2's is, ids ascending, ASCII only, on one line.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgpu.bpe.interchange.byte_level import to_bytes
from llmgpu.bpe.interchange.input_files import (
    check_id,
    decode_text,
    naming,
    parse_json,
    place_tokens,
    quote,
    read_limited,
)
from llmgpu.bpe.interchange.merge_lists import (
    check_vocabulary_map,
    exportable_ids,
    exportable_merges,
    name_pairs,
    note_missing_bytes,
    number_merges,
)
from llmgpu.bpe.interchange.notes import Note, listed, no_notes
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.files import atomic_output, output_errors

VOCAB_NAME = "vocab.json"
MERGES_NAME = "merges.txt"

_HEADER = "#version: 0.2\n"


def read(
    vocab_path: str | Path,
    merges_path: str | Path,
    *,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    note: Note = no_notes,
) -> Vocabulary:
    """Read the two files.

    pattern: a name in PATTERNS; None is gpt2.
    special_tokens: ids by text, besides those that are found.

    Raises VocabularyError for what are no such files, LlmgpuError for an unknown pattern.
    """
    chosen = get_pattern(pattern or "gpt2")
    with naming(vocab_path):
        ids = check_vocabulary_map(parse_json(read_limited(vocab_path)))
    with naming(merges_path):
        merges = number_merges(_parse_merges(decode_text(read_limited(merges_path))), ids)
    with naming(vocab_path):
        if len(merges) == 0 and max(map(len, ids)) > 1:
            raise VocabularyError("its tokens need merges, and there are none")
        special = _find_special(ids, set(merges.reshape(-1).tolist()), special_tokens or {})
        if special:
            note(f"special tokens: {listed(list(special))}")
        taken = set(special.values())
        ordinary = {i: to_bytes(text) for text, i in ids.items() if i not in taken}
        vocabulary = Vocabulary(
            tokens=place_tokens(ordinary, special),
            merges=merges,
            pattern=chosen.name,
            expression=chosen.expression,
            special_tokens=special,
            match="bpe",
            ignore_merges=len(merges) == 0,
            training={"imported_from": "gpt2"},
        )
    note_missing_bytes(vocabulary, note)
    return vocabulary


def write(vocabulary: Vocabulary, path: str | Path, *, note: Note = no_notes) -> None:
    """Write vocab.json and merges.txt into the folder `path`, which is made if there is none.

    Raises VocabularyError where these files can't give the same ids, OutputError when they can't be
    written.
    """
    ids = exportable_ids(vocabulary)
    merges = exportable_merges(vocabulary)
    _check_expressible(vocabulary, len(set(merges[:, 2].tolist())))
    lines = [f"{left} {right}\n" for left, right in name_pairs(vocabulary, merges)]
    folder = Path(path)
    with output_errors(str(path)):
        folder.mkdir(exist_ok=True)
    with (
        atomic_output(folder / VOCAB_NAME) as vocab_stream,
        atomic_output(folder / MERGES_NAME) as merges_stream,
    ):
        vocab_stream.write(json.dumps(ids).encode())
        merges_stream.write((_HEADER + "".join(lines)).encode())
    if vocabulary.pattern != "gpt2":
        note(f"these files do not say that the pattern is {vocabulary.pattern}: others take gpt2")


def _check_expressible(vocabulary: Vocabulary, made: int) -> None:
    if vocabulary.normalizer is not None:
        raise VocabularyError(f"GPT-2's files have no normalizer: {vocabulary.normalizer}")
    if vocabulary.unknown_token is not None and vocabulary.missing_bytes():
        raise VocabularyError("GPT-2's files have no unknown token")
    longer = int((vocabulary.token_lengths[vocabulary.ordinary_ids] > 1).sum())
    if vocabulary.ignore_merges and (len(vocabulary.merges) or made < longer):
        raise VocabularyError(
            "GPT-2's files have no ignore_merges, by which a pre-token that is a token is one"
        )


def _find_special(
    ids: Mapping[str, int], merged: set[int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the special tokens: those given, and those that only special tokens can be."""
    found = {
        text: number
        for text, number in ids.items()
        if number not in merged
        and (not _stands_for_bytes(text) or (len(text) > 1 and text.isascii()))
    }
    for text, number in given.items():
        check_id(f"special token {quote(text)}", number)
        if ids.get(text, number) != number:
            raise VocabularyError(
                f"special token {quote(text)} has the id {ids[text]}, not {number}"
            )
    return found | dict(given)


def _stands_for_bytes(text: str) -> bool:
    try:
        to_bytes(text)
    except VocabularyError:
        return False
    return True


def _parse_merges(text: str) -> Iterator[tuple[str, str]]:
    for number, ended in enumerate(io.StringIO(text, newline="\n"), 1):
        line = ended.rstrip("\r\n")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not (left and right and space) or " " in right:
            raise VocabularyError(f"line {number}: a merge is two tokens with a space between them")
        yield left, right
