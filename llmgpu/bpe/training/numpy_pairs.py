"""The pairs of neighbouring symbols for the NumPy trainer: keys, counts, and where they occur."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.training.numpy_symbols import MAX_SYMBOLS, NO_SLOT, LinkedSymbols

SYMBOL_BITS = 20  # log2 of MAX_SYMBOLS
_INDEX_BITS = 64 - 2 * SYMBOL_BITS

# Says of pairs, by keys and counts, which are worth keeping.
Keep = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


class PairIndex:
    """All pairs that were worth keeping when they were made, by slot.

    keys: int64, left symbol << 20 | right symbol.
    counts: int64, weighted occurrences; 0 after the merge.
    first, size: where the positions are in `positions`, stale ones included.
    """

    def __init__(self, keep: Keep) -> None:
        """Give slots to the pairs that `keep` chooses."""
        self._keep = keep
        self.keys = GrowableArray(np.int64)
        self.counts = GrowableArray(np.int64)
        self.first = GrowableArray(np.int64)
        self.size = GrowableArray(np.int32)
        self.positions = GrowableArray(np.int32)
        for column in (self.keys, self.counts, self.first, self.size):
            column.append(np.zeros(1, np.int64))  # NO_SLOT

    def add(
        self, keys: NDArray[np.int64], positions: NDArray[np.int32], weights: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Make the pairs of new occurrences, of which equal keys are neighbours.

        keys, positions, weights: one for each occurrence.

        Returns the slot of each occurrence, 0 where the pair has none.
        """
        starts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        starts = np.concatenate([np.zeros(1, np.int64), starts])
        sizes = np.diff(starts, append=len(keys))
        counts = np.add.reduceat(weights, starts)
        kept = self._keep(keys[starts], counts)
        slots = np.where(kept, np.cumsum(kept) + (len(self.keys) - 1), NO_SLOT)
        of_occurrence = np.repeat(slots, sizes)
        sizes = sizes[kept]
        self.keys.append(keys[starts[kept]])
        self.counts.append(counts[kept])
        self.first.append(len(self.positions) + np.cumsum(sizes) - sizes)
        self.size.append(sizes)
        self.positions.append(positions[of_occurrence != NO_SLOT])
        return of_occurrence


def count_pairs(symbols: LinkedSymbols, pairs: PairIndex) -> None:
    """Count the pairs that the words start out with."""
    symbol = symbols.symbol
    positions = np.flatnonzero((symbol[:-1] >= 0) & (symbol[1:] >= 0)).astype(np.int32)
    if len(positions) == 0:
        return
    if symbol.max() < 256:
        # A stable sort of 16-bit numbers is a radix sort.
        byte_pairs = (symbol[positions] << 8 | symbol[positions + 1]).astype(np.uint16)
        order = np.argsort(byte_pairs, kind="stable")
    else:
        order = sorted_order(pair_keys(symbol[positions], symbol[positions + 1]))
    positions = positions[order]
    keys = pair_keys(symbol[positions], symbol[positions + 1])
    symbols.slot[positions] = pairs.add(keys, positions, symbols.weight[positions])


def pair_keys(left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the keys of pairs: their order is that of the ranks of left, then of right symbols."""
    return left.astype(np.int64) << SYMBOL_BITS | right


def split_keys(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the left and the right symbols of pairs."""
    return keys >> SYMBOL_BITS, keys & (MAX_SYMBOLS - 1)


def pairs_of_keys(keys: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return pairs as uint32 (n, 2)."""
    return np.column_stack(split_keys(keys)).astype(np.uint32)


def sorted_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order that sorts pairs' keys."""
    if len(keys) >> _INDEX_BITS:
        return np.argsort(keys, kind="stable")
    # Sorting numbers that hold their index is several times faster than sorting indices.
    packed = keys.astype(np.uint64) << np.uint64(_INDEX_BITS)
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    return (packed & np.uint64((1 << _INDEX_BITS) - 1)).view(np.int64)
