"""GGUF, the files of llama.cpp: a vocabulary as metadata, possibly followed by a model's weights.

- ``tokenizer.ggml.pre`` is llama.cpp's own name for a way to cut text. The name also decides
  whether a pre-token that spells a token becomes that token without merging. llama.cpp has no name
  for some patterns.
- If llama.cpp's expression differs slightly from the pattern, a note says which texts get other
  ids.
- Tokens are written in GPT-2's alphabet. Special tokens are written with their own text, as control
  tokens. An id without a token gets a text that no merge produces.
- The package gguf, an extra, writes the files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmgpu.bpe.interchange.piece_files import describe_llama, name_pieces
from llmgpu.bpe.interchange.token_tables import (
    exportable_ids,
    find_end_of_text,
    name_pairs,
    note_unicode,
    refuse_added_flags,
)
from llmgpu.bpe.vocabulary.recovery import listed_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import OutputError, VocabularyError
from llmgpu.files import OutputFile, output_errors, writes_directly
from llmgpu.input_files import Note, no_notes, quote
from llmgpu.outputs import GGUF, Output, check_outputs
from llmgpu.spelling import spelled
from llmgpu.text.chat import plain_template
from llmgpu.text.normalizing import get_normalizer

_TOOL = "llama.cpp"
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # llama.cpp's numbers for kinds of tokens
_DEFAULT_END = 11  # the end-of-text id that llama.cpp assumes if a file names none


@dataclass(frozen=True)
class _Split:
    """llama.cpp's name for a pattern, and the texts that llama.cpp cuts differently.

    merging: the name for vocabularies that always merge. whole: the name for vocabularies in which
    a pre-token that spells a token becomes this token; None if llama.cpp has no such name. differs:
    describes the texts that get other ids, for a note; None if all texts get the same ids.
    """

    merging: str
    whole: str | None = None
    differs: str | None = None


_LLAMA3 = ("dbrx", "llama-bpe")
_NEW_CHARACTERS = "letters and numbers that are new in Unicode 16, since it uses the classes of 15"
_LONG_S = "the long s (U+017F) after an apostrophe"
_SPLITS = {
    "gpt2": _Split("gpt-2"),
    "llama3": _Split(*_LLAMA3, _LONG_S),
    "rustbpe": _Split(*_LLAMA3, _LONG_S),
    "cl100k": _Split(
        *_LLAMA3, f"{_LONG_S}, and a text that ends in white space with a line break in it"
    ),
    "qwen2": _Split("qwen2", None, _LONG_S),
    "o200k": _Split(
        "gpt-4o", None, "words that mix upper and lower case beyond ASCII, and combining marks"
    ),
}


DIFFERENCES = {name: split.differs for name, split in _SPLITS.items()}


def outputs(path: str | Path) -> list[Output]:
    """Return the file that `write` writes."""
    return [Output(str(path), GGUF)]


def write(
    vocabulary: Vocabulary,
    path: str | Path,
    *,
    note: Note = no_notes,
    force: bool = False,
) -> None:
    """Write a file without weights; see `llmgpu.bpe.interchange.formats.Writer.write`."""
    described = describe(vocabulary, note)
    with new_file(path, described, force=force) as writer:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()


def load_package() -> Any:
    """Return the package gguf; VocabularyError with the remedy if the package is missing."""
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise VocabularyError(
            "GGUF files need the package gguf: pip install 'llmgpu[gguf]'"
        ) from error


@contextmanager
def new_file(
    path: str | Path, described: dict[str, Any], *, force: bool, architecture: str = "llama"
) -> Iterator[Any]:
    """Yield a `gguf.GGUFWriter`; the file appears at `path` when the block ends.

    described: the vocabulary, see `describe`. architecture: llama.cpp's name of the model.
    """
    package = load_package()
    check_outputs(outputs(path), force=force)
    if writes_directly(str(path)):
        raise OutputError(f"can't write {path}: a GGUF file has to be a file, not a pipe or device")
    output = OutputFile(path)
    writer = package.GGUFWriter(output.temporary, architecture)
    try:
        with output_errors(output.path):
            for name, value in described.items():
                getattr(writer, f"add_{name}")(value)
            yield writer
            writer.close()
    except BaseException:
        writer.close()
        output.discard()
        raise
    output.commit()


def describe(
    vocabulary: Vocabulary,
    note: Note = no_notes,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
    rows: int = 0,
) -> dict[str, Any]:
    """Return the metadata of a vocabulary: entry X is the argument of `GGUFWriter.add_X`.

    rows: number of rows of the model's tables, if there are more rows than ids in the vocabulary.
    bos_id, eos_id: the first and the last id of a text. By default, the ids that the vocabulary
        adds around a text. If the vocabulary adds no last id, the default of `eos_id` is the
        end-of-text token; if it adds no first id, the default of `bos_id` is the last id. The
        file tells llama.cpp to add the ids only if the vocabulary adds them.
    note: called with a note on texts that get other ids in llama.cpp.

    Raises VocabularyError if llama.cpp can't give the same ids.
    """
    # Choose llama.cpp's names for tokens and pattern, and the ids around a text.
    if vocabulary.pieces is None:
        texts, kinds, model = _describe_bytes(vocabulary)
    else:
        texts, kinds, model = _describe_pieces(vocabulary, rows, note)
    end = find_end_of_text(vocabulary.special_tokens)
    bos_id, eos_id = _around(vocabulary, bos_id, eos_id, note)
    if eos_id is None and end is not None:
        eos_id = vocabulary.special_tokens[end]
    # List the text of every id. No two texts may be equal, so an id without a token gets [PADn].
    numbers = range(max(rows, vocabulary.size))
    names = [texts.get(number, f"[PAD{number}]") for number in numbers]
    if len(set(names)) < len(names):
        raise VocabularyError("a token has the text of an id without a token, [PAD...]: rename it")
    _note_differences(vocabulary, note, eos_id)
    chat = vocabulary.chat
    described = {
        "tokenizer_model": model.pop("tokenizer_model"),
        "tokenizer_pre": model.pop("tokenizer_pre"),
        "token_list": names,
        "token_types": [kinds.get(number, _UNUSED) for number in numbers],
        **model,  # merges or scores
        "bos_token_id": eos_id if bos_id is None else bos_id,
        "eos_token_id": eos_id,
        "add_bos_token": vocabulary.prefix_ids == (bos_id,),
        "add_eos_token": vocabulary.suffix_ids == (eos_id,),
        "chat_template": chat.source if chat else plain_template(vocabulary.special_tokens),
    }
    return {name: value for name, value in described.items() if value is not None}


def _describe_bytes(
    vocabulary: Vocabulary,
) -> tuple[dict[int, str], dict[int, int], dict[str, Any]]:
    """Return texts and kinds by id, and further metadata, of a byte-level vocabulary."""
    ids = exportable_ids(vocabulary, _TOOL)
    merges = listed_merges(vocabulary)
    special = set(vocabulary.special_tokens.values())
    kinds = {number: _CONTROL if number in special else _NORMAL for number in ids.values()}
    model = {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": _name_split(vocabulary, len(set(merges[:, 2].tolist()))),
        "token_merges": [f"{left} {right}" for left, right in name_pairs(vocabulary, merges)],
    }
    return {number: text for text, number in ids.items()}, kinds, model


def _describe_pieces(
    vocabulary: Vocabulary, rows: int, note: Note
) -> tuple[dict[int, str], dict[int, int], dict[str, Any]]:
    """Return texts and kinds by id, and further metadata, of a vocabulary of SentencePiece's kind.

    The further metadata has scores in place of merges.
    """
    assert vocabulary.pieces is not None
    plain = replace(vocabulary, normalized_tokens=()) if vocabulary.pieces.ranks else vocabulary
    refuse_added_flags(plain, f"{_TOOL} does not support")
    named = name_pieces(vocabulary)
    numbers = range(max(rows, vocabulary.size))
    names = {number: named.get(number, f"[PAD{number}]") for number in numbers}
    texts, kinds, model = describe_llama(vocabulary, names, note)
    return texts, kinds, {"tokenizer_model": "llama", "tokenizer_pre": "default"} | model


def _around(
    vocabulary: Vocabulary, bos_id: int | None, eos_id: int | None, note: Note
) -> tuple[int | None, int | None]:
    """Return the first and the last id of a text, each None if there is no such id.

    llama.cpp adds at most one id on either side. `note` reports ids of the vocabulary that
    llama.cpp does not add.
    """
    found = []
    for ids, given in ((vocabulary.prefix_ids, bos_id), (vocabulary.suffix_ids, eos_id)):
        found.append(ids[0] if given is None and len(ids) == 1 else given)
        if ids not in ((), (found[-1],)):
            note(f"{_TOOL} does not add the ids {', '.join(map(str, ids))} around a text")
    return found[0], found[1]


def _name_split(vocabulary: Vocabulary, made: int) -> str:
    """Return llama.cpp's name for the pattern.

    The name also tells llama.cpp whether a pre-token that spells a token becomes this token without
    merging (ignore_merges).

    made: the number of tokens that merges produce.

    Raises VocabularyError if there is no such name, or llama.cpp would give other ids.
    """
    split = _SPLITS.get(vocabulary.pattern)
    if split is None:
        known = ", ".join(_SPLITS)
        raise VocabularyError(
            f"{_TOOL} can't cut text by the pattern {quote(vocabulary.pattern)}; it can by {known}"
        )
    refuse_added_flags(vocabulary, f"{_TOOL} does not support")
    if missing := vocabulary.missing_bytes:
        raise VocabularyError(
            f"{len(missing)} bytes have no token, the first is 0x{missing[0]:02x}: {_TOOL} would "
            "skip them"
        )
    if made == 0:
        raise VocabularyError(f"the vocabulary has no merges, which {_TOOL} needs")
    longer = int((vocabulary.token_lengths[vocabulary.ordinary_ids] > 1).sum())
    if not vocabulary.takes_whole_tokens:
        return split.merging
    if split.whole is None and (len(vocabulary.merges) or made < longer):
        raise VocabularyError(
            f"with pattern {vocabulary.pattern}, {_TOOL} always applies merges, but this "
            "vocabulary takes a pre-token that is a token as it is (ignore_merges)"
        )
    return split.whole or split.merging


def _note_differences(vocabulary: Vocabulary, note: Note, eos_id: int | None) -> None:
    differs: list[str | None] = []
    if vocabulary.pieces is None:
        differs += [_NEW_CHARACTERS, _SPLITS[vocabulary.pattern].differs]
    if vocabulary.normalizer is not None and vocabulary.pieces is None:
        name = get_normalizer(vocabulary.normalizer).name
        differs.append(f"text that the normalizer {name} changes, which it does not have")
    if eos_id is None:
        note(
            f"the vocabulary has no end-of-text token, so {_TOOL} stops at id {_DEFAULT_END}: "
            f"train it with {spelled('--special-token')} '<|endoftext|>'"
        )
    for texts in filter(None, differs):
        note(f"{_TOOL} gives different ids for {texts}")
    note_unicode(vocabulary, note)
