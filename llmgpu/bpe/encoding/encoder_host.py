"""Encoding on the host: slices of a text, each encoded by one of the host's engines.

- A few threads encode a slice each, while another one reads the next slices.
- An engine with threads of its own encodes one slice at a time, and reads slices of a file itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain, count
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

# slices beside one for each thread: read already, or encoded and waiting for their turn
_SPARE_SLICES = 2
_FIRST_BYTES = 1 << 16  # of the first slice of a file; the later slices need not be read in turn
_LARGE = 16  # slices read as one when their ids are written straight to their final place


class HostSlices(Protocol):
    """Encodes slices in any number of threads.

    is_parallel: `encode` has threads of its own, and reads slices of a file itself.
    """

    is_parallel: bool

    def encode(
        self, piece: Slice, entry: int, memory: NDArray[np.uint32] | None = None
    ) -> tuple[EncodedSlice, int]:
        """Return the ids of a slice, and where its last token ends.

        piece: read, unless `is_parallel`. entry: where in the slice the first token starts.
        memory: a place for the ids, used if it has room for PADDING more than the slice has bytes.

        Raises NoTokenError for a byte without a token if the vocabulary has no unknown token,
        InputError for a file that can't be read.
        """
        ...

    def match_words(self, words: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint32]]:
        """Return the ids of each word; `words` is not empty."""
        ...


class HostEncoder:
    """Encodes texts with a vocabulary, one text at a time.

    pattern: cuts the text. slices: encodes it, `slice_bytes` at a time in each of `threads`.
    """

    def __init__(
        self, vocabulary: Vocabulary, slices: HostSlices, slice_bytes: int, threads: int
    ) -> None:
        """Encode with `slices`, `slice_bytes` (1 or more) at a time in each of `threads`.

        The ids depend neither on `slice_bytes` nor on the number of threads.
        """
        self.pattern = vocabulary.cut
        self.slice_bytes = slice_bytes
        self._lookahead = stream_lookahead(vocabulary)
        if self._lookahead is not None:
            threads = 1  # each slice needs the end of the last token of the slice before
        self.threads = threads
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
        collected = allocate if isinstance(allocate, CollectedIds) else None
        text = _Text(reader, self.slices, idle, collected, is_alone=is_alone)
        jobs = text.jobs()
        first = next(jobs, None)
        if first is None:
            return
        # Make memory for more slices in flight, for fewer where there is little memory. A text of
        # one slice is encoded by this thread.
        with suppress(MemoryError):
            while not (is_alone or first.taken.end) and len(idle) < at_a_time + _SPARE_SLICES - 1:
                idle.append(_Memory(nbytes))
        every, ahead = chain([first], jobs), 1 + len(idle)
        with closing(
            in_order(every, text.encode, ahead, threads=at_a_time, reader_thread=True)
        ) as done:
            for job in done:
                assert job.encoded is not None
                yield settled(job.encoded, allocate)
                idle.append(job.memory)


class _Memory:
    """Memory for one slice: its text, uint8, and its ids, uint32."""

    def __init__(self, slice_bytes: int) -> None:
        self.text = np.empty(slice_bytes + PADDING, np.uint8)
        self.ids = np.empty(slice_bytes + PADDING, np.uint32)


@dataclass(eq=False)
class _Job:
    """A slice with its number in the text, from 0, and its memory; encoded: set by `encode`."""

    number: int
    taken: Slice
    memory: _Memory
    encoded: EncodedSlice | None = None


class _Text:
    """A text that is being encoded.

    idle: memory that no slice in flight uses. collected: the array for the ids' final places. An
    id's place is known when all earlier ids are counted. is_alone: one thread reads and encodes.
    """

    def __init__(
        self,
        reader: SliceReader,
        slices: HostSlices,
        idle: list[_Memory],
        collected: CollectedIds | None,
        *,
        is_alone: bool,
    ) -> None:
        self._reader, self._slices, self._idle = reader, slices, idle
        self._collected, self._is_alone = collected, is_alone
        self._read_bytes = 0
        self._entry = 0  # offset of the first token in the next slice, if text is cut anywhere
        # encoded slices without a final place for their ids, by number
        self._encoded: dict[int, _Job] = {}
        self._placing = threading.Lock()
        self._placed = 0  # number of slices whose ids have a final place
        self._ids = 0 if collected is None else len(collected)  # number of ids with a final place

    def jobs(self) -> Iterator[_Job]:
        """Yield the slices in order, each with its memory."""
        for number in count():
            memory = self._idle.pop()
            taken = self._next(memory.text)
            if taken is None:
                return
            self._read_bytes += taken.main_end
            yield _Job(number, taken, memory)

    def _next(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice.

        Unread if it is a slice of a file that the encoding thread can read.

        A file counts as readable once its first slice was read.
        """
        reader, nbytes = self._reader, len(buffer)
        if self._is_alone:
            return reader.read(buffer)
        if not self._slices.is_parallel:
            return reader.take(nbytes) or reader.read(buffer)
        if self._collected is not None:
            nbytes = max(nbytes, min(_LARGE * nbytes, self._collected.room - self._read_bytes))
        taken = reader.take(nbytes, is_full=False)
        first = slice(None) if self._read_bytes else slice(_FIRST_BYTES + PADDING)
        return taken or reader.read(buffer[first])

    def encode(self, job: _Job) -> _Job:
        """Encode a slice; the ids are in the job's memory, or in their final place."""
        taken, memory, entry = job.taken, job.memory.ids, 0
        if not self._slices.is_parallel:
            taken = taken.read(job.memory.text)
        if self._is_alone:
            entry = self._entry
        if self._collected is not None and self._placed == job.number:
            place = self._collected.place(self._ids, taken.main_end + PADDING)
            memory = memory if place is None else place
        job.encoded, stopped = self._slices.encode(taken, entry, memory)
        if self._is_alone:
            # The last token may reach into the next slice, so the first token there starts later.
            self._entry = max(stopped, entry) - taken.main_end
        if self._collected is not None:
            self._put(job, self._collected)
        return job

    def _put(self, job: _Job, collected: CollectedIds) -> None:
        """Put the ids of a slice, and of the later slices that waited for it, in their final place.

        If an earlier slice is not encoded yet, the thread that encodes it does so.
        """
        with self._placing:
            self._encoded[job.number] = job
            while (ready := self._encoded.pop(self._placed, None)) and ready.encoded is not None:
                ids = ready.encoded.ids
                place = collected.place(self._ids, len(ids))
                if place is not None:
                    if place.ctypes.data != ids.ctypes.data:
                        place[:] = ids
                    ready.encoded = replace(ready.encoded, ids=place)
                self._ids += len(ids)
                self._placed += 1


def settled(encoded: EncodedSlice, allocate: Allocate) -> EncodedSlice:
    """Return a slice with its ids in memory of their own, not in part of a larger array."""
    if encoded.ids.base is None:
        return encoded
    ids = allocate(len(encoded.ids))
    if ids.ctypes.data != encoded.ids.ctypes.data:  # not written straight to their final place
        ids[:] = encoded.ids
    return replace(encoded, ids=ids)


def stream_lookahead(vocabulary: Vocabulary) -> int | None:
    """Return the lookahead of slices that are cut anywhere.

    None if slices are cut between words.
    """
    cut_anywhere = vocabulary.pattern == "none" and vocabulary.match == "greedy"
    return vocabulary.trie.longest if cut_anywhere else None


def require_tokens(
    vocabulary: Vocabulary,
    piece: Slice,
    ids: NDArray[np.uint32],
    entry: int,
    read_byte: Callable[[int], int] | None = None,
) -> None:
    """Raise NoTokenError for the first byte of a slice whose id is NO_TOKEN.

    ids: of the slice. entry: position of the first token. read_byte: returns a byte of a slice
        whose text is not in memory.
    """
    if ids.max(initial=0) != NO_TOKEN:
        return
    before = ids[: np.argmax(ids == NO_TOKEN)]
    position = entry + int(vocabulary.token_spans[before].sum())
    byte = int(piece.text[position]) if read_byte is None else read_byte(position)
    raise NoTokenError(byte, piece.offset + position)
