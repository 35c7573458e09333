"""Counting the distinct words (pre-tokens) of a corpus: all that training needs to know of it.

Words are numbered by a table that compares bytes, so counts are exact. The result lists words by
their first occurrence, which does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.pattern import LOOKAHEAD, start_mask
from llmgpu.bpe.word_table import WordTable
from llmgpu.progress import Progress, no_progress

READ_BYTES = 4 << 20  # text worked on at a time


@dataclass(frozen=True, eq=False)
class DistinctWords:
    """Words and how often each occurs, by first occurrence.

    data: uint8, the words end to end.
    offsets: int64 (words + 1,), word k is data[offsets[k] : offsets[k + 1]].
    counts: int64 (words,).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]


class WordCounts:
    """Counts words that are given piece by piece.

    Memory is that of the distinct words: their bytes and about 70 to 100 bytes for each.
    """

    def __init__(self) -> None:
        self._table = WordTable()
        self._counts = GrowableArray(np.int64)
        self._first_seen = GrowableArray(np.int64)  # occurrences of any words before a word's first
        self._seen = 0

    def add(
        self, text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Count the words text[start:end].

        text: uint8 (n,).
        starts, ends: int64 (words,), each end behind its start.
        """
        known = len(self._table)
        numbers = self._table.number(text, starts, ends)
        self._counts.append(np.zeros(len(self._table) - known, np.int64))
        np.add.at(self._counts.values, numbers, 1)
        fresh = np.flatnonzero(numbers >= known)[::-1]
        first_seen = np.empty(len(self._table) - known, np.int64)
        # From the last occurrence back to the first, which overwrites the others.
        first_seen[numbers[fresh] - known] = self._seen + fresh
        self._first_seen.append(first_seen)
        self._seen += len(numbers)

    def result(self) -> DistinctWords:
        """Return the words and counts of all text added so far."""
        order = np.argsort(self._first_seen.values)
        lengths = np.diff(self._table.offsets)[order]
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = concatenate_ranges(self._table.data, self._table.offsets[order], lengths)
        return DistinctWords(data, offsets, self._counts.values[order])


def count_words(
    corpus: Corpus, pattern: str, progress: Progress = no_progress, read_bytes: int = READ_BYTES
) -> DistinctWords:
    """Read a corpus to its end and count its words under a pattern.

    read_bytes: text worked on at a time, grows if a word is longer; the result doesn't depend on
        it.

    Raises:
        InputError: the corpus can't be read.
    """
    counts = WordCounts()
    buffer = np.empty(read_bytes, np.uint8)
    # Pieces are cut where a word starts: an expression depends on nothing before that.
    kept, ended = 0, False  # kept: bytes that belong to the next piece
    kept_starts = np.empty(0, np.int64)  # where documents begin in them
    while not ended:
        if 2 * kept > len(buffer):
            buffer = np.concatenate([buffer, np.empty_like(buffer)])
        length, fresh_starts, closed, ended = _fill(corpus, buffer, kept)
        document_starts = np.concatenate([kept_starts, fresh_starts])
        text = buffer[:length]
        bounds = np.flatnonzero(start_mask(text, pattern, document_starts, closed=closed))
        if closed:
            bounds = np.append(bounds, length)
        else:
            bounds = bounds[: np.searchsorted(bounds, length - LOOKAHEAD, side="right")]
        counts.add(text, bounds[:-1], bounds[1:])
        cut = int(bounds[-1]) if len(bounds) else 0
        kept = length - cut
        kept_starts = document_starts[document_starts > cut] - cut
        buffer[:kept] = buffer[cut:length].copy()
        progress("counting words", corpus.bytes_read, corpus.total_bytes)
    return counts.result()


def _fill(
    corpus: Corpus, buffer: NDArray[np.uint8], kept: int
) -> tuple[int, NDArray[np.int64], bool, bool]:
    """Read until `buffer`, which holds `kept` bytes, is full or the corpus ends.

    Returns the bytes in the buffer, the document starts in it, whether a document ends there, and
    whether the corpus does.
    """
    length, starts = kept, [np.empty(0, np.int64)]
    while True:
        fill = corpus.read_into(buffer[length:])
        starts.append(fill.document_starts + length)
        length += fill.length
        if fill.end or length == len(buffer):
            return length, np.concatenate(starts), fill.closed or fill.end, fill.end
