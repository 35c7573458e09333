"""Counting the distinct words of a corpus on processors, with NumPy.

- One thread reads the text and cuts it into pieces where words start: nothing before that matters
  to the words of a piece, so pieces are counted independently, by other threads.
- Each of these has a table of its own; NumPy lets the others work during its larger operations. A
  table that has its share of memory hands its words over and starts empty.
- At the end the first table takes in the words of all others.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.pattern import LOOKAHEAD, context_at, start_mask
from llmgpu.bpe.word_runs import WordAccumulator, default_memory_bytes
from llmgpu.bpe.word_table import PADDING, WordTable
from llmgpu.bpe.words import MAX_WORD_BYTES, DistinctWords, word_too_long
from llmgpu.processors import usable_processors
from llmgpu.progress import Progress, no_progress

READ_BYTES = 2 << 20  # text in a piece
MOST_THREADS = 4  # by default: between NumPy's operations only one can run
_WINDOW_BYTES = 1 << 12  # text at the end of a piece in which the start of a word is looked for


def default_threads() -> int:
    """Return how many processors this process may use, MOST_THREADS at most."""
    return min(usable_processors(), MOST_THREADS)


def count_words(
    corpus: Corpus,
    pattern: str,
    progress: Progress = no_progress,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    read_bytes: int = READ_BYTES,
) -> DistinctWords:
    """Read a corpus to its end and count its words under a pattern.

    threads: how many count at a time; None: `default_threads`.
    memory_bytes: what words may take before they are moved to a temporary file, about; None:
        `default_memory_bytes`.
    read_bytes: text in a piece; it grows if a word is longer.
    The words and their counts don't depend on these.

    Raises:
        InputError: the corpus can't be read, or a word has more than MAX_WORD_BYTES.
        OutputError: the temporary file can't be written.
    """
    threads = default_threads() if threads is None else threads
    memory = default_memory_bytes() if memory_bytes is None else memory_bytes
    words = _SharedWords(memory // 2)
    counters = [_Counter(pattern, words, memory // (2 * threads)) for _ in range(threads)]
    idle = list(counters)

    def count(piece: _Piece) -> None:
        counter = idle.pop()  # there is one for each thread
        counter.add(piece)
        idle.append(counter)

    reader = _PieceReader(corpus, pattern)
    buffers = [np.empty(read_bytes, np.uint8) for _ in range(threads + 1)]
    pending: deque[tuple[Future[None], NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        while piece := reader.read(buffers.pop()):
            pending.append((pool.submit(count, piece), piece.buffer))
            progress("counting words", corpus.bytes_read, corpus.total_bytes)
            if not buffers:
                counted, buffer = pending.popleft()
                counted.result()
                buffers.append(buffer)
        for counted, _ in pending:
            counted.result()
    first, *others = counters
    for counter in others:
        first.absorb(counter)
    first.hand_over()
    return words.result()


class _SharedWords:
    """A WordAccumulator for several threads."""

    def __init__(self, memory_bytes: int) -> None:
        self._words = WordAccumulator(memory_bytes)
        self._lock = threading.Lock()
        self.result = self._words.result

    def add(self, words: DistinctWords) -> None:
        with self._lock:
            self._words.add(words)


class _Counter:
    """The words that one thread counts."""

    def __init__(self, pattern: str, words: _SharedWords, memory_bytes: int) -> None:
        """Start with no words; those that take `memory_bytes` are moved to `words`."""
        self._pattern = pattern
        self._words = words
        self._memory_bytes = memory_bytes
        self._start()

    def _start(self) -> None:
        self._table = WordTable()
        self._counts = GrowableArray(np.int64)

    def add(self, piece: _Piece) -> None:
        """Count the words of a piece."""
        self._add(piece.buffer, piece.word_bounds(self._pattern), 1)

    def absorb(self, other: _Counter) -> None:
        """Count all words that another counter has, as often as it has them."""
        table = other._table
        padded = np.concatenate([table.data, np.zeros(PADDING, np.uint8)])
        self._add(padded, table.offsets, other._counts.values)

    def _add(
        self, padded: NDArray[np.uint8], bounds: NDArray[np.int64], counts: NDArray[np.int64] | int
    ) -> None:
        """Add words that lie end to end, each one time or as often as `counts` says."""
        numbers = self._table.number_padded(padded, bounds[:-1], bounds[1:])
        self._counts.append(np.zeros(len(self._table) - len(self._counts), np.int64))
        np.add.at(self._counts.values, numbers, counts)
        if self._table.nbytes + self._counts.nbytes > self._memory_bytes:
            self.hand_over()

    def hand_over(self) -> None:
        """Move all words to where they are added up."""
        table = self._table
        self._words.add(DistinctWords(table.data, table.offsets, self._counts.values))
        self._start()


@dataclass(frozen=True, eq=False)
class _Piece:
    """Text from the start of a word to the end of one.

    buffer: uint8, the text, what follows it, and PADDING bytes.
    length: bytes of the text.
    known: bytes of the text and of what follows, as far as it matters to the text.
    document_starts: int64, ascending positions in [0, known].
    closed: a document ends with the text.
    """

    buffer: NDArray[np.uint8]
    length: int
    known: int
    document_starts: NDArray[np.int64]
    closed: bool

    def word_bounds(self, pattern: str) -> NDArray[np.int64]:
        """Return where each word starts, and where the last one ends."""
        text = self.buffer[: self.known]
        mask = start_mask(text, pattern, self.document_starts, closed=self.closed)
        bounds = np.append(np.flatnonzero(mask[: self.length]), self.length)
        if self.length > MAX_WORD_BYTES:
            longest = int(np.diff(bounds).max())
            if longest > MAX_WORD_BYTES:
                raise word_too_long(longest)
        return bounds


class _PieceReader:
    """Reads a corpus and cuts it into pieces."""

    def __init__(self, corpus: Corpus, pattern: str) -> None:
        self._corpus = corpus
        self._pattern = pattern
        self._tail = np.empty(0, np.uint8)  # read already, not in any piece yet
        self._tail_starts = np.empty(0, np.int64)  # where documents begin in it
        self._ended = False

    def read(self, buffer: NDArray[np.uint8]) -> _Piece | None:
        """Return the next piece, in this buffer or in a larger one; None at the end."""
        while not self._ended:
            if len(buffer) < 2 * len(self._tail) + PADDING + 1:
                buffer = np.empty(2 * len(buffer) + PADDING, np.uint8)
                continue
            piece = self._read(buffer)
            if piece.length:
                return piece
            if len(self._tail) > MAX_WORD_BYTES + LOOKAHEAD:
                raise word_too_long(len(self._tail) - LOOKAHEAD)
        return None

    def _read(self, buffer: NDArray[np.uint8]) -> _Piece:
        length, starts, closed = self._fill(buffer[:-PADDING])
        cut = length if closed else self._last_start(buffer[:length], starts)
        self._tail = buffer[cut:length].copy()
        self._tail_starts = starts[starts > cut] - cut
        known = min(cut + LOOKAHEAD, length)
        return _Piece(buffer, cut, known, starts[starts <= known], closed)

    def _fill(self, buffer: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64], bool]:
        """Put the tail into `buffer` and read until that is full or the corpus ends.

        Returns how many bytes there are, where documents begin, and whether one ends with them.
        """
        length, starts = len(self._tail), [self._tail_starts]
        buffer[:length] = self._tail
        closed = False
        while length < len(buffer) and not self._ended:
            fill = self._corpus.read_into(buffer[length:])
            starts.append(fill.document_starts + length)
            length += fill.length
            closed, self._ended = fill.closed or fill.end, fill.end
        return length, np.concatenate(starts), closed

    def _last_start(self, text: NDArray[np.uint8], document_starts: NDArray[np.int64]) -> int:
        """Return the last place in an open text at which a word is known to start."""
        known = len(text) - LOOKAHEAD
        window = _WINDOW_BYTES
        first = known
        while first > 0:
            first = max(0, known - window)
            context = context_at(text, first, document_starts, b"")
            starts = document_starts[document_starts >= first] - first
            mask = start_mask(text[first:], self._pattern, starts, context, closed=False)
            found = np.flatnonzero(mask[: known - first])
            if len(found):
                return first + int(found[-1])
            window *= 2
        return 0
