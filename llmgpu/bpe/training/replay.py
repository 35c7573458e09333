"""Replaying known merges on NumPy: what words look like after them.

This is the work of `batched_numpy` without the ranking: only pairs that will be merged get slots,
and consecutive merges that share no symbols, as required there, are one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.linked_words import (
    Batch,
    Keep,
    LinkedSymbols,
    PairIndex,
    check_limits,
    count_pairs,
    merge_batch,
    pair_keys,
)
from llmgpu.bpe.training.symbols import SymbolWords
from llmgpu.progress import Progress, no_progress


def apply_merges(
    words: SymbolWords, merges: NDArray[np.uint32], progress: Progress = no_progress
) -> SymbolWords:
    """Merge given pairs everywhere, one after the other, and return the resulting words.

    merges: uint32 (S, 3), the left symbol, the right one and the result, first merge first. Pairs
        may be absent; results may be symbols that exist already.

    Raises:
        LlmgpuError: more tokens or more positions than the trainer can number.
    """
    results = merges[:, 2].astype(np.int64)
    size = max(len(words.lengths), int(results.max(initial=0)) + 1)
    check_limits(words, size - len(words.lengths))
    keys = pair_keys(merges[:, 0], merges[:, 1])
    symbols = LinkedSymbols(words)
    pairs = PairIndex(_one_of(np.unique(keys)))
    count_pairs(symbols, pairs)
    slots_of: dict[int, list[int]] = {}
    known = 1  # slots below are in slots_of
    for first, last in _independent_groups(merges):
        # A pair has a slot for each batch that made occurrences of it, so it may have several.
        for slot, key in enumerate(pairs.keys.values[known:].tolist(), known):
            slots_of.setdefault(key, []).append(slot)
        known = len(pairs.keys)
        progress("replaying merges", last, len(merges))
        slots = [slots_of.get(key, []) for key in keys[first:last].tolist()]
        counted = np.fromiter(map(len, slots), np.int64, last - first)
        if counted.any():
            together = np.array([slot for some in slots for slot in some], np.int64)
            merge_batch(symbols, pairs, Batch(together, np.repeat(results[first:last], counted)))
    return replace(symbols.words(), lengths=_lengths_of(words.lengths, merges, size))


def _one_of(wanted: NDArray[np.int64]) -> Keep:
    """Return what says which pairs are among `wanted`, ascending keys."""

    def keep(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.searchsorted(wanted, keys)
        inside = found < len(wanted)
        inside[inside] = wanted[found[inside]] == keys[inside]
        return inside

    return keep


def _independent_groups(merges: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Cut merges into ranges [first, last), each of which can be merged in one pass.

    In a group no left symbol is a right one, no result is a part, and no pair comes twice; a pair
    of equal symbols is alone.
    """
    first = 0
    lefts: set[int] = set()
    rights: set[int] = set()
    results: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    for index, (left, right, result) in enumerate(merges.tolist()):
        # Lefts and rights are the same only if a pair of equal symbols is in the group.
        runs = left == right or lefts == rights
        chains = left in rights or right in lefts or (left, right) in pairs
        touches = {left, right} & results or result in lefts or result in rights
        if index > first and (runs or chains or touches):
            yield first, index
            first = index
            for some in (lefts, rights, results, pairs):
                some.clear()
        lefts.add(left)
        rights.add(right)
        results.add(result)
        pairs.add((left, right))
    if first < len(merges):
        yield first, len(merges)


def _lengths_of(
    lengths: NDArray[np.uint32], merges: NDArray[np.uint32], size: int
) -> NDArray[np.uint32]:
    """Return the bytes of `size` symbols, of which those beyond `lengths` are made by merges."""
    known = lengths.tolist() + [0] * (size - len(lengths))
    for left, right, result in merges.tolist():
        known[result] = known[left] + known[right]
    return np.array(known, np.uint32)
