"""How to get an encoder: the one for a backend and a match rule, with all that goes around it.

Text passes through the special tokens first, then the vocabulary's normalizer, then matching.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgpu.backend import Backend
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, NoTokenError, new_ids
from llmgpu.bpe.encoding.encoder_host import HostEncoder
from llmgpu.bpe.encoding.encoder_numpy import SLICE_BYTES, NumpyEncoder
from llmgpu.bpe.encoding.special_encoding import (
    NO_SPECIAL_TOKENS,
    SpecialOptions,
    with_special_tokens,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_numpy import default_threads
from llmgpu.cpu.library import library
from llmgpu.errors import InputError
from llmgpu.processors import usable_processors
from llmgpu.text.corpus import FilteredSource, TextSource
from llmgpu.text.nfc import NfcFilter


def open_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    special: SpecialOptions = NO_SPECIAL_TOKENS,
    threads: int | None = None,
) -> Encoder:
    """Return an encoder for a vocabulary: by its match rule, after its normalizer.

    slice_bytes: bytes of text to work on at a time. threads: how many work at a time without a
        device. The ids depend on neither.
    special: the special tokens that text may spell, and those around documents.

    Raises VocabularyError if `special` names a token that the vocabulary does not have or there are
    too many merges, DeviceError if the device's memory or limits are too small.
    """
    encoder = _open_matching(vocabulary, backend, slice_bytes, threads)
    if vocabulary.normalizer is not None:
        encoder = _NormalizingEncoder(encoder)
    return with_special_tokens(encoder, vocabulary, special)


def _open_matching(
    vocabulary: Vocabulary, backend: Backend, slice_bytes: int | None, threads: int | None
) -> Encoder:
    if backend.device is None:
        return open_host_encoder(vocabulary, slice_bytes, threads)
    # What needs a GPU package is imported only where there is a device.
    if vocabulary.match == "bpe":
        from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder

        return GpuEncoder(backend.device, vocabulary, slice_bytes)
    from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder

    return GpuGreedyEncoder(backend.device, vocabulary, slice_bytes)


def open_host_encoder(
    vocabulary: Vocabulary, slice_bytes: int | None = None, threads: int | None = None
) -> HostEncoder:
    """Return an encoder on the CPU engine, or on NumPy without one; by the match rule alone."""
    if library() is None:
        return NumpyEncoder(vocabulary, slice_bytes or SLICE_BYTES, threads or default_threads())
    from llmgpu.bpe.encoding import encoder_c

    threads = threads or usable_processors()
    return encoder_c.CpuEncoder(vocabulary, slice_bytes or encoder_c.SLICE_BYTES, threads)


class _NormalizingEncoder:
    """An encoder of NFC text; its slices and offsets are those of the normalized text."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        filtered = FilteredSource(source, NfcFilter())
        try:
            yield from self._encoder.encode(filtered, allocate)
        except NoTokenError as error:
            raise InputError(f"in the normalized text, {error}") from None
