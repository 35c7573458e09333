"""Encoding on the host: a text is cut into slices, which the C engine or NumPy encodes.

- A few threads encode a slice each, while another thread reads the next slices.
- An engine with its own threads encodes one slice at a time. It also reads the slices of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import (
    Allocate,
    CollectedIds,
    EncodedSlice,
    NoTokenError,
    new_ids,
)
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.pipeline import in_order
from llmgpu.text.corpus import TextSource

# Memory is allocated for one slice per thread and this many further slices: slices read ahead, and
# encoded slices that wait for earlier slices.
_SPARE_SLICES = 2
# Size of the first slice, in bytes, for an engine that reads slices of a file itself. Python reads
# the first slice, and the engine reads the others.
_FIRST_BYTES = 1 << 16
# Number of slices that are read as one if ids are written straight to their final place.
_LARGE = 16


class HostSlices(Protocol):
    """Encodes slices; any number of threads may call `encode`.

    is_parallel: whether `encode` has its own threads, and reads slices of a file itself.
    """

    is_parallel: bool

    def encode(
        self, piece: Slice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and the position in the slice at which its last token ends.

        piece: the slice; its text is in memory unless `is_parallel`. entry: the position at which
        the first token starts. memory: an array for the ids. Used only if it has PADDING more
        elements than the slice has bytes.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token,
        InputError for a file that can't be read.
        """

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each word; `words` is not empty."""


class HostEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    pattern: the pattern that cuts texts. slices: encodes slices of up to `slice_bytes`. threads:
    number of threads that encode.
    """

    def __init__(
        self, vocabulary: Vocabulary, slices: HostSlices, slice_bytes: int, threads: int
    ) -> None:
        """Encode with `slices`.

        slice_bytes: bytes of a slice, 1 or more. threads: number of threads that encode. The ids
        depend on neither.
        """
        self.pattern = vocabulary.cut
        self.slice_bytes = slice_bytes
        self._lookahead = stream_lookahead(vocabulary)
        # With lookahead, a slice can't be encoded before the end of the previous slice's last token
        # is known.
        self.threads = threads if self._lookahead is None else 1
        self.slices = slices

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        return self.encode_slices(SliceReader(source, self.pattern, self._lookahead), allocate)

    def encode_slices(
        self, reader: SliceReader, allocate: Allocate = new_ids
    ) -> Iterator[EncodedSlice]:
        """Yield the ids of the slices left in `reader`, in order; see `encode`."""
        is_alone = self.threads == 1
        at_a_time = 1 if self.slices.is_parallel else self.threads
        nbytes = self.slice_bytes + (self._lookahead or 0)
        idle = [_Memory(nbytes)]
        # If slices are encoded one at a time, the final place of a slice's ids is known.
        collected = allocate if isinstance(allocate, CollectedIds) and at_a_time == 1 else None
        text = _Text(reader, self.slices, idle, collected)
        jobs = text.jobs()
        first = next(jobs, None)
        if first is None:
            return
        # Allocate memory for further slices, or for fewer if memory runs out. A text of one slice
        # needs no further memory, and neither does a single thread.
        with suppress(MemoryError):
            while not (is_alone or first[0].end) and len(idle) < at_a_time + _SPARE_SLICES - 1:
                idle.append(_Memory(nbytes))
        # Encode slices in threads, and yield their ids in order.
        every, ahead = chain([first], jobs), 1 + len(idle)
        with closing(
            in_order(every, text.encode, ahead, threads=at_a_time, reader_thread=True)
        ) as done:
            for encoded, memory in done:
                yield settled(encoded, allocate)
                idle.append(memory)


class _Memory:
    """Memory for one slice: its text, uint8, and its ids, uint32."""

    def __init__(self, slice_bytes: int) -> None:
        self.text = np.empty(slice_bytes + PADDING, np.uint8)
        self.ids = np.empty(slice_bytes + PADDING, np.uint32)


_Job = tuple[Slice, _Memory]  # a slice, and memory for its text and ids


class _Text:
    """A text that is being encoded: `jobs` reads its slices, and `encode` encodes one.

    idle: memory that no slice in flight uses. collected: the array of all ids, if ids are written
        straight to their final place.
    """

    def __init__(
        self,
        reader: SliceReader,
        slices: HostSlices,
        idle: list[_Memory],
        collected: CollectedIds | None,
    ) -> None:
        self._reader, self._slices, self._idle = reader, slices, idle
        self._collected = collected
        self._read_bytes = 0
        # Start of the first token in the next slice: 0, unless the text may be cut anywhere. Then a
        # single thread encodes.
        self._entry = 0
        self._ids = 0 if collected is None else len(collected)  # number of ids so far

    def jobs(self) -> Iterator[_Job]:
        memory = self._idle.pop()
        while (taken := self._next(memory.text)) is not None:
            self._read_bytes += taken.main_end
            yield taken, memory
            memory = self._idle.pop()

    def _next(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice, or None at the end of the text.

        If the end of a slice of a file is known without reading, the slice is not read here: the
        thread that encodes the slice reads it.
        """
        reader, nbytes = self._reader, len(buffer)
        if not self._slices.is_parallel:
            return reader.take(nbytes) or reader.read(buffer)
        if self._collected is not None:
            nbytes = max(nbytes, min(_LARGE * nbytes, self._collected.room - self._read_bytes))
        taken = reader.take(nbytes, is_full=False)
        first = slice(None) if self._read_bytes else slice(_FIRST_BYTES + PADDING)
        return taken or reader.read(buffer[first])

    def encode(self, job: _Job) -> tuple[EncodedSlice, _Memory]:
        """Return the ids of a slice, in its memory or in their final place."""
        (taken, memory), entry = job, self._entry
        if not self._slices.is_parallel:
            taken = taken.read(memory.text)
        place = None
        if self._collected is not None:
            place = self._collected.place(self._ids, taken.main_end + PADDING)
        encoded, stopped = self._slices.encode(taken, entry, memory.ids if place is None else place)
        # The last token may reach into the next slice, whose first token then starts after it.
        self._entry = max(stopped, entry) - taken.main_end
        self._ids += len(encoded.ids)
        return encoded, memory


def settled(encoded: EncodedSlice, allocate: Allocate) -> EncodedSlice:
    """Return a slice whose ids are in memory of their own, not in memory that is used again."""
    if encoded.ids.base is None:
        return encoded
    ids = allocate(len(encoded.ids))
    if ids.ctypes.data != encoded.ids.ctypes.data:  # `_Text` wrote the ids elsewhere
        ids[:] = encoded.ids
    return replace(encoded, ids=ids)


def stream_lookahead(vocabulary: Vocabulary) -> int | None:
    """Return the number of bytes after a slice that its last token may need.

    Returns None if text is cut only between words. Only greedy matching with pattern "none" cuts
    text anywhere.
    """
    cut_anywhere = vocabulary.pattern == "none" and vocabulary.match == "greedy"
    return vocabulary.trie.longest if cut_anywhere else None


def require_tokens(
    vocabulary: Vocabulary, piece: Slice, ids: NDArray[np.uint32], entry: int
) -> None:
    """Raise NoTokenError for the first byte of a slice that has no token.

    ids: the ids of the slice, with NO_TOKEN for a byte without a token. entry: position of the
    first token.
    """
    if ids.max(initial=0) != NO_TOKEN:
        return
    before = ids[: np.argmax(ids == NO_TOKEN)]
    position = entry + int(vocabulary.token_spans[before].sum())
    raise NoTokenError(int(piece.text[position]), piece.offset + position)
