"""GGUF, the files of llama.cpp: a vocabulary as metadata, possibly followed by a model's weights.

Written files:

- ``tokenizer.ggml.pre`` is llama.cpp's own name for a way to cut text. The name also decides
  whether a pre-token that spells a token becomes that token without merging. llama.cpp has no name
  for some patterns.
- If llama.cpp's expression differs slightly from the pattern, a note says which texts get other
  ids.
- Tokens are written in GPT-2's alphabet. Special tokens are written with their own text, as control
  tokens. An id without a token gets a text that no merge produces.
- The package gguf, an extra, writes the files.

Files that are read:

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
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.components import pattern_of_expressions
from llmgpu.bpe.interchange.piece_files import describe_llama, name_pieces
from llmgpu.bpe.interchange.sentencepiece import make_model
from llmgpu.bpe.interchange.tekken import EXPRESSION
from llmgpu.bpe.interchange.token_tables import (
    GPT2,
    MAX_IDS,
    check_distinct,
    check_id,
    find_end_of_text,
    imported_vocabulary,
    name_bytes,
    name_pairs,
    needs_whole_tokens,
    note_unicode,
    number_merges,
    place_tokens,
    refuse_added_flags,
    refuse_missing_bytes,
    require_package,
    to_bytes,
)
from llmgpu.bpe.vocabulary.building import listed_merges
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.pieces import BYTE, CONTROL, NORMAL, SPACE_MARK, UNKNOWN, UNUSED, USER
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import undoing
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.file_kinds import GGUF
from llmgpu.files import OutputFile, output_errors, writes_directly
from llmgpu.input_files import MAX_BYTES, Note, naming, no_notes, quote, read_head
from llmgpu.outputs import Output, check_outputs
from llmgpu.spelling import spelled
from llmgpu.text.chat import plain_template
from llmgpu.text.normalizing import get_normalizer

_TOOL = "llama.cpp"
_DEFAULT_END = 11  # the end-of-text id that llama.cpp assumes if a file names none


_NEW_CHARACTERS = "letters and numbers that are new in Unicode 16, since it uses the classes of 15"
_LONG_S = "the long s (U+017F) after an apostrophe"
# The texts that llama.cpp cuts differently, by pattern; "" if there are none.
_DIFFERENCES = {
    "gpt2": "",
    "llama3": _LONG_S,
    "rustbpe": _LONG_S,
    "cl100k": f"{_LONG_S}, and a text that ends in white space with a line break in it",
    "qwen2": _LONG_S,
    "o200k": "words that mix upper and lower case beyond ASCII, and combining marks",
}
_AS_LLAMA3 = ("rustbpe", "cl100k")  # patterns that llama.cpp cuts by its names for llama3


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
    return require_package("gguf", "'llmgpu[gguf]'")


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
    new_writer = closing(package.GGUFWriter(output.temporary, architecture))
    with undoing(output.discard), output_errors(output.path), new_writer as writer:
        for name, value in described.items():
            getattr(writer, f"add_{name}")(value)
        yield writer
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
    # List the text and the kind of every id. No two texts may be equal, so an id without a token
    # gets [PADn].
    texts, kinds = _describe_tokens(vocabulary)
    numbers = range(max(rows, vocabulary.size))
    texts = {number: texts.get(number, f"[PAD{number}]") for number in numbers}
    kinds = {number: kinds.get(number) or UNUSED for number in numbers}
    if vocabulary.pieces is None:
        model = _describe_merges(vocabulary, texts)
    else:
        model = describe_llama(vocabulary, texts, kinds, note)
    if len({*texts.values()}) < len(texts):
        raise VocabularyError("a token has the text of an id without a token, [PAD...]: rename it")
    # Choose the ids around a text.
    end = find_end_of_text(vocabulary.special_tokens)
    bos_id, eos_id = _ids_around(vocabulary, bos_id, eos_id, note)
    if eos_id is None and end is not None:
        eos_id = vocabulary.special_tokens[end]
    _note_differences(vocabulary, note, eos_id)
    chat = vocabulary.chat
    described = {
        "tokenizer_model": model.pop("tokenizer_model"),
        "tokenizer_pre": model.pop("tokenizer_pre"),
        "token_list": [*texts.values()],
        "token_types": [*kinds.values()],
        **model,  # merges or scores
        "bos_token_id": eos_id if bos_id is None else bos_id,
        "eos_token_id": eos_id,
        "add_bos_token": vocabulary.prefix_ids == (bos_id,),
        "add_eos_token": vocabulary.suffix_ids == (eos_id,),
        "chat_template": chat.source if chat else plain_template(vocabulary.special_tokens),
    }
    return {name: value for name, value in described.items() if value is not None}


def _describe_tokens(vocabulary: Vocabulary) -> tuple[dict[int, str], dict[int, int]]:
    """Return texts and kinds by id."""
    if (rules := vocabulary.pieces) is not None:
        plain = replace(vocabulary, normalized_tokens=()) if rules.ranks else vocabulary
        refuse_added_flags(plain, f"{_TOOL} does not support")
        return name_pieces(vocabulary), dict(enumerate(rules.kinds))
    texts = name_bytes(vocabulary, _TOOL)
    special = {*vocabulary.special_tokens.values()}
    return texts, {number: CONTROL if number in special else NORMAL for number in texts}


def _describe_merges(vocabulary: Vocabulary, texts: Mapping[int, str]) -> dict[str, Any]:
    """Return the metadata of a byte-level vocabulary's pattern and merges."""
    merges = listed_merges(vocabulary)
    return {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": _name_cut(vocabulary, merges),
        "token_merges": [f"{left} {right}" for left, right in name_pairs(texts, merges)],
    }


def _ids_around(
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


def _name_cut(vocabulary: Vocabulary, merges: NDArray[np.uint32]) -> str:
    """Return llama.cpp's name for the pattern.

    The name also tells llama.cpp whether a pre-token that spells a token becomes this token without
    merging (ignore_merges).

    merges: of `listed_merges`, uint32 (M, 3).

    Raises VocabularyError if there is no such name, or llama.cpp would give other ids.
    """
    if vocabulary.pattern not in _DIFFERENCES:
        known = ", ".join(_DIFFERENCES)
        raise VocabularyError(
            f"{_TOOL} can't cut text by the pattern {quote(vocabulary.pattern)}; it can by {known}"
        )
    refuse_added_flags(vocabulary, f"{_TOOL} does not support")
    refuse_missing_bytes(vocabulary.missing_bytes, f"{_TOOL} would skip them")
    if len(merges) == 0:
        raise VocabularyError(f"the vocabulary has no merges, which {_TOOL} needs")
    # names: llama.cpp's names for the pattern, by `_Cut.whole`.
    pattern = "llama3" if vocabulary.pattern in _AS_LLAMA3 else vocabulary.pattern
    names = {cut.whole: known.split()[0] for known, cut in _NAMES.items() if cut.pattern == pattern}
    if not vocabulary.takes_whole_tokens:
        return names[False]
    if True not in names and needs_whole_tokens(vocabulary, merges):
        raise VocabularyError(
            f"with pattern {vocabulary.pattern}, {_TOOL} always applies merges, but this "
            "vocabulary takes a pre-token that is a token as it is (ignore_merges)"
        )
    return names.get(True, names[False])


def _note_differences(vocabulary: Vocabulary, note: Note, eos_id: int | None) -> None:
    if eos_id is None:
        note(
            f"the vocabulary has no end-of-text token, so {_TOOL} stops at id {_DEFAULT_END}: "
            f"train it with {spelled('--special-token')} '<|endoftext|>'"
        )
    if vocabulary.pieces is None:
        differs = [_NEW_CHARACTERS, _DIFFERENCES[vocabulary.pattern]]
        if vocabulary.normalizer is not None:
            name = get_normalizer(vocabulary.normalizer).name
            differs.append(f"text that the normalizer {name} changes, which it does not have")
        for texts in filter(None, differs):
            note(f"{_TOOL} gives different ids for {texts}")
    note_unicode(vocabulary, note)


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


_DIGITS = _Cut(expressions=(_DIGIT, GPT2))
# Ways to cut text, by llama.cpp's names. A key has all names of one way, separated by spaces; files
# are written with the first.
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


def read(path: str | Path, *, note: Note = no_notes) -> Vocabulary:
    """Read the vocabulary of a GGUF file; see `formats.Reader.read`."""
    with naming(path):
        try:
            content = read_metadata(read_head(path, _MOST))
        except InputError as error:
            raise VocabularyError(str(error)) from error
        return _read_content(content, note)


def _read_content(content: Content, note: Note) -> Vocabulary:
    kind = content.get("tokenizer.ggml.model")
    if kind is None:
        raise VocabularyError("the GGUF file has no vocabulary (tokenizer.ggml.model)")
    if kind not in ("gpt2", "llama"):
        raise VocabularyError(
            f"llama.cpp's tokenizer {quote(kind)} is not supported; supported: gpt2, and llama "
            "(SentencePiece BPE). Use the model's tokenizer.json"
        )
    texts, kinds = _tokens(content)
    read_tokens = _read_bytes if kind == "gpt2" else _read_pieces
    return read_tokens(content, texts, kinds, note)


def _read_bytes(content: Content, texts: list[str], kinds: list[int], note: Note) -> Vocabulary:
    name = content.get("tokenizer.ggml.pre", "default")
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise VocabularyError(
            f"llama.cpp's pre-tokenizer {quote(name)} is not supported; supported: "
            f"{', '.join(sorted(CUTS))}. Use the model's tokenizer.json"
        )
    pattern = cut.pattern or pattern_of_expressions(cut.expressions, note)
    # For "tekken", the notes on o200k apply: the expressions differ in numbers and contractions
    # only.
    if differs := _DIFFERENCES.get("o200k" if name == "tekken" else cut.pattern):
        note(f"{_TOOL} gives different ids for {differs}")
    special_kinds = (CONTROL, USER, UNKNOWN)
    special = {text: n for n, text in enumerate(texts) if kinds[n] in special_kinds}
    named = {text: n for n, text in enumerate(texts) if kinds[n] != UNUSED}
    ordinary = {n: to_bytes(text) for text, n in named.items() if text not in special}
    return imported_vocabulary(
        "gguf",
        place_tokens(ordinary, special),
        special,
        number_merges(enumerate(_list(content, "tokenizer.ggml.merges", str), 1), named),
        pattern,
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
    around = _around(content, texts, note, adds_bos=True)
    return make_model("gguf", pieces, has_bytes=BYTE in kinds, prefix=has_prefix, **around)


def _tokens(content: Content) -> tuple[list[str], list[int]]:
    """Return the texts and the types of all ids."""
    texts = _list(content, "tokenizer.ggml.tokens", str)
    if not 0 < len(texts) <= MAX_IDS:
        raise VocabularyError(f"{len(texts)} tokens: use 1 to {MAX_IDS}")
    check_distinct(dict(enumerate(texts)), "ids {} and {} are both {}")
    kinds = [NORMAL] * len(texts)
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
    stream = BytesIO(data)
    _number(stream, "<Q")  # the magic bytes "GGUF" and the version, 4 bytes each
    _number(stream, "<Q")  # the number of tensors
    kept: dict[str, Any] = {}
    for _ in range(_number(stream, "<Q")):
        name = _text(stream)
        value = _value(stream, _number(stream, "<I"))
        if name.startswith(_KEPT):
            kept[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return kept


def _value(stream: BytesIO, kind: int) -> Any:
    """Parse a value: a number, a text, an array of numbers (n,), or a list of texts."""
    if kind == _STRING:
        return _text(stream)
    if kind in _NUMBERS:
        return _number(stream, _NUMBERS[kind])
    if kind != _ARRAY:
        raise VocabularyError(f"the GGUF file has a value of the unknown type {kind}")
    kind, count = _number(stream, "<I"), _number(stream, "<Q")
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        return np.frombuffer(_take(stream, count * struct.calcsize(form)), form)
    if kind != _STRING:
        raise VocabularyError(f"the GGUF file has an array of the unsupported type {kind}")
    # Each text takes at least the 8 bytes of its length, so a count that can't be true fails here.
    at = stream.tell()
    _take(stream, 8 * count)
    stream.seek(at)
    return [_text(stream) for _ in range(count)]


def _number(stream: BytesIO, form: str) -> Any:
    """Parse a number; form: the number's format in `struct`."""
    (value,) = struct.unpack(form, _take(stream, struct.calcsize(form)))
    return value


def _text(stream: BytesIO) -> str:
    data = _take(stream, _number(stream, "<Q"))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise VocabularyError(f"a text that is not UTF-8: {data[:40]!r}") from error


def _take(stream: BytesIO, count: int) -> bytes:
    """Return the next `count` bytes; VocabularyError if there are fewer."""
    at = stream.tell()
    data = stream.read(min(count, _MOST))
    if len(data) < count:
        raise VocabularyError(
            f"the GGUF file is cut short or damaged, or its metadata is longer than {_MOST >> 20} "
            f"MiB: at byte {at}"
        )
    return data
