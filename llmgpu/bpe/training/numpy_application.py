"""Merging a batch of pairs everywhere, for the NumPy trainer: links, slots, counts, new pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.numpy_pairs import PairIndex, pair_keys, sorted_order
from llmgpu.bpe.training.numpy_selection import Batch
from llmgpu.bpe.training.numpy_symbols import (
    MAX_SYMBOLS,
    MERGING,
    NO_SLOT,
    SEPARATOR,
    LinkedSymbols,
)


def merge_batch(symbols: LinkedSymbols, pairs: PairIndex, batch: Batch) -> None:
    """Merge the pairs of a batch everywhere."""
    positions, merged = _occurrences(symbols, pairs, batch)
    seconds = symbols.following[positions]
    before, behind = symbols.preceding[positions], symbols.following[seconds]
    weights = symbols.weight[positions]
    symbols.total -= int(weights.sum())

    # Boundaries that change: those on the left of a merged pair, and those on the right unless
    # another merged pair follows, whose left boundary it is.
    symbols.slot[positions] = MERGING
    left = np.flatnonzero(symbols.symbol[before] != SEPARATOR)
    right = np.flatnonzero(
        (symbols.symbol[behind] != SEPARATOR) & (symbols.slot[behind] != MERGING)
    )
    changed = np.concatenate([weights[left], weights[right]])
    lost = np.concatenate([symbols.slot[before[left]], symbols.slot[seconds[right]]])
    np.subtract.at(pairs.counts.values, lost, changed)
    pairs.counts.values[batch.slots] = 0

    symbols.symbol[positions] = merged
    symbols.following[positions] = behind
    symbols.preceding[behind] = positions
    symbols.slot[positions] = NO_SLOT
    symbols.slot[seconds] = NO_SLOT
    gained = np.concatenate([symbols.preceding[positions[left]], positions[right]])
    _add_new_pairs(symbols, pairs, gained, changed)


def _occurrences(
    symbols: LinkedSymbols, pairs: PairIndex, batch: Batch
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the positions at which pairs of the batch are merged, and what they become."""
    firsts = pairs.first.values[batch.slots].tolist()
    sizes = pairs.size.values[batch.slots]
    listed = pairs.positions.values
    positions = np.concatenate(
        [listed[first : first + size] for first, size in zip(firsts, sizes.tolist(), strict=True)]
    )
    current = symbols.slot[positions] == np.repeat(batch.slots, sizes)
    merged = np.repeat(batch.results.astype(np.int32), sizes)
    positions, merged = positions[current], merged[current]
    left, right = divmod(int(pairs.keys.values[batch.slots[0]]), MAX_SYMBOLS)
    if left == right:
        positions = _every_other(np.sort(positions), symbols.following)
        merged = merged[: len(positions)]
    return positions, merged


def _every_other(positions: NDArray[np.int32], following: NDArray[np.int32]) -> NDArray[np.int32]:
    """Of ascending positions of a pair (a, a), keep those that a merge from the left takes.

    In a run of n equal symbols the pair occurs n - 1 times; every other one is taken.
    """
    index = np.arange(len(positions))
    run_starts = np.ones(len(positions), np.bool_)
    run_starts[1:] = following[positions[:-1]] != positions[1:]
    in_run = index - np.maximum.accumulate(np.where(run_starts, index, 0))
    taken: NDArray[np.int32] = positions[in_run % 2 == 0]
    return taken


def _add_new_pairs(
    symbols: LinkedSymbols,
    pairs: PairIndex,
    positions: NDArray[np.int32],
    weights: NDArray[np.int64],
) -> None:
    """Give slots to the pairs that now start at these positions, all of them new pairs."""
    if len(positions) == 0:
        return
    keys = pair_keys(symbols.symbol[positions], symbols.symbol[symbols.following[positions]])
    order = sorted_order(keys)
    positions = positions[order]
    symbols.slot[positions] = pairs.add(keys[order], positions, weights[order])
