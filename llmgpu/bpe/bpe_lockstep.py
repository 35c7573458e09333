"""Byte pair encoding of many words at a time, in lockstep, on NumPy.

- In a round, of each word the pair of the lowest rank is merged, the leftmost of several, until no
  pair is left: the definition. A round is a minimum over the keys of all pairs, and a few
  operations for each word that is not done.
- A word's symbols are a linked list over the positions of its bytes. A merged symbol is where its
  first byte is. The key of a pair is where its left symbol is, and tells its rank and that place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import ranges
from llmgpu.bpe.hash_table import HashTable
from llmgpu.bpe.pair_ranks import NO_RANK, PairRanks

MOST_BYTES = 256  # of a word: a key has 8 bits for the place
_PLACE_BITS = np.uint32(8)
_PLACE_MASK = np.uint32(MOST_BYTES - 1)
_NO_KEY = np.uint32(NO_RANK << 8)  # keys from here on are of pairs that don't merge
_Positions = NDArray[np.int32] | NDArray[np.int64]
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


class LockstepMerger:
    """Merges the bytes of words. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, pairs: PairRanks, byte_ids: NDArray[np.int32]) -> None:
        """Prepare for merging these pairs; byte_ids: int32 (256,), the symbol of each byte."""
        self._results = pairs.results
        self._byte_ids = byte_ids
        keys = pairs.left.astype(np.int64) << 32 | pairs.right
        self._ranks = HashTable(keys, pairs.ranks, default=NO_RANK)
        self._byte_pair_ranks = self._rank(np.repeat(byte_ids, 256), np.tile(byte_ids, 256))

    def _rank(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.uint32]:
        # An id of -1, a byte without a token, gives a negative key, which is in no table.
        return self._ranks.get(left.astype(np.int64) << 32 | right).view(np.uint32)

    def merge(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols of words in order, and how many each has.

        data: uint8, the words end to end. lengths: int64 (words,), from 1 to MOST_BYTES.
        """
        pairs = data[:-1].astype(np.int64) << 8 | data[1:]
        words = _Words(self._byte_ids[data], self._byte_pair_ranks[pairs], lengths)
        while len(best := words.best_keys()):
            places = words.merge(best & _PLACE_MASK, self._results[best >> _PLACE_BITS])
            for which, left, right in words.pairs_at(places):
                ranks = self._rank(words.symbols[left], words.symbols[right])
                words.set_ranks(which, left, ranks)
        return words.result(lengths)


class _Words:
    """Words while they are merged.

    symbols: int32 (n,), by position; _GONE where there is none any more.
    """

    def __init__(
        self, symbols: NDArray[np.int32], ranks: NDArray[np.uint32], lengths: NDArray[np.int64]
    ) -> None:
        """Start with a symbol for each byte; ranks: uint32 (n - 1,), of neighbouring ones."""
        self.symbols = symbols
        positions = np.arange(len(symbols), dtype=np.int32)
        self._before, self._behind = positions - 1, positions + 1
        # Of the words that are not done: where they start and end, and where their keys are.
        self._ends = np.cumsum(lengths)
        self._firsts = self._ends - lengths
        self._keys = np.full(len(symbols), _NO_KEY, np.uint32)
        self._keys[:-1] = ranks << _PLACE_BITS
        self._keys[self._ends - 1] = _NO_KEY
        self._keys |= (positions - np.repeat(self._firsts, lengths)).astype(np.uint32)
        self._key_firsts = self._firsts

    def best_keys(self) -> NDArray[np.uint32]:
        """Return the lowest key of each word that is not done, having left out the others."""
        if len(self._firsts) == 0:
            return np.empty(0, np.uint32)
        # The keys of words that are done are between those of others, and are above all.
        best = np.minimum.reduceat(self._keys, self._key_firsts)
        which = np.flatnonzero(best < _NO_KEY)
        if len(which) < len(best):
            self._firsts, self._ends = self._firsts[which], self._ends[which]
            self._key_firsts = self._key_firsts[which]
            self._compact()
        return best[which]

    def _compact(self) -> None:
        """Drop the keys of words that are done, if they are the most."""
        lengths = self._ends - self._firsts
        left = int(lengths.sum())
        if left < len(self._keys) // 2:
            self._keys = self._keys[ranges(self._key_firsts, lengths)]
            self._key_firsts = np.cumsum(lengths) - lengths

    def merge(self, places: NDArray[np.uint32], results: NDArray[np.int32]) -> NDArray[np.int64]:
        """Merge the symbol at a place of each word with the next one; return their positions."""
        left = self._firsts + places
        right = self._behind[left]
        self.symbols[left], self.symbols[right] = results, _GONE
        for position in (left, right):
            self._keys[self._key_firsts + (position - self._firsts)] |= _NO_KEY
        behind = self._behind[right]
        self._behind[left] = behind
        inside = behind < self._ends
        self._before[behind[inside]] = left[inside]
        return left

    def pairs_at(
        self, positions: NDArray[np.int64]
    ) -> Iterator[tuple[_Positions, _Positions, _Positions]]:
        """Yield the pairs that the symbol at a position of each word is in.

        As numbers of words, positions of the left and positions of the right symbols.
        """
        behind = self._behind[positions]
        which = np.flatnonzero(behind < self._ends)
        yield which, positions[which], behind[which]
        which = np.flatnonzero(positions > self._firsts)
        yield which, self._before[positions[which]], positions[which]

    def set_ranks(self, which: _Positions, left: _Positions, ranks: NDArray[np.uint32]) -> None:
        """Give the pairs at positions in some words new ranks."""
        places = left - self._firsts[which]
        self._keys[self._key_firsts[which] + places] = ranks << _PLACE_BITS | places.astype(
            np.uint32
        )

    def result(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols that are left, and how many each word has."""
        there = self.symbols != _GONE
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(there)])
        ends = np.cumsum(lengths)
        return self.symbols[there], before[ends] - before[ends - lengths]
