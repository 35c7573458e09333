"""Turning text into token ids, on whichever backend was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_numpy import default_threads
from llmgpu.errors import TextError
from llmgpu.text.corpus import TextSource

# Gives memory for so many ids, uint32 (n,), whose contents are undefined.
Allocate = Callable[[int], NDArray[np.uint32]]


def new_ids(count: int) -> NDArray[np.uint32]:
    """Return memory of its own for `count` ids."""
    return np.empty(count, np.uint32)


@dataclass(frozen=True)
class EncodedSlice:
    """The ids of a piece of a text.

    ids: uint32, (tokens,).
    document_starts: int64, positions in ids at which documents begin, repeats for empty documents.
    text_bytes: bytes of text that the piece covers.
    closed: a document ends where the piece does.
    """

    ids: NDArray[np.uint32]
    document_starts: NDArray[np.int64]
    text_bytes: int
    closed: bool = False


class Encoder(Protocol):
    """What `open_encoder` returns."""

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order, each piece as soon as it is done.

        allocate: gives memory for a piece's ids, at most once before each piece. Only encoders
            that fetch ids from a device ask for it; the others have them in memory already.

        Raises:
            NoTokenError: a byte has no token, and the vocabulary no unknown token.
            InputError: the source's.
        """
        ...


class NoTokenError(TextError):
    """A byte that no token begins with."""

    def __init__(self, byte: int, offset: int) -> None:
        """Take the byte, and where it is in the whole text."""
        super().__init__(
            f"byte 0x{byte:02x}",
            offset,
            "has no token in the vocabulary, which has no unknown token either; use a vocabulary "
            "with all 256 bytes",
        )
        self.byte = byte


def open_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    threads: int | None = None,
) -> Encoder:
    """Make an encoder for a vocabulary, by its match rule, that normalizes text as it says.

    slice_bytes: text bytes worked on at a time. threads: how many work at a time where there is no
        device. The ids depend on neither.
    """
    encoder = _open_matching(vocabulary, backend, slice_bytes, threads)
    if vocabulary.normalizer is None:
        return encoder
    from llmgpu.bpe.encoding.normalization import NormalizingEncoder

    return NormalizingEncoder(encoder)


def _open_matching(
    vocabulary: Vocabulary, backend: Backend, slice_bytes: int | None, threads: int | None
) -> Encoder:
    if backend.device is None:
        from llmgpu.bpe.encoding.encoder_numpy import SLICE_BYTES, NumpyEncoder

        return NumpyEncoder(vocabulary, slice_bytes or SLICE_BYTES, threads or default_threads())
    if vocabulary.match == "bpe":
        from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder

        return GpuEncoder(backend.device, vocabulary, slice_bytes)
    from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder

    return GpuGreedyEncoder(backend.device, vocabulary, slice_bytes)


def token_spans(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return how many bytes of text each id stands for; the unknown token stands for one."""
    spans = vocabulary.token_lengths.astype(np.int64)
    if vocabulary.unknown_token is not None:
        spans[vocabulary.unknown_token] = 1
    return spans
