"""The kinds of files, and the formats of other tools' vocabularies.

The first bytes of a file show its kind. Ids without a header are recognized by their side file.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

VOCABULARY = "a vocabulary"
COUNTS = "a file of word counts"
DECIMAL_IDS = "decimal ids"
JSONL_IDS = "ids as JSON lines"
NPY = "a NumPy array"
TOKEN_FILE = "a token file"
TOKEN_INDEX = "an index of Megatron"
SIDE_FILE = "the side file of a token file"
MANIFEST = "a manifest of token shards"
PROGRESS = "the progress of token shards"
PART_RECORD = "the record of a finished part"
TOKENIZER_JSON = "a tokenizer.json"
TEKKEN = "a tekken.json"
SENTENCEPIECE = "a SentencePiece model"
TOKENIZER_CONFIG = "a tokenizer_config.json"
SPECIAL_TOKENS_MAP = "a special_tokens_map.json"
GGUF = "a GGUF file"
RANKS = "a rank file"
RANKS_SIDE_FILE = "the side file of a rank file"
VOCAB_JSON = "a vocab.json"
MERGES_TXT = "a merges.txt"
RECORD = "benchmark results"
PAGE = "an HTML page"
TEXT = "text"


class VocabularyFormat(NamedTuple):
    """A format of another tool's vocabularies, which a module of `llmgpu.bpe.interchange` reads.

    summary: the files of the format, for --help. kind: the kind of its file; "" if the first bytes
    do not show the format. ending: the end of file names. name: name of the file in a folder.
    is_written: whether the module also writes. is_incomplete: whether files may lack the pattern
    and special tokens.
    """

    summary: str
    kind: str = ""
    ending: str = ""
    name: str = ""
    is_written: bool = True
    is_incomplete: bool = False


# By the name of the module. The names in a folder are tried in this order.
VOCABULARY_FORMATS = {
    "huggingface": VocabularyFormat(
        "a tokenizer.json or a folder", TOKENIZER_JSON, ".json", "tokenizer.json"
    ),
    "tiktoken": VocabularyFormat(
        "a .tiktoken file with its side file .json", RANKS, ".tiktoken", is_incomplete=True
    ),
    "gguf": VocabularyFormat("a .gguf file of llama.cpp", GGUF, ".gguf"),
    "gpt2": VocabularyFormat("vocab.json and merges.txt", is_incomplete=True),
    "tekken": VocabularyFormat(
        "Mistral's tekken.json", TEKKEN, "tekken.json", "tekken.json", is_written=False
    ),
    "sentencepiece": VocabularyFormat(
        "a tokenizer.model of type BPE",
        SENTENCEPIECE,
        ".model",
        "tokenizer.model",
        is_written=False,
    ),
}
# Formats that `export` chooses by the ending of a file.
ENDINGS = {
    one.ending: name for name, one in VOCABULARY_FORMATS.items() if one.ending and one.is_written
}
_HEAD_BYTES = 4096
_FORMAT = re.compile(rb'\s*\{\s*"format":\s*"([^"]*)"')
_BY_FORMAT = {  # kinds by the field "format" of a JSON file
    b"llmgpu-tokens": SIDE_FILE,
    b"llmgpu-token-shards": MANIFEST,
    b"llmgpu-token-shards-in-progress": PROGRESS,
    b"llmgpu-part": PART_RECORD,
    b"llmgpu-tiktoken": RANKS_SIDE_FILE,
    b"llmgpu-bench": RECORD,
}
_MARKED = {  # kinds by their first bytes
    VOCABULARY: rb".{1,5}format.llmgpu vocabulary",
    COUNTS: rb".{1,5}format.llmgpu word counts",
    NPY: rb"\x93NUMPY",
    TOKEN_INDEX: rb"MMIDIDX\0\0",
    "a compressed file": rb"\x1f\x8b|BZh|\xfd7zXZ\0|\x28\xb5\x2f\xfd|PK\x03\x04",
    "a Parquet file": rb"PAR1",
    # The second form is a stream, which `datasets` writes.
    "an Arrow file": rb"ARROW1\0\0|\xff{4}.{3}\0.\0{3}",
    GGUF: rb"GGUF[\1-\x0f]\0\0\0",
    SENTENCEPIECE: rb"\n[\3-\x7f]\n[\1-\x7f][^\x15\x18]+(?:\x15.{4}|\x18[\1-\6])",
    "a file of weights": rb".{4}\0{4}\{\s*\"",
    "a database": rb"SQLite format 3\0",
    "a picture": rb"\x89PNG\r\n|GIF8[79]a|\xff\xd8\xff[\xe0-\xef]",
    "a PDF": rb"%PDF-",
    "a program": rb"\x7fELF|\xcf\xfa\xed\xfe",
}
_WRITTEN = {  # kinds of files that contain plain text
    DECIMAL_IDS: rb"(?=\s*\d)[\d\s]*\Z",
    JSONL_IDS: rb'\s*\{"ids": ?\[',
    # The first line that is not blank. "=" is the empty token.
    RANKS: rb"\s*(?=\S)(?:(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]=)?|=)"
    rb"[^\S\n]+\d+[^\S\n]*\n",
    MERGES_TXT: rb"#version",
    # At least one pair, then only pairs up to the end of the head, which may cut the last pair.
    VOCAB_JSON: rb'\s*\{(?:\s*"(?:\\.|[^"\\])*+"\s*:\s*\d+\s*(?:,|(?=\})))++'
    rb'\s*(?:\}|"(?:\\.|[^"\\])*+(?:\\?|"\s*(?::\s*\d*)?)\Z|\Z)',
    TOKENIZER_JSON: rb'\s*\{.*"(?:truncation"|added_tokens"|pre_tokenizer"|type":\s*"BPE")',
    TEKKEN: rb'\s*\{(?:\s*"config":\s*\{|.*"(?:token_bytes|is_control)")',
    TOKENIZER_CONFIG: rb'\s*\{.*"tokenizer_class"',
    SPECIAL_TOKENS_MAP: rb'\s*\{\s*(?:\}|"[a-z]+_token")',
    PAGE: rb"\s*(?i:<!doctype html|<html)",
}
_LLMC_MAGICS = {(20240520).to_bytes(4, "little"), (20240801).to_bytes(4, "little")}
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # JSON may contain \x7f
_WIDE_TEXT = (b"\xff\xfe", b"\xfe\xff")  # byte-order marks of UTF-16


def kind_of(path: str) -> str | None:
    """Return the kind of a file: one of the kinds of this module, or words such as "a PDF".

    Returns None for an unknown kind, and for a missing, special, empty or unreadable file.
    """
    head = file_head(path)
    if (kind := binary_kind(head)) is not None:
        return kind
    if head[:4] in _LLMC_MAGICS or _kind_by_format(file_head(f"{path}.json")) == SIDE_FILE:
        return TOKEN_FILE
    if not head.strip() or (_CONTROL.search(head) and not head.startswith(_WIDE_TEXT)):
        return None
    written = (kind for kind, mark in _WRITTEN.items() if re.match(mark, head, re.DOTALL))
    return _kind_by_format(head) or next(written, TEXT)


def binary_kind(head: bytes) -> str | None:
    """Return the kind of a binary file from its first bytes; None if they are of no known kind."""
    marked = _MARKED.items() if head else ()  # compiling the expressions takes 3 ms
    return next((kind for kind, mark in marked if re.match(mark, head, re.DOTALL)), None)


def file_head(path: str) -> bytes:
    """Return the first bytes of a regular file; b"" for a missing or unreadable file."""
    with suppress(OSError, ValueError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(_HEAD_BYTES)
    return b""


def _kind_by_format(head: bytes) -> str | None:
    found = _FORMAT.match(head)
    return _BY_FORMAT.get(found[1]) if found else None
