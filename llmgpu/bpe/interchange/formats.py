"""The formats of other tools' vocabularies; the tables list a module for each format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmgpu.input_files import Note, naming, no_notes, read_limited
from llmgpu.outputs import GGUF, RANKS, SENTENCEPIECE, TEKKEN, Output, kind_of
from llmgpu.registry import Entry, Registry

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary


class Writer(Protocol):
    """The functions of a module for a format that is only written."""

    def outputs(self, path: str | Path) -> list[Output]:
        """Return the files that `write` would write."""

    def write(
        self,
        vocabulary: Vocabulary,
        path: str | Path,
        *,
        note: Note = no_notes,
        force: bool = False,
    ) -> None:
        """Write files from which the other tool gets exactly the vocabulary's ids.

        force: replace even files of another kind.

        Raises VocabularyError if the format can't give the same ids, OutputError for files that
        can't be written.
        """


class Reader(Protocol):
    """The functions of a module for a format that is read."""

    def recognizes(self, data: bytes) -> bool:
        """Whether a vocabulary's only file is of this format; data: the first bytes of the file."""

    def read(
        self,
        path: str | Path,
        merges_path: str | Path | None = None,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
        note: Note = no_notes,
    ) -> Vocabulary:
        """Read a vocabulary with exactly the ids of the other tool.

        merges_path: the second file, for a format of two files.
        pattern: a name in PATTERNS, for files that do not name a pattern.
        special_tokens: ids by text of special tokens that are not in the files.
        note: called with a text about each part of the files that is dropped because it does not
            change the ids inside a text.

        Raises VocabularyError for files that can't be read exactly and for arguments that the
        format does not use; LlmgpuError for an unknown pattern.
        """


class Format(Reader, Writer, Protocol):
    """The functions of a module for a format that is read and written."""


_ROOM = "llmgpu.bpe.interchange"
# The summaries, which `--help` prints, name the files of each format.
_FORMATS = {
    "tiktoken": Entry(f"{_ROOM}.tiktoken", "a .tiktoken file with its side file .json"),
    "huggingface": Entry(f"{_ROOM}.huggingface", "a tokenizer.json or a folder"),
    "gpt2": Entry(f"{_ROOM}.gpt2", "vocab.json and merges.txt"),
}
FORMATS: Registry[Format] = Registry(_FORMATS)
READERS: Registry[Reader] = Registry(
    {
        "tekken": Entry(f"{_ROOM}.tekken", "Mistral's tekken.json"),
        "sentencepiece": Entry(f"{_ROOM}.sentencepiece", "a tokenizer.model of type BPE"),
        "gguf": Entry(f"{_ROOM}.gguf_reading", "a .gguf file of llama.cpp"),
    }
    | _FORMATS
)
WRITERS: Registry[Writer] = Registry(
    _FORMATS | {"gguf": Entry(f"{_ROOM}.gguf", "a .gguf file for llama.cpp")}
)
ALIASES = {"hf": "huggingface"}
# Formats with a single file, by the kind of file that `llmgpu.outputs.kind_of` returns.
KINDS = {RANKS: "tiktoken", TEKKEN: "tekken", SENTENCEPIECE: "sentencepiece", GGUF: "gguf"}
# Formats by a file's name. Of several such files in a folder, the first in this table is read.
NAMES = {
    "tokenizer.json": "huggingface",
    "tekken.json": "tekken",
    "tokenizer.model": "sentencepiece",
}
END_OF_TEXT = "<|endoftext|>"  # GPT-2's special token after each text
# Types of weights in GGUF files, with llama.cpp's numbers for files that have most weights in them.
WEIGHT_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q5_0": 8, "q4_0": 2}


def guess_format(path: str | Path, merges_path: str | Path | None) -> str:
    """Return the name of the format of a file; VocabularyError if it can't be read."""
    if merges_path is not None:  # only gpt2 has two files
        return "gpt2"
    with naming(path):
        # Recognize GGUF without reading the whole file: the file may contain weights of any size.
        if kind_of(str(path)) == GGUF:
            return "gguf"
        # One format is always found: huggingface recognizes any JSON file, and tiktoken recognizes
        # any other file.
        data = read_limited(path)
        return next(name for name, format in READERS.items() if format.recognizes(data))
