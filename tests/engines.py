"""The engines that count, train and encode, with one interface for tests that hold for all.

A test that takes the fixture `engine` (tests/conftest.py) runs on each of ENGINES. A further engine
is a class here and a name there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from ctypes import CDLL
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.bpe.encoding.encoder import Encoder
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.pretokens import blocks, custom_regex
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_gpu import GpuWordCounter
from llmgpu.bpe.words.count_host import count_words
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.bpe.words.spilling import WordAccumulator
from llmgpu.cpu import build, library
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from tests.bpe.word_lists import listed

ENGINES = ("numpy", "gpu") if library.library() is None else ("c", "numpy", "gpu")


class Engine(Protocol):
    """Where words are counted and texts encoded; `slice_bytes` changes no result."""

    backend: Backend

    def counter(
        self, corpus: Corpus, pattern: str, slice_bytes: int | None = None
    ) -> DistinctWords:
        """Return the distinct words of a corpus."""
        ...

    def encoder(self, vocabulary: Vocabulary, slice_bytes: int | None = None) -> Encoder:
        """Return an encoder by the vocabulary's match rule."""
        ...

    def colliding(self, patch: pytest.MonkeyPatch) -> Engine:
        """Return this engine with one hash value for all words that it hashes."""
        ...


class NumpyEngine:
    backend = NUMPY

    def counter(
        self, corpus: Corpus, pattern: str, slice_bytes: int | None = None
    ) -> DistinctWords:
        sizes = {} if slice_bytes is None else {"slice_bytes": slice_bytes}
        with pytest.MonkeyPatch.context() as patch:
            self._choose(patch)
            return count_words(corpus, pattern, threads=2, **sizes)

    def encoder(self, vocabulary: Vocabulary, slice_bytes: int | None = None) -> Encoder:
        with pytest.MonkeyPatch.context() as patch:
            self._choose(patch)
            return open_encoder(vocabulary, NUMPY, slice_bytes, threads=4)

    def colliding(self, patch: pytest.MonkeyPatch) -> Engine:
        return self  # Python's dictionary hashes the words

    def _choose(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv(library.VARIABLE, "numpy")


class CEngine(NumpyEngine):
    def __init__(self, loaded: CDLL | None = None) -> None:
        """Take a build of the library other than the installed one."""
        self._loaded = loaded

    def colliding(self, patch: pytest.MonkeyPatch) -> Engine:
        with tempfile.TemporaryDirectory() as folder:
            build.build(Path(folder, "engine.so"), ["-O0", "-DLLMGPU_HASH_MASK=0"])
            return CEngine(library.load(Path(folder, "engine.so"))[0])

    def _choose(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv(library.VARIABLE, "c")
        if self._loaded is not None:
            patch.setattr(library, "load", lambda path: (self._loaded, ""))
            uncached = blocks.make_rule.__wrapped__
            for module in (blocks, custom_regex):
                patch.setattr(module, "make_rule", uncached)


class DeviceEngine:
    def __init__(self, device: Device, **sizes: int) -> None:
        self.backend = Backend(device, device.name)
        self._device, self._sizes = device, sizes

    def counter(
        self, corpus: Corpus, pattern: str, slice_bytes: int | None = None
    ) -> DistinctWords:
        words = WordAccumulator(1 << 26)
        counter = GpuWordCounter(
            self._device, pattern, words, slice_bytes=slice_bytes, **self._sizes
        )
        return counter.count(corpus)

    def encoder(self, vocabulary: Vocabulary, slice_bytes: int | None = None) -> Encoder:
        if vocabulary.match == "greedy":
            return open_encoder(vocabulary, self.backend, slice_bytes)
        return GpuEncoder(self._device, vocabulary, slice_bytes, **self._sizes)

    def colliding(self, patch: pytest.MonkeyPatch) -> Engine:
        return DeviceEngine(self._device, **self._sizes, hash_mask=0)


def count(
    engine: Engine, documents: Sequence[bytes], pattern: str, slice_bytes: int | None = None
) -> dict[bytes, int]:
    """Return the words of documents with their counts; no word comes twice."""
    words = listed(engine.counter(corpus_from_bytes(list(documents)), pattern, slice_bytes))
    assert len(dict(words)) == len(words)
    return dict(words)


def encode(
    encoder: Encoder, documents: Sequence[bytes], corpus: Corpus | None = None
) -> list[list[int]]:
    """Return the ids of each document; corpus: of these documents, if read in another way."""
    pieces = list(encoder.encode(corpus or corpus_from_bytes(list(documents))))
    firsts = np.cumsum([0, *(len(piece.ids) for piece in pieces)])
    starts = [
        start
        for piece, first in zip(pieces, firsts.tolist(), strict=False)
        for start in (piece.document_starts + first).tolist()
    ]
    ids = np.concatenate([np.empty(0, np.uint32), *(piece.ids for piece in pieces)]).tolist()
    assert len(starts) == len(documents)
    assert sum(piece.text_bytes for piece in pieces) == sum(map(len, documents))
    return [ids[start:end] for start, end in pairwise([*starts, len(ids)])]


def train(engine: Engine, documents: Sequence[bytes], options: TrainingOptions) -> TrainingResult:
    """Train on documents."""
    return train_vocabulary(corpus_from_bytes(list(documents)), options, engine.backend)
