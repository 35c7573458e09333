"""Words and their ids, cached across slices, for any number of threads.

- Threads look words up in parallel. One at a time numbers words that are new to the table; it then
  matches them while the others continue.
- A thread that comes across new words of another thread waits until they are matched. It matches
  its own new words first, so no two threads wait for each other.
- Once the table is too large, the next slice starts a new one; slices in progress keep theirs.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, ranges
from llmgpu.bpe.encoding.matching import Matcher, Words
from llmgpu.bpe.words.word_table import WordTable

MAX_TABLE_WORDS = 1 << 20
MAX_TABLE_BYTES = 64 << 20
MAX_TABLE_IDS = 16 << 20
_SPAN = 1 << 16  # words looked up before the new ones among them are numbered
_COPIED = 1 << 15  # words whose ids are copied at a time
_FEW_IDS = 4  # most words have no more


class EncodedWords:
    """Returns the ids of words. Memory: up to about 350 MB, and twice that while threads change
    from one table to the next.
    """

    def __init__(self, matcher: Matcher) -> None:
        """Start with no words; `matcher` finds the tokens of new ones."""
        self._matcher = matcher
        self._lock = threading.Lock()
        self._kept = _Kept()

    def encode(
        self, padded: NDArray[np.uint8], words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """Return the ids of all words in order, and how many each has.

        padded: uint8, the words' text and PADDING bytes after it.
        """
        with self._lock:
            if self._kept.is_full():
                self._kept = _Kept()
            kept = self._kept
        return kept.encode(self._matcher, padded, words)


class _Kept:
    """A table of words, and the ids of those that are matched."""

    def __init__(self) -> None:
        self._table = WordTable()
        self._ids = GrowableArray(np.uint32)  # of word k: ids[firsts[k] : firsts[k] + counts[k]]
        self._firsts = GrowableArray(np.uint32)
        self._counts = GrowableArray(np.uint16)  # a word has no more ids than bytes
        self._changed = threading.Condition()  # its holder may change all of these
        self._unmatched: set[int] = set()  # first numbers of words that are being matched
        self._error: BaseException | None = None  # why some words will never be matched

    def is_full(self) -> bool:
        """Return whether it is time for a new table."""
        table = self._table
        full = len(table) > MAX_TABLE_WORDS or len(table.data) > MAX_TABLE_BYTES
        return full or len(self._ids) > MAX_TABLE_IDS or self._error is not None

    def encode(
        self, matcher: Matcher, padded: NDArray[np.uint8], words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """Do what `EncodedWords.encode` says."""
        numbers = np.empty(len(words.starts), np.int64)
        try:
            new, end = self._number(padded, words, numbers)
            self._match(matcher, new)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._changed.wait_for(lambda: self._error or min(self._unmatched, default=end) >= end)
            if self._error is not None:
                raise self._error
            ids, firsts, counts = self._ids.values, self._firsts.values, self._counts.values
        return _copy(ids, firsts, counts, numbers)

    def _number(
        self, padded: NDArray[np.uint8], words: Words, numbers: NDArray[np.int64]
    ) -> tuple[list[tuple[int, int]], int]:
        """Write the numbers of words; return the ranges of new ones, and the number of all.

        A few words at a time, so that most repeats of a new word are found.
        """
        new = []
        for first in range(0, len(numbers), _SPAN):
            span = slice(first, first + _SPAN)
            starts, limits = words.starts[span], words.limits[span]
            numbers[span], missing = self._table.find(padded, starts, limits)
            if len(missing.which):
                with self._changed:
                    known = len(self._table)
                    self._table.insert(padded, missing, numbers[span])
                    if known < len(self._table):
                        self._unmatched.add(known)
                        new.append((known, len(self._table)))
        with self._changed:
            end = len(self._table)
            room = np.zeros(end - len(self._firsts), np.uint16)
            self._firsts.append(room)
            self._counts.append(room)
        return new, end

    def _match(self, matcher: Matcher, new: list[tuple[int, int]]) -> None:
        """Find the ids of ranges of words."""
        if not new:
            return
        numbers = np.concatenate([np.arange(first, last) for first, last in new])
        with self._changed:
            data, offsets = self._table.data, self._table.offsets
        starts, ends = offsets[numbers], offsets[numbers + 1]
        matches = matcher.match(data, Words(starts, ends, ends))
        with self._changed:
            firsts = len(self._ids) + np.cumsum(matches.counts) - matches.counts
            self._firsts.values[numbers] = firsts
            self._counts.values[numbers] = matches.counts
            self._ids.append(matches.ids)
            self._unmatched.difference_update(first for first, _ in new)
            self._changed.notify_all()


def _copy(
    ids: NDArray[np.uint32],
    firsts: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    numbers: NDArray[np.int64],
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Return the ids of words by their numbers, end to end, and how many each has."""
    counts = np.take(counts, numbers, mode="clip")
    result = np.empty(int(counts.sum(dtype=np.int64)), np.uint32)
    done = 0
    # Block by block: intermediate arrays stay in the processor's cache.
    for first in range(0, len(numbers), _COPIED):
        block = slice(first, first + _COPIED)
        done += _copy_block(ids, np.take(firsts, numbers[block]), counts[block], result[done:])
    return result, counts


def _copy_block(
    ids: NDArray[np.uint32],
    firsts: NDArray[np.uint32],
    counts: NDArray[np.uint16],
    result: NDArray[np.uint32],
) -> int:
    """Write the ids of words, `counts` from `firsts` on each; return their number.

    Most words have one id, and few have more than _FEW_IDS.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    at, source = np.subtract(ends, counts, out=ends), firsts.astype(np.int64)
    # One pass for each of the first ids of a word, then one gather for the rest.
    result[at] = np.take(ids, source, mode="clip")
    for done in range(1, _FEW_IDS):
        more = np.flatnonzero(counts > done)
        at, source, counts = at[more], source[more], counts[more]
        result[at + done] = ids[source + done]
    more = np.flatnonzero(counts > _FEW_IDS)
    left = counts[more].astype(np.int64) - _FEW_IDS
    result[ranges(at[more] + _FEW_IDS, left)] = ids[ranges(source[more] + _FEW_IDS, left)]
    return total
