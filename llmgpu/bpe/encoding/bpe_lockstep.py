"""Byte pair encoding of many words at a time, in lockstep, on NumPy.

- Pairs of bytes that are sure to be merged are merged first, all at once.
- In a round, of each word the pair of the lowest rank is merged, the leftmost of several, until no
  pair is left: the definition. A round is a minimum over the keys of all pairs, and a few
  operations for each word that is not done.
- A word's symbols are a linked list over the positions of its bytes. A merged symbol is where its
  first byte is. The key of a pair is where its left symbol is, and tells its rank and that place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import ranges
from llmgpu.bpe.encoding.pair_ranks import NO_RANK, PairRanks, byte_ids
from llmgpu.bpe.encoding.safe_pairs import SafePairs
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.hash_table import HashTable

MOST_BYTES = 256  # of a word: a key has 8 bits for the place
_PLACE_BITS = np.uint32(8)
_PLACE_MASK = np.uint32(MOST_BYTES - 1)
_NO_KEY = np.uint32(NO_RANK << 8)  # keys from here on are of pairs that don't merge
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


class LockstepMerger:
    """Merges the bytes of words. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, vocabulary: Vocabulary, pairs: PairRanks) -> None:
        """Prepare for merging the pairs of a vocabulary."""
        self._results = pairs.results
        self._byte_ids = byte_ids(vocabulary)
        keys = pairs.left.astype(np.int64) << 32 | pairs.right
        self._ranks = HashTable(keys, pairs.ranks, default=NO_RANK)
        of_pairs = self._rank(np.repeat(self._byte_ids, 256), np.tile(self._byte_ids, 256))
        self._safe_pairs = SafePairs(vocabulary, pairs, of_pairs.reshape(256, 256))

    def _rank(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.uint32]:
        # An id of -1, a byte without a token, gives a negative key, which is in no table.
        return self._ranks.get(left.astype(np.int64) << 32 | right).view(np.uint32)

    def merge(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols of words in order, and how many each has.

        data: uint8, the words end to end. lengths: int64 (words,), from 1 to MOST_BYTES.
        """
        symbols = self._byte_ids[data]
        left = self._safe_pairs.find(data, np.cumsum(lengths))
        symbols[left] = self._results[self._safe_pairs.ranks[data[left], data[left + 1]]]
        symbols[left + 1] = _GONE
        words = _Words(symbols, *self._first_ranks(data, symbols), lengths)
        while len(best := words.best_keys()):
            pairs = words.merge(best & _PLACE_MASK, self._results[best >> _PLACE_BITS])
            ranks = self._rank(pairs.left, pairs.right)
            words.set_ranks(pairs, ranks)
        return words.result(lengths)

    def _first_ranks(
        self, data: NDArray[np.uint8], symbols: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return where symbols are, and the rank of each and the next one."""
        there = np.flatnonzero(symbols != _GONE)
        ranks = self._safe_pairs.ranks[data[there[:-1]], data[there[1:]]]
        merged = np.diff(np.append(there, len(symbols))) > 1
        new = np.flatnonzero(merged[:-1] | merged[1:])
        ranks[new] = self._rank(symbols[there[new]], symbols[there[new + 1]])
        return there, ranks


@dataclass(frozen=True, eq=False)
class _NewPairs:
    """Pairs of symbols whose ranks are not known yet.

    left, right: int32, the symbols. keys: int64, where their keys are. places: uint32, of the left
    ones in their words.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    keys: NDArray[np.int64]
    places: NDArray[np.uint32]


class _Words:
    """Words while they are merged.

    symbols: int32 (n,), by position; _GONE where there is none any more.
    """

    def __init__(
        self,
        symbols: NDArray[np.int32],
        there: NDArray[np.int64],
        ranks: NDArray[np.uint32],
        lengths: NDArray[np.int64],
    ) -> None:
        """Start with symbols at the positions `there`; ranks: uint32, of each and the next."""
        self.symbols = symbols
        positions = np.arange(len(symbols), dtype=np.int32)
        self._before, self._behind = positions - 1, positions + 1
        self._before[there[1:]], self._behind[there[:-1]] = there[:-1], there[1:]
        # Of the words that are not done: where they start and end, and where their keys are.
        self._ends = np.cumsum(lengths)
        self._firsts = self._ends - lengths
        self._behind[there[-1:]] = len(symbols)
        self._keys = np.full(len(symbols), _NO_KEY, np.uint32)
        self._keys[there[:-1]] = ranks << _PLACE_BITS
        # The last symbol of a word has no next one in it.
        self._keys[there[np.searchsorted(there, self._ends) - 1]] = _NO_KEY
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

    def merge(self, places: NDArray[np.uint32], results: NDArray[np.int32]) -> _NewPairs:
        """Merge the symbol at a place of each word with the next one; return the pairs it is in."""
        left = self._firsts + places
        right = self._behind[left]
        behind = self._behind[right]
        self.symbols[left], self.symbols[right] = results, _GONE
        self._behind[left] = behind
        key = self._key_firsts - self._firsts  # of the symbol at a position, relative to it
        self._keys[key + left] = self._keys[key + right] = _NO_KEY
        at_end = behind >= self._ends
        has_next, has_previous = np.flatnonzero(~at_end), np.flatnonzero(places)
        behind, previous = behind[has_next], self._before[left[has_previous]]
        self._before[behind] = left[has_next]
        previous_places = previous - self._firsts[has_previous]
        return _NewPairs(
            np.concatenate([results[has_next], self.symbols[previous]]),
            np.concatenate([self.symbols[behind], results[has_previous]]),
            np.concatenate([(key + left)[has_next], key[has_previous] + previous]),
            np.concatenate([places[has_next], previous_places.astype(np.uint32)]),
        )

    def set_ranks(self, pairs: _NewPairs, ranks: NDArray[np.uint32]) -> None:
        """Give pairs their ranks."""
        self._keys[pairs.keys] = ranks << _PLACE_BITS | pairs.places

    def result(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols that are left, and how many each word has."""
        there = self.symbols != _GONE
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(there)])
        ends = np.cumsum(lengths)
        return self.symbols[there], before[ends] - before[ends - lengths]
