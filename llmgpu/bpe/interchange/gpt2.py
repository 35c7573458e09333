"""GPT-2's pair of files: vocab.json with ids by token, and merges.txt with one merge per line.

- Tokens are written in the byte-level alphabet. Neither file names a pattern: `read` assumes gpt2
  unless its caller names another pattern. GPT-2's tokenizers have no other pattern, so `write`
  refuses vocabularies with other patterns.
- Neither file marks special tokens. A token of several characters that is in no merge, for example
  ``<|endoftext|>``, is never the result of text. `read` makes such a token a special token if its
  characters are ASCII, or not all in the byte-level alphabet. Every other token represents bytes.
- vocab.json is written like GPT-2's: ids ascending, ASCII only, on one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from llmgpu.bpe.interchange.token_tables import (
    check_id,
    check_vocabulary_map,
    imported_vocabulary,
    name_bytes,
    name_pairs,
    needs_whole_tokens,
    note_around,
    note_missing_bytes,
    note_unicode,
    number_merges,
    place_tokens,
    refuse_normalizing,
    stands_for_bytes,
    to_bytes,
    write_files,
)
from llmgpu.bpe.vocabulary.building import listed_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.file_kinds import MERGES_TXT, VOCAB_JSON
from llmgpu.files import require_name
from llmgpu.input_files import (
    Note,
    decode_text,
    listed,
    naming,
    no_notes,
    parse_json,
    quote,
    read_limited,
)
from llmgpu.outputs import Output

_FILES = {"vocab.json": VOCAB_JSON, "merges.txt": MERGES_TXT}
_HEADER = "#version: 0.2\n"


def read(
    path: str | Path,
    merges_path: str | Path | None = None,
    *,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
    note: Note = no_notes,
) -> Vocabulary:
    """Read the two files; see `llmgpu.bpe.interchange.formats.Reader.read`.

    pattern: None means gpt2. special_tokens: added to the special tokens found in the files.
    """
    if merges_path is None:
        raise VocabularyError("gpt2 is two files, vocab.json and merges.txt: name both")
    with naming(path):
        ids = check_vocabulary_map(parse_json(read_limited(path)))
    with naming(merges_path):
        merges = number_merges(_merges(decode_text(read_limited(merges_path))), ids, "line {}")
    with naming(path):
        if len(merges) == 0 and max(map(len, ids)) > 1:
            raise VocabularyError("its tokens need merges, and there are none")
        special = _find_special(ids, set(merges.reshape(-1).tolist()), special_tokens or {})
        if special:
            note(f"special tokens: {listed(list(special))}")
        taken = set(special.values())
        ordinary = {i: to_bytes(text) for text, i in ids.items() if i not in taken}
        vocabulary = imported_vocabulary(
            "gpt2",
            place_tokens(ordinary, special),
            special,
            merges,
            pattern or "gpt2",
            ignore_merges=len(merges) == 0,
        )
    note_missing_bytes(vocabulary, note)
    return vocabulary


def outputs(path: str | Path) -> list[Output]:
    """Return the files that `write` would write."""
    return [Output(str(Path(path, name)), kind) for name, kind in _FILES.items()]


def write(
    vocabulary: Vocabulary, path: str | Path, *, note: Note = no_notes, force: bool = False
) -> None:
    """Write the two files into the folder `path`, creating the folder if it is missing.

    Raises the errors of `llmgpu.bpe.interchange.formats.Writer.write`.
    """
    require_name(path)
    texts = name_bytes(vocabulary, "GPT-2's tokenizer")
    merges = listed_merges(vocabulary)
    _check_expressible(vocabulary)
    if needs_whole_tokens(vocabulary, merges):
        raise VocabularyError("GPT-2's files can't hold ignore_merges")
    lines = [f"{left} {right}\n" for left, right in name_pairs(texts, merges)]
    ids = {text: number for number, text in texts.items()}
    contents = [json.dumps(ids).encode(), (_HEADER + "".join(lines)).encode()]
    write_files(outputs(path), contents, force=force, folder=path)
    note_unicode(vocabulary, note)
    note_around(vocabulary, note)


def _check_expressible(vocabulary: Vocabulary) -> None:
    if vocabulary.pattern != "gpt2":
        raise VocabularyError(
            "GPT-2's files are for pattern gpt2, but this vocabulary has "
            f"{quote(vocabulary.pattern)}, so ids would differ: export it to huggingface"
        )
    refuse_normalizing(vocabulary, "GPT-2's files")
    if vocabulary.unknown_token is not None and vocabulary.missing_bytes:
        raise VocabularyError("GPT-2's files can't hold an unknown token")


def _find_special(
    ids: Mapping[str, int], merged: set[int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the special tokens, ids by text: the given tokens, and tokens that no text produces.

    ids: all ids by text. merged: ids that are in merges.

    Raises VocabularyError if a given token is in `ids` with another id.
    """
    found = {
        text: number
        for text, number in ids.items()
        if number not in merged
        and (not stands_for_bytes(text) or (len(text) > 1 and text.isascii()))
    }
    for text, number in given.items():
        check_id(f"special token {quote(text)}", number)
        if ids.get(text, number) != number:
            raise VocabularyError(
                f"special token {quote(text)} has the id {ids[text]}, not {number}"
            )
    return found | dict(given)


def _merges(text: str) -> list[tuple[int, str]]:
    """Return the lines of a merges.txt that are merges, with their numbers."""
    lines = enumerate((line.rstrip("\r") for line in text.split("\n")), 1)
    return [(n, line) for n, line in lines if line and (n > 1 or not line.startswith("#version"))]
