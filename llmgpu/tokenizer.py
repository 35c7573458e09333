"""The Python API: text to NumPy arrays of ids, and back.

::

    from llmgpu import Tokenizer

    tokenizer = Tokenizer.load("v.bin")
    ids = tokenizer.encode("hello world")  # uint32 (n,)
    tokenizer.decode(ids)  # "hello world"

Errors are an `llmgpu.errors.LlmgpuError`, with the messages of the command line.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.backend import NUMPY, Backend, select_backend
from llmgpu.bpe.encoding.encoder import CollectedIds, Encoder
from llmgpu.bpe.encoding.open import open_matching_encoder
from llmgpu.bpe.encoding.special_encoding import SpecialOptions, with_special_tokens
from llmgpu.bpe.interchange import huggingface, tiktoken
from llmgpu.bpe.pretokens.pattern import DEFAULT_PATTERN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.tokens.tokenizing import encode_corpus

HOST_BYTES = 1 << 16  # up to here NumPy is done before a device has received the text

Token = int | str

_log = logging.getLogger("llmgpu")


class Tokenizer:
    """A vocabulary, and the device that it encodes with.

    - Ids are those of ``llmgpu tokenize``, on every device.
    - Threads may share a tokenizer: they encode one after the other.
    - A pickle holds the vocabulary and the name of the device, which is opened again when needed. A
      forked process can't use adapters if its parent did: there "auto" means NumPy, and any other
      adapter raises DeviceError. Spawned processes have no such limit.
    - Up to HOST_BYTES of text are always encoded with NumPy, because that is faster.
    """

    def __init__(self, vocabulary: Vocabulary, device: str = "auto") -> None:
        """Use a vocabulary; device: as for --device. "auto" is opened when needed, others at once.

        Raises DeviceError if there is no such device.
        """
        self._vocabulary = vocabulary
        self._device = device
        self._engine = _Engine(vocabulary, device)
        if device != "auto":
            _ = self._engine.backend

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Tokenizer:
        """Read a vocabulary file.

        Raises VocabularyError if it can't be read or is damaged; DeviceError as the constructor.
        """
        return cls(Vocabulary.load(path), device)

    @classmethod
    def from_tiktoken(
        cls,
        path: str | Path,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
        device: str = "auto",
    ) -> Tokenizer:
        """Read a rank file of tiktoken.

        pattern: how text is cut; needed unless the ranks are those of a published encoding or have
            a side file. special_tokens: ids by text, added to the known ones.

        Raises VocabularyError for a file that can't be read exactly, LlmgpuError for an unknown
        pattern. Notes go to the log "llmgpu", at level INFO.
        """
        vocabulary = tiktoken.read(
            path, pattern=pattern, special_tokens=special_tokens, note=_log.info
        )
        return cls(vocabulary, device)

    @classmethod
    def from_huggingface(cls, path: str | Path, *, device: str = "auto") -> Tokenizer:
        """Read a tokenizer.json of Hugging Face tokenizers.

        Raises VocabularyError for one that can't be read exactly. Notes go to the log "llmgpu", at
        level INFO.
        """
        return cls(huggingface.read(path, note=_log.info), device)

    @classmethod
    def train(
        cls,
        corpus: str | Path | Sequence[str | Path],
        *,
        vocab_size: int,
        pattern: str = DEFAULT_PATTERN,
        min_frequency: int = 2,
        special_tokens: Sequence[str] = (),
        tie: str = "hf",
        max_token_length: int | None = None,
        reading: CorpusOptions | None = None,
        device: str = "auto",
    ) -> Tokenizer:
        """Train a vocabulary as ``llmgpu bpe-train`` does, with options named like its flags.

        corpus: files, folders or globs. reading: how they are read.

        Raises InputError for a corpus that is empty or can't be read, DeviceError for a device that
        is missing or too small, LlmgpuError for an option out of range.
        """
        from llmgpu.bpe.training.options import TrainingOptions
        from llmgpu.bpe.training.train import train_vocabulary

        options = TrainingOptions(
            vocab_size,
            pattern=pattern,
            min_frequency=min_frequency,
            special_tokens=tuple(special_tokens),
            tie=tie,
            max_token_length=max_token_length,
        )
        reading = reading or CorpusOptions()
        separators = (*reading.separators, *map(_to_bytes, special_tokens))
        with Corpus(_names(corpus), replace(reading, separators=separators)) as text:
            result = train_vocabulary(text, options, select_backend(device))
        return cls(result.vocabulary, device)

    def encode(
        self,
        text: str | bytes,
        *,
        allowed_special: Collection[str] = (),
        disallowed_special: Collection[str] = (),
        bos: Token | None = None,
        eos: Token | None = None,
    ) -> NDArray[np.uint32]:
        """Return the ids of a document: uint32 (n,).

        text: bytes are used as they are, valid UTF-8 or not. In a str, a surrogate pair is its
            character and other surrogates are U+FFFD, as in tiktoken.
        allowed_special: special tokens whose text becomes their id, "all" for all; the text of
            others is plain text.
        disallowed_special: special tokens whose text is an error, "all" for those not allowed.
        bos, eos: put before and after; an id, or a text that is one token, special or not.

        Raises InputError for a disallowed special token, and for a byte without a token if there is
        no unknown token; VocabularyError for arguments that name no token; DeviceError if a device
        can't be opened or runs out of memory.
        """
        options = _special_options(allowed_special, disallowed_special, bos, eos)
        return self._encode([text], options)[0]

    def encode_batch(
        self,
        texts: Iterable[str | bytes],
        *,
        allowed_special: Collection[str] = (),
        disallowed_special: Collection[str] = (),
        bos: Token | None = None,
        eos: Token | None = None,
    ) -> list[NDArray[np.uint32]]:
        """Return the ids of each document as `encode` does, encoded in one pass.

        The arrays are views of one array, end to end.
        """
        options = _special_options(allowed_special, disallowed_special, bos, eos)
        ids, starts = self._encode(texts, options)
        bounds = [*starts.tolist(), len(ids)]
        return [ids[begin:end] for begin, end in pairwise(bounds)]

    def encode_file(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        reading: CorpusOptions | None = None,
        allowed_special: Collection[str] = (),
        disallowed_special: Collection[str] = (),
        bos: Token | None = None,
        eos: Token | None = None,
    ) -> NDArray[np.uint32]:
        """Return the ids of files, folders or globs, documents end to end: uint32 (n,).

        reading: how they are read; by default each file is a document, and each line of a .jsonl.
        Memory: 4 bytes per id, and reserved addresses for as many ids as there are bytes. If
        addresses are limited, or compression hides how many are needed, 8 bytes per id.

        Raises as `encode` does, and InputError for files that can't be read.
        """
        options = _special_options(allowed_special, disallowed_special, bos, eos)
        with Corpus(_names(path), reading) as text:
            is_small = text.total_bytes is not None and text.total_bytes <= HOST_BYTES
            return self._current_engine().encode(text, options, is_small)[0]

    def decode(self, ids: ArrayLike, errors: str = "replace") -> str:
        """Return the text of `ids` (n,), any integers.

        errors: how to handle bytes that are not UTF-8, as for `bytes.decode`.

        Raises InputError for ids that are not in the vocabulary.
        """
        return self.decode_bytes(ids).decode(errors=errors)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """Return the bytes of `ids` (n,), any integers; InputError for unknown ids."""
        return self._vocabulary.decode(ids)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the vocabulary file atomically.

        force: replace even a file that is of another kind, such as a text.

        Raises OutputError if it can't be written.
        """
        self._vocabulary.save(path, force=force)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._vocabulary.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the special tokens by text; a copy."""
        return dict(self._vocabulary.special_tokens)

    def __repr__(self) -> str:
        pattern = self._vocabulary.pattern
        return f"<Tokenizer: {self.vocab_size} ids, pattern {pattern}, device {self._device!r}>"

    def __getstate__(self) -> tuple[bytes, str]:
        return self._vocabulary.to_bytes(), self._device

    def __setstate__(self, state: tuple[bytes, str]) -> None:
        data, self._device = state
        self._vocabulary = Vocabulary.from_bytes(data, "pickled vocabulary")
        self._engine = _Engine(self._vocabulary, self._device)

    def _encode(
        self, texts: Iterable[str | bytes], options: SpecialOptions
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of documents, end to end, and where in them each starts."""
        documents = [_to_bytes(text) for text in texts]
        is_small = sum(map(len, documents)) <= HOST_BYTES
        return self._current_engine().encode(corpus_from_bytes(documents), options, is_small)

    def _current_engine(self) -> _Engine:
        engine = self._engine
        if engine.process != os.getpid():
            _engines_of_parents.append(engine)
            engine = self._engine = _Engine(self._vocabulary, self._device)
        return engine


class _Engine:
    """The encoders of one process."""

    def __init__(self, vocabulary: Vocabulary, device: str) -> None:
        self.process = os.getpid()
        self._vocabulary = vocabulary
        self._device = device
        self._lock = threading.Lock()
        self._special: dict[tuple[SpecialOptions, bool], Encoder] = {}

    @cached_property
    def backend(self) -> Backend:
        """Where to compute; opened on first use."""
        return select_backend(self._device)

    @cached_property
    def _host(self) -> Encoder:
        return open_matching_encoder(self._vocabulary, NUMPY, HOST_BYTES, threads=1)

    @cached_property
    def _large(self) -> Encoder:
        return open_matching_encoder(self._vocabulary, self.backend)

    def encode(
        self, source: Corpus, options: SpecialOptions, is_small: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all documents, end to end, and where in them each starts."""
        ids = CollectedIds(source.total_bytes)
        starts = [np.empty(0, np.int64)]
        count = 0
        with self._lock:
            for piece in encode_corpus(self._encoder(options, is_small), source, ids.allocate):
                ids.append(piece.ids)
                starts.append(piece.document_starts + count)
                count += len(piece.ids)
        return ids.take(), np.concatenate(starts)

    def _encoder(self, options: SpecialOptions, is_small: bool) -> Encoder:
        """Return an encoder that handles special tokens; the last one is kept."""
        key = options, is_small
        if key not in self._special:
            inner = self._host if is_small else self._large
            self._special = {key: with_special_tokens(inner, self._vocabulary, options)}
        return self._special[key]


# Kept alive, because a process must not close a device that it did not open.
_engines_of_parents: list[_Engine] = []


def _special_options(
    allowed: Collection[str], disallowed: Collection[str], bos: Token | None, eos: Token | None
) -> SpecialOptions:
    """Return options that can be compared and hashed."""
    sets = [
        frozenset([texts] if isinstance(texts, str) else texts) for texts in (allowed, disallowed)
    ]
    return SpecialOptions(sets[0], sets[1], bos, eos)


def _names(paths: str | Path | Sequence[str | Path]) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]


def _to_bytes(text: Any) -> bytes:
    """Return a text in UTF-8; TypeError unless it is str or bytes."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(f"a text is str or bytes, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
