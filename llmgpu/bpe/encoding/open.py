"""`open_encoder` returns the encoder for a backend, a match rule and special tokens.

If a device that ``auto`` chose fails, the CPU encodes the slices in flight and the rest of the
text.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend, Opening
from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, Encoder, Expecting, new_ids
from llmgpu.bpe.encoding.encoder_host import HostEncoder, settled, stream_lookahead
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS, SpecialOptions
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import default_threads, library
from llmgpu.errors import DeviceError, VocabularyError
from llmgpu.forking import delaying_forks
from llmgpu.text.corpus import TextSource

_log = logging.getLogger("llmgpu")


@delaying_forks()
def prepare_vocabulary(vocabulary: Vocabulary, opening: Opening) -> None:
    """Compute the tables of an encoder on a device while `opening` opens the device.

    Errors are ignored here, because `open_encoder` raises them again.
    """
    if opening.wanted != "cpu" and vocabulary.match == "bpe" and not _takes_whole_texts(vocabulary):
        from llmgpu.bpe.encoding.encoder_gpu import prepare_tables

        with suppress(MemoryError, VocabularyError):
            prepare_tables(vocabulary)


def open_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    special: SpecialOptions = NO_SPECIAL_TOKENS,
    threads: int | None = None,
    text_bytes: int | None = None,
) -> Encoder:
    """Return an encoder that normalizes text and matches it by the vocabulary's rule.

    slice_bytes: bytes of text to encode at a time. threads: CPU threads that encode, if the CPU
        encodes. text_bytes: an estimate of the first text's size; None if unknown. The ids depend
        on none of these.
    special: the special tokens that text may spell, and the tokens around documents.

    Raises VocabularyError if `special` names a token that the vocabulary does not have, or if there
    are too many merges; DeviceError if the device's memory or limits are too small.
    """
    encoder = open_matching_encoder(
        vocabulary, backend, slice_bytes, threads=threads, text_bytes=text_bytes
    )
    made = SpecialEncoder(encoder, vocabulary, special)
    return encoder if made.special.is_plain and made.special.normalizer is None else made


@delaying_forks()
def open_matching_encoder(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None = None,
    *,
    threads: int | None = None,
    text_bytes: int | None = None,
) -> Encoder:
    """Return an encoder of normalized text without special tokens.

    Takes the arguments of `open_encoder` except `special`, and raises its errors. The encoder is
    cached in `backend.encoders`, unless this attribute is None.
    """
    kept = {} if backend.encoders is None else backend.encoders
    key = vocabulary.fingerprint, backend.device, slice_bytes, threads
    if key not in kept:
        kept[key] = _open_new(vocabulary, backend, slice_bytes, threads, text_bytes)
    found: Encoder = kept[key]
    if isinstance(found, Expecting):
        found.expect(text_bytes)  # an encoder of an earlier text may expect another size
    return found


def _open_new(
    vocabulary: Vocabulary,
    backend: Backend,
    slice_bytes: int | None,
    threads: int | None,
    text_bytes: int | None,
) -> Encoder:
    if backend.device is None:
        return open_host_encoder(vocabulary, slice_bytes, threads)
    if _takes_whole_texts(vocabulary):
        _log.warning("a vocabulary with ignore_merges and without a pattern is encoded on the CPU")
        return open_host_encoder(vocabulary, None, threads)
    try:
        encoder: DeviceEncoder
        # Import the modules only here, because they import a GPU package.
        if vocabulary.match == "bpe":
            from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder

            encoder = GpuEncoder(
                backend.device, vocabulary, slice_bytes, threads=threads, text_bytes=text_bytes
            )
        else:
            from llmgpu.bpe.plain.greedy_gpu import GpuGreedyEncoder

            encoder = GpuGreedyEncoder(
                backend.device, vocabulary, slice_bytes, text_bytes=text_bytes
            )
    except DeviceError as error:
        if not backend.is_optional:
            raise
        _log.warning("%s; using the CPU", error)
        return open_host_encoder(vocabulary, slice_bytes, threads)
    if not backend.is_optional or stream_lookahead(vocabulary) is not None:
        return encoder
    return OptionalDeviceEncoder(
        encoder, vocabulary, lambda: open_host_encoder(vocabulary, None, threads)
    )


def _takes_whole_texts(vocabulary: Vocabulary) -> bool:
    """Whether a whole text may be a single token, so that no slice can end inside the text."""
    return vocabulary.pieces is not None and vocabulary.takes_whole_tokens


@delaying_forks()
def open_host_encoder(
    vocabulary: Vocabulary, slice_bytes: int | None = None, threads: int | None = None
) -> HostEncoder:
    """Return an encoder on the CPU engine, or on NumPy if there is no engine.

    The encoder expects normalized text and treats special tokens as text.
    """
    threads = threads or default_threads()
    if library() is None:
        from llmgpu.bpe.encoding import encoder_numpy

        return encoder_numpy.NumpyEncoder(
            vocabulary, slice_bytes or encoder_numpy.SLICE_BYTES, threads
        )
    from llmgpu.bpe.encoding import encoder_c

    return encoder_c.CpuEncoder(vocabulary, slice_bytes or encoder_c.SLICE_BYTES, threads)


def table_bytes(backend: Backend) -> int:
    """Return the limit of an encoder's word tables in host memory, in bytes; 0 for a device."""
    if backend.device is not None:
        return 0
    if library() is None:
        from llmgpu.bpe.encoding import encoder_numpy

        return 2 * encoder_numpy.MAX_TABLE_BYTES
    from llmgpu.bpe.encoding import encoder_c

    return encoder_c.MAX_TABLE_BYTES


class DeviceEncoder(Encoder, Protocol):
    """Encodes texts, or slices of a text, on a device."""

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate = new_ids
    ) -> Generator[EncodedSlice, None, None]:
        """Yield the ids of the slices of `reader` in order; see `Encoder.encode`."""


class OptionalDeviceEncoder:
    """Encodes texts on a device until the device fails, then on the CPU."""

    def __init__(
        self, encoder: DeviceEncoder, vocabulary: Vocabulary, open_host: Callable[[], HostEncoder]
    ) -> None:
        """Encode with `encoder` until it raises DeviceError, then with the encoder of `open_host`.

        encoder: cuts texts between words, by the pattern of `vocabulary`.
        """
        self._device: DeviceEncoder | None = encoder
        self._host: HostEncoder | None = None
        self._vocabulary, self._open_host = vocabulary, open_host

    def expect(self, text_bytes: int | None) -> None:
        """Announce the length of the next text in bytes; see `Expecting`."""
        if isinstance(self._device, Expecting):
            self._device.expect(text_bytes)

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        slices = SliceReader(source, self._vocabulary.cut)
        if self._device is not None:
            reader = _InFlight(slices)
            try:
                with closing(self._device.encode_slices(reader, allocate)) as encoded_slices:
                    for encoded in encoded_slices:
                        reader.forget_first()
                        yield encoded
                return
            except DeviceError as error:
                _log.warning("%s; the CPU does the rest", error)
            # The CPU encodes the slices that were in flight, then the rest of the text.
            self._device, self._host = None, self._open_host()
            for taken in reader.end():
                yield _encode_again(self._host, taken, allocate)
        assert self._host is not None
        yield from self._host.encode_slices(slices, allocate)


def _encode_again(host: HostEncoder, taken: Slice, allocate: Allocate) -> EncodedSlice:
    read = taken.read(np.empty(taken.length + PADDING, np.uint8))
    return settled(host.slices.encode(read, 0)[0], allocate)


class _InFlight:
    """A reader of slices that remembers the slices on a device until their ids have arrived.

    If a device fails, the memory into which text was read is lost. A copy of each slice is
    therefore kept on the host, unless the slice can be read from its file again.
    """

    def __init__(self, reader: SliceReader) -> None:
        self._reader = reader
        self._kept: deque[tuple[Slice, NDArray[np.uint8] | None]] = deque()
        self._idle: deque[NDArray[np.uint8]] = deque()  # memory for copies
        self._reading = threading.Lock()
        self._has_ended = False

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice, see `SliceSource`; None after `end` was called."""
        from llmgpu.gpu.commands import parallel_copy

        with self._reading:
            if self._has_ended:
                return None
            unread = self._reader.take(len(buffer))
            if unread is not None:
                self._kept.append((unread, None))
                return unread.read(buffer)
            memory = self._idle.popleft() if self._idle else buffer[:0]
            if len(memory) < len(buffer):
                memory = np.empty(len(buffer), np.uint8)
            piece = self._reader.read(memory[: len(buffer)])
            if piece is None:
                return None
            # An empty slice is not sent to the device.
            if piece.main_end or len(piece.document_starts):
                self._kept.append((piece, memory))
            if piece.apart:
                return piece
            text = buffer[: piece.length]
            parallel_copy(text, piece.text)
            return replace(piece, text=text, buffer=buffer)

    def forget_first(self) -> None:
        """Drop the oldest slice in flight, because its ids have arrived."""
        _, memory = self._kept.popleft()
        if memory is not None:
            self._idle.append(memory)

    def end(self) -> list[Slice]:
        """Return the slices whose ids have not arrived, and let every later `read` return None.

        Waits until a `read` in another thread returns.
        """
        self._has_ended = True
        with self._reading:
            return [taken for taken, _ in self._kept]
