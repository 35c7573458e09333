"""Counting the distinct words of a corpus on the host, with the CPU engine or NumPy.

- One thread reads the text, slice by slice; other threads count the slices independently.
- Each counting thread has its own table. When a table has reached its limit of memory, its words
  move to an accumulator that all threads share.
- At the end all words are added to the table of the first thread.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int64
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import as_pattern
from llmgpu.bpe.pretokens.slices import MAX_WORD_BYTES, Slice, SliceReader, word_too_long
from llmgpu.bpe.words.distinct_words import DistinctWords, list_words, number_words
from llmgpu.bpe.words.spilling import (
    OnWords,
    WordAccumulator,
    default_memory_bytes,
    no_words,
)
from llmgpu.cpu.library import EngineObject, default_threads, library
from llmgpu.machine import Costs
from llmgpu.pipeline import in_order
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus

SLICE_BYTES = 2 << 20
_OBJECT_BYTES = 80  # memory of a word and its count, in bytes, besides the bytes of the word
# Memory of the tables (COSTS), and of each thread that counts a slice (THREAD_BYTES).
NUMPY_COSTS, NUMPY_THREAD_BYTES = Costs(fixed=24 << 20, per_byte=4, per_word=220), 20 * SLICE_BYTES
ENGINE_COSTS, ENGINE_THREAD_BYTES = Costs(fixed=11 << 20, per_byte=4, per_word=220), 2 * SLICE_BYTES


def memory_costs(threads: int | None) -> Costs:
    """Return the memory that counting needs; threads: see `count_words`."""
    threads = default_threads() if threads is None else threads
    costs, of_thread = NUMPY_COSTS, NUMPY_THREAD_BYTES
    if library() is not None:
        costs, of_thread = ENGINE_COSTS, ENGINE_THREAD_BYTES
    return costs._replace(fixed=costs.fixed + threads * of_thread)


def count_words(
    corpus: Corpus,
    pattern: str | Pattern,
    progress: Progress = no_progress,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    slice_bytes: int = SLICE_BYTES,
    on_words: OnWords = no_words,
) -> DistinctWords:
    """Read a corpus to its end and count its words under a pattern.

    threads: number of counting threads; None: `default_threads`.
    memory_bytes: approximate memory of words before they are spilled to a temporary file; None:
        `default_memory_bytes`.
    slice_bytes: approximate size of a slice.
    on_words: called with upper estimates of the number of distinct words so far and of their bytes.
    The result does not depend on `threads`, `memory_bytes` and `slice_bytes`.
    """
    threads = default_threads() if threads is None else threads
    memory = default_memory_bytes() if memory_bytes is None else memory_bytes
    words = WordAccumulator(memory // 2)
    found = as_pattern(pattern)
    counters = [HostCounter(found, words, memory // (2 * threads)) for _ in range(threads)]
    idle = list(counters)
    reader = SliceReader(corpus, found)
    # One thread reads slices into free buffers, ahead of the counting threads. There is a buffer
    # for the slice of each thread, and one for the slice that is being read.
    ahead = threads + 1
    buffers = [np.empty(slice_bytes, np.uint8) for _ in range(ahead)]

    def read_slices() -> Iterator[Slice]:
        for slices in count(1):
            piece = reader.read(buffers.pop())
            if piece is None:
                return
            progress("counting words", corpus.bytes_read, corpus.total_bytes)
            yield piece
            if slices >= ahead:  # by now a slice has been counted
                on_words(*_sizes_so_far(words, counters, slices))

    def count_one(piece: Slice) -> NDArray[np.uint8]:
        counter = idle.pop()  # never empty, because there is a counter for each thread
        counter.add(piece)
        idle.append(counter)
        return piece.buffer

    for buffer in in_order(read_slices(), count_one, ahead, threads=threads):
        buffers.append(buffer)
    # Collect the words of all counters in the first counter.
    first, *others = counters
    for counter in others:
        first.absorb(counter)
    first.hand_over()
    return words.result()


def _sizes_so_far(
    words: WordAccumulator, counters: Sequence[HostCounter], slices: int
) -> tuple[int, int]:
    """Return upper estimates of the number of distinct words read so far, and of their bytes.

    The tables were measured after some of the slices. The estimates assume as many words in the
    other slices.
    """
    measured = [(*words.size, 0), *(counter.measured for counter in counters)]
    count, nbytes, counted = (sum(column) for column in zip(*measured, strict=True))
    return count * slices // max(counted, 1), nbytes * slices // max(counted, 1)


class HostCounter:
    """Counts the words of slices in a table of bounded memory. Only one thread may call it.

    measured: number of words in the table, of their bytes, and of slices counted, at the last
        measurement. Any thread may read this tuple.
    """

    def __init__(self, pattern: Pattern, words: WordAccumulator, memory_bytes: int) -> None:
        """Start without words. A table of more than `memory_bytes` moves its words to `words`."""
        self._pattern = pattern
        self._words = words
        self._memory_bytes = memory_bytes
        self._table: Any = make_table(pattern)  # a table of the same class in all counters
        self._slices = 0
        self.measured = 0, 0, 0

    def add(self, piece: Slice) -> None:
        """Count the words of a slice; InputError for a word of more than MAX_WORD_BYTES."""
        self._table.add(piece)
        self._slices += 1
        # Measuring may visit all words, so measure only after 25 % more slices.
        if 4 * self._slices > 5 * self.measured[2]:
            self.measured = *self._table.size, self._slices
        self._bound_memory()

    def absorb(self, other: HostCounter) -> None:
        """Add the words of another counter, which is not used any more."""
        self._table.absorb(other._table)
        self._bound_memory()

    def _bound_memory(self) -> None:
        if self._table.nbytes > self._memory_bytes:
            self.hand_over()

    def hand_over(self) -> None:
        """Move all words to the shared accumulator."""
        self._words.add(self._table.words())
        self._table = make_table(self._pattern)
        self.measured = 0, 0, self._slices


class CountTable:
    """The words of one thread with their counts, in a dictionary. Used without the engine."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._counts: Counter[bytes] = Counter()
        self._word_bytes = 0

    @property
    def nbytes(self) -> int:
        """Estimated memory of the words, in bytes."""
        of_objects = _OBJECT_BYTES * len(self._counts) + self._word_bytes
        return sys.getsizeof(self._counts) + of_objects

    @property
    def size(self) -> tuple[int, int]:
        """The number of words, and the number of their bytes."""
        return len(self._counts), self._word_bytes

    def add(self, piece: Slice) -> None:
        """Count the words of a slice; InputError for a word of more than MAX_WORD_BYTES."""
        mask = self._pattern.start_mask(piece.text, piece.starts)
        # The start of each word, then the end of the last word: int64 (words + 1,).
        bounds = np.append(np.flatnonzero(mask[: piece.main_end]), piece.main_end)
        longest = int(np.diff(bounds).max(initial=0))
        if longest > MAX_WORD_BYTES:
            raise word_too_long(longest)
        words, numbers = number_words(piece.buffer, bounds)
        self._add(dict(zip(words, np.bincount(numbers).tolist(), strict=True)))

    def absorb(self, other: CountTable) -> None:
        """Add all words of another table with their counts."""
        self._add(other._counts)

    def _add(self, counts: Mapping[bytes, int]) -> None:
        known = len(self._counts)
        self._counts.update(counts)
        self._word_bytes += sum(map(len, islice(self._counts, known, None)))

    def words(self) -> DistinctWords:
        """Return all words with their counts, in no order."""
        return list_words(self._counts, self._counts.values())


class EngineCountTable(EngineObject):
    """The words of one thread with their counts, in a table of the CPU engine."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__("counter", pattern.for_engine())
        self._pattern = pattern

    @property
    def nbytes(self) -> int:
        """Memory that the words take, in bytes."""
        table_bytes = c_int64()
        self._call("counter_size", None, table_bytes)
        return table_bytes.value

    @property
    def size(self) -> tuple[int, int]:
        """The number of words and the number of their bytes. Computing them visits every word."""
        nbytes, table_bytes = c_int64(), c_int64()
        words = self._call("counter_size", nbytes, table_bytes)
        return words, nbytes.value

    def add(self, piece: Slice) -> None:
        """Count the words of a slice; InputError for a word of more than MAX_WORD_BYTES."""
        marks = None
        if self._pattern.for_engine().is_marked:
            marks = self._pattern.start_mask(piece.text, piece.starts)
        text, starts = piece.text, np.ascontiguousarray(piece.starts)
        arguments = text, marks, len(text), piece.main_end, starts, len(starts), MAX_WORD_BYTES
        if too_long := self._call("count", *arguments):
            raise word_too_long(too_long)

    def absorb(self, other: EngineCountTable) -> None:
        """Add all words of another table with their counts."""
        self._call("counter_absorb", other)

    def words(self) -> DistinctWords:
        """Return all words with their counts, in no order."""
        words, nbytes = self.size
        data, counts = np.empty(nbytes, np.uint8), np.empty(words, np.int64)
        offsets = np.zeros(words + 1, np.int64)
        self._call("counter_take", data, offsets[1:], counts)
        return DistinctWords(data, offsets, counts)


def make_table(pattern: Pattern) -> CountTable | EngineCountTable:
    """Return an empty table: the CPU engine's, or a `CountTable` if there is no CPU engine."""
    return CountTable(pattern) if library() is None else EngineCountTable(pattern)
