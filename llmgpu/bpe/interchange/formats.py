"""The formats of other tools' vocabularies, and the opening of a vocabulary by its path or name.

The content of a file decides its format; if the content is not clear, the file's name decides. If a
path exists that is also a published name, the path is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from llmgpu.errors import VocabularyError
from llmgpu.file_kinds import MERGES_TXT, VOCAB_JSON, VOCABULARY, VOCABULARY_FORMATS, kind_of
from llmgpu.input_files import Note, no_notes
from llmgpu.outputs import Output
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
    """The function of a module for a format that is read."""

    def read(self, path: str | Path, *, note: Note = no_notes) -> Vocabulary:
        """Read a vocabulary with exactly the ids of the other tool.

        note: called with a text about each part of the files that is dropped because it does not
            change the ids inside a text. An incomplete format has further arguments.

        Raises VocabularyError for files that can't be read exactly.
        """


_ENTRIES = {
    name: Entry(f"llmgpu.bpe.interchange.{name}", one.summary)
    for name, one in VOCABULARY_FORMATS.items()
}
READERS: Registry[Reader] = Registry(_ENTRIES)
WRITERS: Registry[Writer] = Registry(
    {name: _ENTRIES[name] for name, one in VOCABULARY_FORMATS.items() if one.is_written}
)
ALIASES = {"hf": "huggingface"}
# Names of files in a folder, of which the first is read.
NAMES = tuple(one.name for one in VOCABULARY_FORMATS.values() if one.name)
_KINDS = {one.kind: name for name, one in VOCABULARY_FORMATS.items() if one.kind}
# Formats of files whose content does not show one, by the ending of the name; the longest first.
_BY_ENDING = sorted(
    ((one.ending, name) for name, one in VOCABULARY_FORMATS.items() if one.ending),
    key=lambda pair: -len(pair[0]),
)
_VOCAB, _MERGES, _TOKENIZER = "vocab.json", "merges.txt", "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"  # GPT-2's special token after each text
# Types of weights in GGUF files, with llama.cpp's numbers for files that have most weights in them.
WEIGHT_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "q5_0": 8, "q4_0": 2}


@dataclass(frozen=True)
class VocabularyFiles:
    """The files of a vocabulary.

    path: the file, or the first of two. format: a name in READERS; None for a vocabulary file of
    llmgpu. merges: the second file of format ``gpt2``. special_tokens: ids by text of special
    tokens that the files lack.
    """

    path: str
    format: str | None = None
    merges: str | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def inputs(self) -> list[str]:
        """The paths of all files that `read` may read."""
        side = [f"{self.path}.json"] if self.format == "tiktoken" else []
        return [self.path, *filter(None, [self.merges]), *side]

    def read(
        self,
        note: Note = no_notes,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
    ) -> Vocabulary:
        """Read the vocabulary; note: see `Reader.read`.

        pattern: a name in PATTERNS, for files that do not name a pattern.
        special_tokens: ids by text of further special tokens.

        Raises VocabularyError for files that can't be read exactly and for arguments that the
        format does not use; LlmgpuError for an unknown pattern.
        """
        if self.format is None:
            from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

            return Vocabulary.load(self.path)
        if self.merges is not None and self.format != "gpt2":
            raise VocabularyError(
                f"{self.path}: format {self.format} has one file; merges.txt is for gpt2"
            )
        special = {**self.special_tokens, **(special_tokens or {})}
        arguments = {"merges_path": self.merges, "pattern": pattern, "special_tokens": special}
        given = {name: value for name, value in arguments.items() if value}
        if given and not VOCABULARY_FORMATS[self.format].is_incomplete:
            raise VocabularyError(
                f"{self.path}: format {self.format} has its own pattern and special tokens"
            )
        return READERS[self.format].read(self.path, note=note, **given)


def open_vocabulary(path: str | Path, *, note: Note = no_notes) -> Vocabulary:
    """Read a vocabulary, see `find_vocabulary`.

    note: see `Reader.read`.

    Raises VocabularyError if the vocabulary can't be read exactly.
    """
    return find_vocabulary(path).read(note)


def find_vocabulary(path: str | Path, format: str | None = None) -> VocabularyFiles:
    """Return the files of a vocabulary, given its path or its published name.

    path: a vocabulary file, a tokenizer.json, a tekken.json, a tokenizer.model, a rank file, a
        vocab.json or merges.txt with the other file beside it, a folder with such files, or the
        name of a published encoding or of a model with a published encoding, such as ``cl100k`` and
        ``gpt-4-turbo``.
    format: the format to prefer in a folder.

    Raises VocabularyError for a folder without a vocabulary, for a vocab.json or merges.txt without
    the other file, and for a published encoding that this machine does not have.
    """
    # Search a folder. A path without a file may be the name of a published encoding.
    name = str(path)
    if os.path.isdir(name):
        return find_in_folder(name, format)
    if not os.path.lexists(name):
        from llmgpu.bpe.interchange.tiktoken import added_tokens, find_ranks

        ranks = find_ranks(name)
        if ranks is None:
            raise VocabularyError(f"can't read the vocabulary {name}: {_missing(name)}")
        return VocabularyFiles(ranks, "tiktoken", special_tokens=added_tokens(name))
    # The content of a file decides, then its name.
    kind = kind_of(name)
    if kind == VOCABULARY or kind in _KINDS:
        return VocabularyFiles(name, _KINDS.get(kind))
    if kind == VOCAB_JSON:
        return _pair(name, _VOCAB, _MERGES)
    if kind == MERGES_TXT or name.endswith(_MERGES):
        return _pair(name, _MERGES, _VOCAB)
    if name.endswith(".pkl"):
        reason = "pickles are not read, since they can run code"
        raise VocabularyError(f"{name}: {reason}: use the model's tokenizer.json")
    by_name = (format for end, format in _BY_ENDING if name.endswith(end))
    return VocabularyFiles(name, next(by_name, None))


def _missing(name: str) -> str:
    """Return the rest of the error message for a name that is neither a file nor published."""
    # An ending of letters belongs to a file name. A dot as in -1.5 may belong to a model's version.
    if not os.path.splitext(name)[1][1:].isalpha():
        if advice := download_advice(name, "tokenizer.json "):
            return f"no such file{advice}"
        if re.fullmatch(r"[\w.-]+", name):
            return (
                "no such file, and no published encoding; those are cl100k, o200k, o200k_harmony, "
                "gpt2, p50k and names of models that tiktoken knows, such as gpt-4o-mini"
            )
    return "No such file or directory"


def download_advice(name: str, files: str = "") -> str:
    """Return advice on downloading a Hugging Face model; "" if `name` can't be a model's name.

    files: the files of the model that are needed.
    """
    if not re.fullmatch(r"[\w-]+/[\w.-]+", name) or os.path.exists(os.path.dirname(name)):
        return ""
    return (
        ", and nothing is downloaded: if it is a model on the Hugging Face hub, run hf download "
        f"{name} {files}--local-dir FOLDER, and name the folder"
    )


def find_in_folder(folder: str | Path, format: str | None = None) -> VocabularyFiles:
    """Return the vocabulary in a folder: the first file of NAMES, else vocab.json and merges.txt.

    In a run folder, the vocabulary is that of the newest checkpoint. Format "gpt2" skips the files
    of NAMES.

    Raises VocabularyError for a folder without these files.
    """
    path = Path(folder)
    if not path.is_dir():
        advice = download_advice(str(folder), "tokenizer.json ") or "; nothing is downloaded"
        raise VocabularyError(f"no such folder: {str(folder)!r}{advice}")
    found = () if format == "gpt2" else (name for name in NAMES if (path / name).exists())
    for name in found:
        return find_vocabulary(path / name)
    if (path / _VOCAB).exists():
        return _pair(str(path / _VOCAB), _VOCAB, _MERGES)
    checkpoints = sorted(path.glob(f"step-*/{_TOKENIZER}"))
    if checkpoints:
        return find_in_folder(checkpoints[-1].parent, format)
    hint = ""
    if tekken := sorted(path.glob("tekken*.json")):
        hint = f"; if {tekken[-1].name} is its vocabulary, name that file"
    raise VocabularyError(f"{folder} has neither {_TOKENIZER} nor {_VOCAB}, nor a checkpoint{hint}")


def _pair(name: str, ending: str, other_ending: str) -> VocabularyFiles:
    """Return vocab.json and merges.txt, given the name of either; both names may have a prefix."""
    folder, file = os.path.split(name)
    stem = file.removesuffix(ending) if file.endswith(ending) else ""
    other = os.path.join(folder, stem + other_ending)
    if not os.path.exists(other):
        raise VocabularyError(f"{name} is a {ending}, which needs {other} next to it")
    vocab, merges = (name, other) if ending == _VOCAB else (other, name)
    return VocabularyFiles(vocab, "gpt2", merges)
