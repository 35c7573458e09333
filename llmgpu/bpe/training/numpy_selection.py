"""Which pairs the NumPy trainer merges next: the ranking, and how much of it is one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.numpy_pairs import SYMBOL_BITS, PairIndex, pairs_of_keys
from llmgpu.bpe.training.numpy_symbols import MAX_SYMBOLS
from llmgpu.bpe.training.symbols import Spellings

SHORT_LIST = 1024  # pairs ranked for the next batches


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs to merge in one pass: their slots (int64), and the symbols they become (int64).

    A pair of equal symbols has no other pair with it.
    """

    slots: NDArray[np.int64]
    results: NDArray[np.int64]


class ShortList:
    """The best-ranked pairs: all that rank at or before a threshold, and possibly some behind it.

    The threshold is a count and a key. Pairs whose count falls behind it are left out.
    """

    def __init__(self, pairs: PairIndex, least: int, spellings: Spellings | None) -> None:
        self._pairs = pairs
        self._least = least
        self._spellings = spellings
        self._slots = np.empty(0, np.int64)
        self._known = 1  # slots below were looked at
        self._count = np.iinfo(np.int64).max
        self._key = -1

    def next_batch(self, limit: int, next_symbol: int) -> Batch:
        """Return the longest prefix of the ranking that can be merged at once; empty at the end.

        limit: merges at most.
        next_symbol: the first that is new.
        """
        self._update()
        if len(self._slots) == 0:
            self._refill()
        slots = self._slots
        counts, keys = self._pairs.counts.values[slots], self._pairs.keys.values[slots]
        best = _best_ranked(counts, keys, limit)
        best = best[: _independent_prefix(keys[best])]
        results = self._results(keys[best], next_symbol)
        return Batch(slots[best[: len(results)]], results)

    def _results(self, keys: NDArray[np.int64], next_symbol: int) -> NDArray[np.int64]:
        """Return what the pairs become, up to the first that becomes a symbol there is already."""
        results = np.arange(next_symbol, next_symbol + len(keys))
        if self._spellings is None:
            return results
        for index, (left, right) in enumerate(pairs_of_keys(keys).tolist()):
            results[index] = self._spellings.merge(left, right)
            if results[index] < next_symbol:
                return results[: index + 1]
        return results

    def _update(self) -> None:
        """Take new pairs in and leave out what ranks behind the threshold."""
        fresh = np.arange(self._known, len(self._pairs.keys))
        self._known = len(self._pairs.keys)
        slots = np.concatenate([self._slots, fresh])
        self._slots = slots[self._ranks_before_threshold(slots)]

    def _ranks_before_threshold(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        counts, keys = self._pairs.counts.values[slots], self._pairs.keys.values[slots]
        passed: NDArray[np.bool_] = (counts > self._count) | (
            (counts == self._count) & (keys <= self._key)
        )
        return passed

    def _refill(self) -> None:
        """Lower the threshold so that the list has as many pairs as it should, if there are."""
        live = np.flatnonzero(self._pairs.counts.values >= self._least)
        if len(live) == 0:
            return
        counts, keys = self._pairs.counts.values[live], self._pairs.keys.values[live]
        chosen = _best_ranked(counts, keys, SHORT_LIST)
        self._slots = live[chosen]
        self._count, self._key = int(counts[chosen[-1]]), int(keys[chosen[-1]])


def _best_ranked(
    counts: NDArray[np.int64], keys: NDArray[np.int64], limit: int
) -> NDArray[np.int64]:
    """Return the indices of the `limit` best-ranked pairs (or all), in rank order."""
    if len(counts) > limit:
        least = np.partition(counts, len(counts) - limit)[-limit]
        above = np.flatnonzero(counts > least)
        equal = np.flatnonzero(counts == least)
        wanted = limit - len(above)
        if len(equal) > wanted:
            equal = equal[np.argpartition(keys[equal], wanted - 1)[:wanted]]
        candidates = np.concatenate([above, equal])
    else:
        candidates = np.arange(len(counts))
    return candidates[np.lexsort((keys[candidates], -counts[candidates]))]


def _independent_prefix(keys: NDArray[np.int64]) -> int:
    """Return how many of the ranked pairs can be merged at once, see `batched_numpy`."""
    lefts: set[int] = set()
    rights: set[int] = set()
    mask = MAX_SYMBOLS - 1
    for length, key in enumerate(keys.tolist()):
        left, right = key >> SYMBOL_BITS, key & mask
        chains = left == right or left in rights or right in lefts
        if chains:
            return max(length, 1)
        lefts.add(left)
        rights.add(right)
    return len(keys)
