"""Adding up words that arrive in portions with their counts, in bounded memory.

- Portions are kept in memory up to a share of the free memory. Then equal words are added up. If
  this does not free enough memory, the words are spilled: written as a run, sorted by bytes, to a
  temporary file.
- At the end all runs are merged, a block of each run at a time. The words up to the smallest of the
  blocks' last words can't occur in later blocks, so their counts are final and are written to
  another run.
- A run consists of blocks: lengths and counts (int64 each), then the words' bytes. All runs are in
  one file without a name, in the folder for temporary files. So no file is left when the process
  ends.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from llmgpu.bpe.arrays import blocks, offsets_of
from llmgpu.bpe.words.distinct_words import DistinctWords, add_up
from llmgpu.files import output_errors
from llmgpu.machine import free_memory

MEMORY_SHARE = 4  # words may use 1 / MEMORY_SHARE of the free memory
UNKNOWN_MEMORY = 4 << 30  # free memory that is assumed if the system does not report it
# Number of copies of the words in memory, at most, while they are added up and sorted.
_WORKING_COPIES = 4
_MOST_MERGED = 32  # number of runs that are merged at a time, at most
_LEAST_BLOCK, _MOST_BLOCK = 1 << 12, 4 << 20  # limits on the bytes of a block


# A callback that gets upper estimates of the number of distinct words so far, and of their bytes.
OnWords = Callable[[int, int], None]


def no_words(words: int, nbytes: int) -> None:
    """A callback that does nothing."""


def default_memory_bytes() -> int:
    """Return the default limit of memory for words: a share of the memory that is free now."""
    free = free_memory()
    return (UNKNOWN_MEMORY if free is None else free) // MEMORY_SHARE


class WordAccumulator:
    """Adds up words that arrive in portions with their counts. Any thread may call its methods.

    Memory is bounded until `result`, which needs memory for all words.
    """

    def __init__(self, memory_bytes: int | None = None) -> None:
        """Start with no words.

        memory_bytes: approximate memory of the words; None: `default_memory_bytes`.
        """
        memory = default_memory_bytes() if memory_bytes is None else memory_bytes
        self._most_bytes = memory // _WORKING_COPIES
        block_bytes = self._most_bytes // _MOST_MERGED
        self._block_bytes = min(max(block_bytes, _LEAST_BLOCK), _MOST_BLOCK)
        self._pieces: list[DistinctWords] = []
        self._runs: list[Run] = []
        self._file: RunFile | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> tuple[int, int]:
        """Upper bounds of the number of words added, and of their bytes."""
        with self._lock:
            spilled = [block for run in self._runs for block in run]
            words = sum(map(len, self._pieces)) + sum(block.words for block in spilled)
            data = sum(len(piece.data) for piece in self._pieces)
            return words, data + sum(block.data_bytes for block in spilled)

    def add(self, words: DistinctWords) -> None:
        """Add words with their counts.

        Raises InputError for too much text, OutputError if the temporary file can't be written.
        """
        if len(words) == 0:
            return
        with self._lock:
            self._pieces.append(words)
            if sum(piece.nbytes for piece in self._pieces) <= self._most_bytes:
                return
            words = add_up(self._pieces)
            self._pieces = [words]
            # Spill words even if they only exceed half of the limit. Otherwise little memory would
            # be free, and the words would soon be added up again.
            if words.nbytes > self._most_bytes // 2:
                self._write_run(words)

    def result(self) -> DistinctWords:
        """Return all words with the sums of their counts, and start again without words.

        If there was only one portion, its words are returned in their order; otherwise words are
        sorted by bytes. Raises the errors of `add`.
        """
        words = self._pieces[0] if len(self._pieces) == 1 else add_up(self._pieces)
        if self._file is None:
            self._pieces = []
            return words
        if len(words):
            self._write_run(add_up([words]))
        while len(self._runs) > 1:
            first, rest = self._runs[:_MOST_MERGED], self._runs[_MOST_MERGED:]
            merged = self._file.write(merge_runs([self._file.read(run) for run in first]))
            self._runs = [*rest, merged]
        words = self._file.read_whole(self._runs.pop())
        self._file.close()
        self._file = None
        return words

    def _write_run(self, words: DistinctWords) -> None:
        """Write words, the sum of all portions, to the temporary file, and free the portions."""
        self._pieces = []
        self._file = self._file or RunFile(self._block_bytes)
        self._runs.append(self._file.write([words]))


@dataclass(frozen=True)
class _Block:
    """A block of a run: its position in the file, its number of words, and the words' bytes."""

    position: int
    words: int
    data_bytes: int


Run = list[_Block]


class RunFile:
    """A temporary file of spilled words, in sorted runs.

    close: removes the file. The file is also removed when the object is deleted.
    """

    def __init__(self, block_bytes: int) -> None:
        """Create the file; block_bytes: size of a block, which has at least one word."""
        self._block_bytes = block_bytes
        self._name = f"a temporary file in {tempfile.gettempdir()} (set TMPDIR for another folder)"
        with output_errors(self._name):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self.close = weakref.finalize(self, self._file.close)
        self._end = 0

    def write(self, pieces: Iterable[DistinctWords]) -> Run:
        """Write words as one run; the words ascend from the first portion to the last."""
        return [block for piece in pieces for block in self._write_blocks(piece)]

    def _write_blocks(self, words: DistinctWords) -> Iterator[_Block]:
        # A word takes 16 bytes for its length and its count, besides its own bytes.
        for span in blocks(words.lengths + 16, self._block_bytes):
            part = words.take_range(span.start, span.stop)
            block = _Block(self._end, len(part), len(part.data))
            with output_errors(self._name):
                self._file.seek(self._end)
                for array in (part.lengths, part.counts, part.data):
                    self._file.write(np.ascontiguousarray(array).data)
            self._end += 16 * block.words + block.data_bytes
            yield block

    def read(self, run: Run) -> Iterator[DistinctWords]:
        """Yield the words of a run block by block."""
        for block in run:
            with output_errors(self._name):
                self._file.seek(block.position)
                content = self._file.read(nbytes := 16 * block.words + block.data_bytes)
                if len(content) < nbytes:
                    raise OSError("it was cut short while it was in use")
            lengths, counts = np.frombuffer(content, np.int64, 2 * block.words).reshape(2, -1)
            data = np.frombuffer(content, np.uint8, block.data_bytes, 16 * block.words)
            yield DistinctWords(data, offsets_of(lengths), counts)

    def read_whole(self, run: Run) -> DistinctWords:
        """Return all words of a run."""
        words, size = sum(block.words for block in run), sum(block.data_bytes for block in run)
        offsets, counts = np.zeros(words + 1, np.int64), np.empty(words, np.int64)
        data = np.empty(size, np.uint8)
        word = byte = 0
        for part in self.read(run):
            last, end = word + len(part), byte + len(part.data)
            offsets[word + 1 : last + 1] = part.offsets[1:] + byte
            counts[word:last], data[byte:end] = part.counts, part.data
            word, byte = last, end
        return DistinctWords(data, offsets, counts)


def merge_runs(runs: list[Iterator[DistinctWords]]) -> Iterator[DistinctWords]:
    """Merge runs of words; each run is an iterator of blocks. Yield words in ascending order."""
    heads = [next(run) for run in runs]
    while runs:
        # Words up to the smallest of the heads' last words can't occur in later blocks.
        bound = min(block.spell(len(block) - 1) for block in heads)
        taken = [bisect_right(range(len(block)), bound, key=block.spell) for block in heads]
        yield add_up(
            [block.take_range(0, count) for block, count in zip(heads, taken, strict=True)]
        )
        rest = [
            block.take_range(count, len(block)) if count < len(block) else next(run, None)
            for block, count, run in zip(heads, taken, runs, strict=True)
        ]
        runs = [run for run, block in zip(runs, rest, strict=True) if block is not None]
        heads = [block for block in rest if block is not None]
