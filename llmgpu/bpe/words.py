"""The distinct words (pre-tokens) of a corpus with their counts: all that training needs to know.

The order of words has no meaning. Words are added up and compared by their bytes, so sums are
exact whatever they were counted with.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges, sort_by_bytes
from llmgpu.bpe.corpus import Corpus
from llmgpu.bpe.pattern import LOOKAHEAD, start_mask
from llmgpu.bpe.word_table import WordTable
from llmgpu.errors import InputError
from llmgpu.progress import Progress, no_progress

READ_BYTES = 4 << 20  # text worked on at a time
MAX_WORD_BYTES = 1 << 30
MAX_TEXT_BYTES = (1 << 63) - 1  # of all occurrences; so no count and no sum of counts overflows


@dataclass(frozen=True, eq=False)
class DistinctWords:
    """Words that differ from one another, none of them empty, and how often each occurs.

    data: uint8, the words end to end.
    offsets: int64 (words + 1,), word k is data[offsets[k] : offsets[k + 1]].
    counts: int64 (words,), from 1 on.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return how many words there are."""
        return len(self.counts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each word: int64 (words,)."""
        return np.diff(self.offsets)

    @property
    def occurrences(self) -> int:
        """How many words the text has."""
        return _dot(np.ones_like(self.counts), self.counts)

    @property
    def text_bytes(self) -> int:
        """Bytes of the text that these are the words of."""
        return _dot(self.lengths, self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        return self.data.nbytes + self.offsets.nbytes + self.counts.nbytes

    def take_range(self, first: int, last: int) -> DistinctWords:
        """Return words first .. last - 1, without copying their bytes."""
        offsets = self.offsets[first : last + 1]
        data = self.data[offsets[0] : offsets[-1]]
        return DistinctWords(data, offsets - offsets[0], self.counts[first:last])

    def spell(self, word: int) -> bytes:
        """Return the bytes of a word."""
        return self.data[self.offsets[word] : self.offsets[word + 1]].tobytes()


def word_too_long(nbytes: int) -> InputError:
    """Return the error for a word that has at least `nbytes`, more than MAX_WORD_BYTES."""
    return InputError(
        f"a pre-token has {nbytes:,} bytes or more, the limit is {MAX_WORD_BYTES:,}: cut the text "
        "into smaller documents (--doc-separator, .jsonl, more files) or use another --pattern"
    )


def join(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Put words end to end, all of them different."""
    lengths = [np.zeros(1, np.int64), *(piece.lengths for piece in pieces)]
    data = [np.empty(0, np.uint8), *(piece.data for piece in pieces)]
    counts = [np.empty(0, np.int64), *(piece.counts for piece in pieces)]
    offsets = np.cumsum(np.concatenate(lengths))
    return DistinctWords(np.concatenate(data), offsets, np.concatenate(counts))


def add_up(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Return the words of all pieces with the sums of their counts, sorted by bytes.

    Raises InputError if they are of more than MAX_TEXT_BYTES.
    """
    if sum(piece.text_bytes for piece in pieces) > MAX_TEXT_BYTES:
        raise InputError(
            f"the words are of more than {MAX_TEXT_BYTES:,} bytes of text, which counts don't "
            "reach to: train on fewer of them"
        )
    words = join(pieces)
    if len(words) == 0:
        return words
    order, same = sort_by_bytes(words.data, words.offsets)
    firsts = np.flatnonzero(~same)
    counts = np.add.reduceat(words.counts[order], firsts)
    chosen = order[firsts]
    lengths = words.lengths[chosen]
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = concatenate_ranges(words.data, words.offsets[chosen], lengths)
    return DistinctWords(data, offsets, counts)


def _dot(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Return the sum of products, exactly, however large it is."""
    if np.dot(left.astype(np.float64), right.astype(np.float64)) < 2.0**62:
        return int(np.dot(left, right))
    return sum(map(operator.mul, left.tolist(), right.tolist()))


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
