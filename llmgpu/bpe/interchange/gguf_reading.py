"""Vocabularies in GGUF files of llama.cpp, with or without a model's weights.

- Only the metadata at the beginning of the file is read. Every length in it is compared with the
  number of bytes left before memory is allocated.
- The tokenizer ``gpt2`` is byte-level BPE. ``tokenizer.ggml.pre`` names the pattern, and decides
  whether a pre-token that spells a token becomes that token without merging. If llama.cpp's
  expression differs from the pattern of the model, llmgpu uses the pattern of the model, and a note
  says which texts get other ids in llama.cpp.
- The tokenizer ``llama`` is SentencePiece BPE: pieces with scores, whose types have SentencePiece's
  numbers. User-defined tokens have spaces in the file, and a model's pieces have U+2581.
- llama.cpp does not normalize text, so a vocabulary from a GGUF file lacks the model's normalizer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.bpe.interchange import splits
from llmgpu.bpe.interchange.gguf import DIFFERENCES
from llmgpu.bpe.interchange.sentencepiece import make_model
from llmgpu.bpe.interchange.tekken import EXPRESSION
from llmgpu.bpe.interchange.token_tables import (
    MAX_IDS,
    check_id,
    complete,
    imported_vocabulary,
    number_merges,
    to_bytes,
)
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.vocabulary.chat import ChatTemplate
from llmgpu.bpe.vocabulary.pieces import BYTE, CONTROL, SPACE_MARK, UNKNOWN, UNUSED, USER
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import MAX_BYTES, Note, quote, read_head
from llmgpu.outputs import GGUF, binary_kind

_MOST = MAX_BYTES["vocabulary of another tool"]
_VERSIONS = (2, 3)
# The `struct` format of each type of number, by the number of the type in the file. Below are the
# numbers of the types string and array.
_NUMBERS = dict(enumerate(["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"])) | {
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_KEPT = "tokenizer."
_DIGIT = r"\p{N}"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Content = Mapping[str, Any]


@dataclass(frozen=True)
class _Cut:
    """A way to cut text: by a pattern of llmgpu, or by expressions one after the other.

    whole: whether a pre-token that spells a token becomes this token without merging.
    """

    pattern: str = ""
    expressions: tuple[str, ...] = ()
    whole: bool = False


_DIGITS = _Cut(expressions=(_DIGIT, splits.GPT2))
# Ways to cut text, by llama.cpp's names. A key has all names of one way, separated by spaces.
_NAMES = {
    "gpt-2 phi-2 mpt olmo jina-es jina-de jina-v2-es jina-v2-de": _Cut("gpt2"),
    "llama-bpe llama3 llama-v3 falcon3 pixtral": _Cut("llama3", whole=True),
    "dbrx smaug-bpe": _Cut("llama3"),
    "qwen2 stablelm2 deepseek-r1-qwen megrez": _Cut("qwen2"),
    "gpt-4o llama4": _Cut("o200k"),
    "tekken": _Cut(expressions=(EXPRESSION,), whole=True),
    "starcoder refact command-r smollm codeshell": _DIGITS,
    "deepseek-v3": _Cut(expressions=(rf"{_DIGIT}{{1,3}}", _CJK, _DEEPSEEK)),
}
CUTS = {name: cut for names, cut in _NAMES.items() for name in names.split()}


def recognizes(data: bytes) -> bool:
    """Whether a file that begins with `data` is a GGUF file."""
    return binary_kind(data[:64]) == GGUF


@complete("a GGUF file")
def read(path: str | Path, note: Note) -> Vocabulary:
    """Read the vocabulary of a GGUF file; see `formats.Reader.read`."""
    try:
        content = read_metadata(read_head(path, _MOST))
    except InputError as error:
        raise VocabularyError(str(error)) from error
    kind = content.get("tokenizer.ggml.model")
    if kind is None:
        raise VocabularyError("the GGUF file has no vocabulary (tokenizer.ggml.model)")
    if kind not in ("gpt2", "llama"):
        raise VocabularyError(
            f"llama.cpp's tokenizer {quote(kind)} is not supported; supported: gpt2, and llama "
            "(SentencePiece BPE). Use the model's tokenizer.json"
        )
    texts, kinds = _tokens(content)
    if kind == "gpt2":
        vocabulary = _read_bytes(content, texts, kinds, note)
    else:
        vocabulary = _read_pieces(content, texts, kinds, note)
    return replace(vocabulary, training={"imported_from": "gguf"})


def _read_bytes(content: Content, texts: list[str], kinds: list[int], note: Note) -> Vocabulary:
    name = content.get("tokenizer.ggml.pre", "default")
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise VocabularyError(
            f"llama.cpp's pre-tokenizer {quote(name)} is not supported; supported: "
            f"{', '.join(sorted(CUTS))}. Use the model's tokenizer.json"
        )
    chosen = get_pattern(cut.pattern or splits.pattern_of_expressions(cut.expressions, note))
    # For "tekken", the notes on o200k apply: the expressions differ in numbers and contractions
    # only.
    if differs := DIFFERENCES.get("o200k" if name == "tekken" else cut.pattern):
        note(f"llama.cpp gives different ids for {differs}")
    merges = _list(content, "tokenizer.ggml.merges", str)
    pairs = []
    for number, merge in enumerate(merges, 1):
        place = merge.find(" ", 1)
        if not 0 < place < len(merge) - 1:
            raise VocabularyError(f"merge {number} of the list is not two tokens: {quote(merge)}")
        pairs.append((merge[:place], merge[place + 1 :]))
    special_kinds = (CONTROL, USER, UNKNOWN)
    special = {text: n for n, text in enumerate(texts) if kinds[n] in special_kinds}
    named = {text: n for n, text in enumerate(texts) if kinds[n] != UNUSED}
    ordinary = {n: to_bytes(text) for text, n in named.items() if text not in special}
    return imported_vocabulary(
        "gguf",
        ordinary,
        special,
        number_merges(pairs, named),
        chosen,
        ignore_merges=cut.whole,
        **_around(content, texts, note, adds_bos=cut.whole),
    )


def _read_pieces(content: Content, texts: list[str], kinds: list[int], note: Note) -> Vocabulary:
    scores = _list(content, "tokenizer.ggml.scores", float)
    if len(scores) != len(texts):
        raise VocabularyError(f"{len(scores)} scores for {len(texts)} tokens")
    has_prefix = content.get("tokenizer.ggml.add_space_prefix", True) is not False
    if has_prefix and USER in kinds:
        note("llama.cpp puts a space after each user-defined token, too; here it does not")
    pieces = [
        (text.replace(" ", SPACE_MARK) if kind == USER else text, score, kind)
        for text, score, kind in zip(texts, scores, kinds, strict=True)
    ]
    vocabulary = make_model(
        pieces, {3: 2, 35: int(BYTE in kinds)}, {3: int(has_prefix), 4: 0, 5: 1}
    )
    return replace(vocabulary, **_around(content, texts, note, adds_bos=True))


def _tokens(content: Content) -> tuple[list[str], list[int]]:
    """Return the texts and the types of all ids."""
    texts = _list(content, "tokenizer.ggml.tokens", str)
    if not 0 < len(texts) <= MAX_IDS:
        raise VocabularyError(f"{len(texts)} tokens: use 1 to {MAX_IDS}")
    first: dict[str, int] = {}
    for number, text in enumerate(texts):
        if first.setdefault(text, number) != number:
            raise VocabularyError(f"ids {first[text]} and {number} are both {quote(text)}")
    kinds = [1] * len(texts)
    if "tokenizer.ggml.token_type" in content:
        kinds = _list(content, "tokenizer.ggml.token_type", int)
    if len(kinds) != len(texts) or not all(1 <= kind <= BYTE for kind in kinds):
        raise VocabularyError(f"the types of tokens are not {len(texts)} numbers from 1 to {BYTE}")
    return texts, kinds


def _around(content: Content, texts: list[str], note: Note, *, adds_bos: bool) -> dict[str, Any]:
    """Return the ids around a text and the chat template, as fields of a vocabulary.

    adds_bos: whether llama.cpp adds the first id to a text if the file has no entry about this.
    """
    found: dict[str, Any] = {}
    tokens: dict[str, str] = {}
    for end, field, default in (("bos", "prefix_ids", adds_bos), ("eos", "suffix_ids", False)):
        number = content.get(f"tokenizer.ggml.{end}_token_id")
        if number is None:
            continue
        if check_id(f"the {end} token", number) >= len(texts):
            raise VocabularyError(f"the {end} token has id {number}, which is no token")
        tokens[f"{end}_token"] = texts[number]
        if content.get(f"tokenizer.ggml.add_{end}_token", default) is True:
            found[field] = (number,)
    if found:
        note("llama.cpp puts ids around a text; use --add-special-tokens for that")
    source = content.get("tokenizer.chat_template")
    try:
        found["chat"] = ChatTemplate(source if isinstance(source, str) else "", tokens)
    except VocabularyError as error:
        note(f"the chat template is skipped: {error}")
    return found


def _list(content: Content, name: str, kind: type) -> list[Any]:
    found = content.get(name)
    if not isinstance(found, list) or not all(type(value) is kind for value in found):
        raise VocabularyError(f"the GGUF file has no list {name} of type {kind.__name__}")
    return found


def read_metadata(data: bytes) -> dict[str, Any]:
    """Return the values of a GGUF file whose names begin with "tokenizer.".

    data: the beginning of the file. Raises VocabularyError for a damaged file.
    """
    if data[:4] != b"GGUF" or int.from_bytes(data[4:8], "little") not in _VERSIONS:
        raise VocabularyError(f"not a GGUF file of version {' or '.join(map(str, _VERSIONS))}")
    parts = _Parts(data)
    parts.take("<Q")  # the kind and the version
    parts.take("<Q")  # the number of tensors
    kept: dict[str, Any] = {}
    for _ in range(parts.take("<Q")):
        name = parts.string()
        value = parts.value(parts.take("<I"))
        if name.startswith(_KEPT):
            kept[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return kept


class _Parts:
    """Parses a file from its beginning; VocabularyError if the file ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, form: str) -> Any:
        """Parse a number; form: the number's format in `struct`."""
        (value,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return value

    def string(self) -> str:
        data = self._bytes(self.take("<Q"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise VocabularyError(f"a text that is not UTF-8: {data[:40]!r}") from error

    def value(self, kind: int) -> Any:
        """Parse a value: a number, a text, an array of numbers (n,), or a list of texts."""
        if kind == _STRING:
            return self.string()
        if kind in _NUMBERS:
            return self.take(_NUMBERS[kind])
        if kind != _ARRAY:
            raise VocabularyError(f"the GGUF file has a value of the unknown type {kind}")
        kind, count = self.take("<I"), self.take("<Q")
        if kind in _NUMBERS:
            data = self._bytes(count * struct.calcsize(_NUMBERS[kind]))
            return np.frombuffer(data, _NUMBERS[kind])
        if kind != _STRING:
            raise VocabularyError(f"the GGUF file has an array of the unsupported type {kind}")
        # Each string takes at least the 8 bytes of its length, which limits the count.
        if count > (len(self._data) - self._at) // 8:
            raise self._cut()
        return [self.string() for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise self._cut()
        self._at += count
        return self._data[self._at - count : self._at]

    def _cut(self) -> VocabularyError:
        return VocabularyError(
            f"the GGUF file is cut short or damaged, or its metadata is longer than {_MOST >> 20} "
            f"MiB: at byte {self._at}"
        )
