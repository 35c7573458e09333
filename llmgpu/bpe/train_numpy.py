"""The batched trainer on NumPy: exactly the merges of the sequential algorithm, many at a time.

BPE training merges the most frequent pair of neighbouring symbols, again and again. Of the pairs
ranked by (count descending, rank of the left symbol, rank of the right symbol), the longest prefix
in which no pair's left symbol is any pair's right symbol can be merged in one pass:

- Merging (a, b) changes the counts of pairs (p, a) and (b, n) only, and none of those is in the
  prefix; nor do occurrences of its pairs overlap, since they would share a symbol.
- A new pair can't outrank a pair of the prefix. It is at most as frequent as the pair (p, a) or
  (b, n) it came from, and where it is just as frequent it ranks behind, because a new symbol ranks
  behind all older ones.
- A pair (a, a) is a prefix of its own; its occurrences are merged from the left.

Decisions:

- Words are counted once and weighted. Their symbols lie end to end with a separator around each
  word, and are linked forwards and backwards, so a merge touches nothing but its neighbours.
- A symbol is a number that says how it ranks: rank of a byte, or 256 + k for merge k.
- Every pair has a slot, and every position has the slot of the pair that starts there. A pair
  gains occurrences only in the batch that makes it, as its newer symbol is made there. So its
  positions are one range of a list; those whose slot has changed since are stale.
- A pair that is too rare when it is made stays too rare: it gets no slot of its own.
- Candidates for the next batch are taken from a short list of the best-ranked pairs, which is
  filled again from all pairs when it runs empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.merges import TrainedMerges
from llmgpu.bpe.words import DistinctWords
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress, no_progress

MAX_SYMBOLS = 1 << 20
MAX_POSITIONS = (1 << 31) - 1
SHORT_LIST = 4096  # pairs ranked for the next batches
MAX_BATCH = 256  # merges in one pass
_SYMBOL_BITS = 20  # log2 of MAX_SYMBOLS
_INDEX_BITS = 64 - 2 * _SYMBOL_BITS
_SEPARATOR = -1  # symbol on either side of a word
_NO_SLOT = 0  # slot of positions at which no pair worth counting starts
_MERGING = -1  # slot of the positions that the batch at hand merges


def train(
    words: DistinctWords,
    *,
    merges: int,
    tie_ranks: NDArray[np.uint32],
    min_frequency: int = 2,
    progress: Progress = no_progress,
) -> TrainedMerges:
    """Learn up to `merges` merges from counted words.

    tie_ranks: uint32 (256,), a permutation: the rank of each byte among equally frequent pairs.
    min_frequency: rarer pairs are not merged; 0 counts as 1.

    Memory: about 60 bytes for each byte of the distinct words, half of it for the positions of
    pairs, and up to 60 for each distinct pair.

    Raises:
        LlmgpuError: more tokens or more positions than the trainer can number.
    """
    _check_limits(words, merges)
    least = max(min_frequency, 1)
    symbols = _Symbols(words, tie_ranks)
    pairs = _Pairs(least)
    _count_pairs(symbols, pairs)
    short_list = _ShortList(pairs)
    batches: list[_Batch] = []
    done = 0
    while done < merges:
        batch = short_list.next_batch(min(merges - done, MAX_BATCH))
        if len(batch.slots) == 0:
            break
        _merge_batch(symbols, pairs, batch, 256 + done)
        batches.append(batch)
        done += len(batch.slots)
        progress("merging", done, merges)
    return _translate(batches, symbols, tie_ranks)


def _check_limits(words: DistinctWords, merges: int) -> None:
    if 256 + merges > MAX_SYMBOLS:
        raise LlmgpuError(
            f"{256 + merges} tokens asked for, the trainer can number {MAX_SYMBOLS}; ask for fewer"
        )
    positions = len(words.data) + len(words.counts) + 1
    if positions > MAX_POSITIONS:
        raise LlmgpuError(
            f"the distinct pre-tokens take {positions} positions, the trainer can number "
            f"{MAX_POSITIONS}; use --limit, or a pattern that makes shorter pre-tokens"
        )


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pairs to merge in one pass, in rank order: slots (int64), keys and counts of each."""

    slots: NDArray[np.int64]
    keys: NDArray[np.int64]
    counts: NDArray[np.int64]


class _Symbols:
    """The symbols of all words of two bytes or more.

    All arrays have one entry for each position: a separator, then the symbols of the first word, a
    separator, and so on. Of a merged symbol only the first position stays linked.
    symbol: int32, as ranks; the separator is -1.
    following, preceding: int32, the neighbours' positions.
    slot: int32, that of the pair that starts here.
    weight: int64, how often the word occurs.
    total: number of symbols in the whole text, single bytes included.
    """

    def __init__(self, words: DistinctWords, ranks: NDArray[np.uint32]) -> None:
        lengths = np.diff(words.offsets)
        self.total = int(np.dot(lengths, words.counts))
        kept = lengths > 1
        counts, spans = words.counts[kept], lengths[kept] + 1
        size = int(spans.sum()) + 1
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[np.cumsum(spans)] = False
        self.symbol = np.full(size, _SEPARATOR, np.int32)
        self.symbol[inside] = ranks[words.data[np.repeat(kept, lengths)]]
        self.weight = np.zeros(size, np.int64)
        self.weight[1:] = np.repeat(counts, spans)
        self.following = np.arange(1, size + 1, dtype=np.int32)
        self.preceding = np.arange(-1, size - 1, dtype=np.int32)
        self.slot = np.full(size, _NO_SLOT, np.int32)


class _Pairs:
    """All pairs that ever were frequent enough, by slot.

    keys: int64, left symbol << 20 | right symbol.
    counts: int64, weighted occurrences; 0 after the merge.
    first, size: where the positions are in `positions`, stale ones included.
    """

    def __init__(self, least: int) -> None:
        """Keep pairs that occur `least` times or more."""
        self.least = least
        self.keys = GrowableArray(np.int64)
        self.counts = GrowableArray(np.int64)
        self.first = GrowableArray(np.int64)
        self.size = GrowableArray(np.int32)
        self.positions = GrowableArray(np.int32)
        for column in (self.keys, self.counts, self.first, self.size):
            column.append(np.zeros(1, np.int64))  # _NO_SLOT

    def add(
        self, keys: NDArray[np.int64], positions: NDArray[np.int32], weights: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Make the pairs of new occurrences, of which equal keys are neighbours.

        keys, positions, weights: one for each occurrence.

        Returns the slot of each occurrence, 0 where the pair is too rare to have one.
        """
        starts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        starts = np.concatenate([np.zeros(1, np.int64), starts])
        sizes = np.diff(starts, append=len(keys))
        counts = np.add.reduceat(weights, starts)
        kept = counts >= self.least
        slots = np.where(kept, np.cumsum(kept) + (len(self.keys) - 1), _NO_SLOT)
        of_occurrence = np.repeat(slots, sizes)
        sizes = sizes[kept]
        self.keys.append(keys[starts[kept]])
        self.counts.append(counts[kept])
        self.first.append(len(self.positions) + np.cumsum(sizes) - sizes)
        self.size.append(sizes)
        self.positions.append(positions[of_occurrence != _NO_SLOT])
        return of_occurrence


def _count_pairs(symbols: _Symbols, pairs: _Pairs) -> None:
    """Count the pairs of bytes that the words start out with."""
    symbol = symbols.symbol
    positions = np.flatnonzero((symbol[:-1] >= 0) & (symbol[1:] >= 0)).astype(np.int32)
    if len(positions) == 0:
        return
    # A stable sort of 16-bit numbers is a radix sort.
    byte_pairs = (symbol[positions] << 8 | symbol[positions + 1]).astype(np.uint16)
    positions = positions[np.argsort(byte_pairs, kind="stable")]
    keys = _keys(symbol[positions], symbol[positions + 1])
    symbols.slot[positions] = pairs.add(keys, positions, symbols.weight[positions])


def _keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int64]:
    return left.astype(np.int64) << _SYMBOL_BITS | right


class _ShortList:
    """The best-ranked pairs: all that rank at or before a threshold, and possibly some behind it.

    The threshold is a count and a key. Pairs whose count falls behind it are left out.
    """

    def __init__(self, pairs: _Pairs) -> None:
        self._pairs = pairs
        self._slots = np.empty(0, np.int64)
        self._known = 1  # slots below were looked at
        self._count = np.iinfo(np.int64).max
        self._key = -1

    def next_batch(self, limit: int) -> _Batch:
        """Return the longest prefix of the ranking that can be merged at once; empty at the end.

        limit: merges at most.
        """
        self._update()
        if len(self._slots) == 0:
            self._refill()
        slots = self._slots
        counts, keys = self._pairs.counts.values[slots], self._pairs.keys.values[slots]
        best = _best_ranked(counts, keys, limit)
        best = best[: _independent_prefix(keys[best])]
        return _Batch(slots[best], keys[best], counts[best])

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
        live = np.flatnonzero(self._pairs.counts.values >= self._pairs.least)
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
    """Return how many of the ranked pairs can be merged at once, see the head of this file."""
    lefts: set[int] = set()
    rights: set[int] = set()
    mask = MAX_SYMBOLS - 1
    for length, key in enumerate(keys.tolist()):
        left, right = key >> _SYMBOL_BITS, key & mask
        chains = left == right or left in rights or right in lefts
        if chains:
            return max(length, 1)
        lefts.add(left)
        rights.add(right)
    return len(keys)


def _merge_batch(symbols: _Symbols, pairs: _Pairs, batch: _Batch, first_symbol: int) -> None:
    """Merge the pairs of a batch everywhere; the k-th becomes the symbol first_symbol + k."""
    positions, merged = _occurrences(symbols, pairs, batch, first_symbol)
    seconds = symbols.following[positions]
    before, behind = symbols.preceding[positions], symbols.following[seconds]
    weights = symbols.weight[positions]
    symbols.total -= int(weights.sum())

    # Boundaries that change: those on the left of a merged pair, and those on the right unless
    # another merged pair follows, whose left boundary it is.
    symbols.slot[positions] = _MERGING
    left = np.flatnonzero(symbols.symbol[before] != _SEPARATOR)
    right = np.flatnonzero(
        (symbols.symbol[behind] != _SEPARATOR) & (symbols.slot[behind] != _MERGING)
    )
    changed = np.concatenate([weights[left], weights[right]])
    lost = np.concatenate([symbols.slot[before[left]], symbols.slot[seconds[right]]])
    np.subtract.at(pairs.counts.values, lost, changed)
    pairs.counts.values[batch.slots] = 0

    symbols.symbol[positions] = merged
    symbols.following[positions] = behind
    symbols.preceding[behind] = positions
    symbols.slot[positions] = _NO_SLOT
    symbols.slot[seconds] = _NO_SLOT
    gained = np.concatenate([symbols.preceding[positions[left]], positions[right]])
    _add_new_pairs(symbols, pairs, gained, changed)


def _occurrences(
    symbols: _Symbols, pairs: _Pairs, batch: _Batch, first_symbol: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the positions at which pairs of the batch are merged, and what they become."""
    firsts = pairs.first.values[batch.slots].tolist()
    sizes = pairs.size.values[batch.slots]
    listed = pairs.positions.values
    positions = np.concatenate(
        [listed[first : first + size] for first, size in zip(firsts, sizes.tolist(), strict=True)]
    )
    current = symbols.slot[positions] == np.repeat(batch.slots, sizes)
    merged = np.repeat(np.arange(first_symbol, first_symbol + len(sizes), dtype=np.int32), sizes)
    positions, merged = positions[current], merged[current]
    left, right = divmod(int(batch.keys[0]), MAX_SYMBOLS)
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
    symbols: _Symbols, pairs: _Pairs, positions: NDArray[np.int32], weights: NDArray[np.int64]
) -> None:
    """Give slots to the pairs that now start at these positions, all of them new pairs."""
    if len(positions) == 0:
        return
    keys = _keys(symbols.symbol[positions], symbols.symbol[symbols.following[positions]])
    order = _sorted_order(keys)
    positions = positions[order]
    symbols.slot[positions] = pairs.add(keys[order], positions, weights[order])


def _sorted_order(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order that sorts pairs' keys."""
    if len(keys) >> _INDEX_BITS:
        return np.argsort(keys, kind="stable")
    # Sorting numbers that hold their index is several times faster than sorting indices.
    packed = keys.astype(np.uint64) << np.uint64(_INDEX_BITS)
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    return (packed & np.uint64((1 << _INDEX_BITS) - 1)).view(np.int64)


def _translate(
    batches: list[_Batch], symbols: _Symbols, ranks: NDArray[np.uint32]
) -> TrainedMerges:
    """Turn the merged pairs of symbols into pairs of ids."""
    empty = np.empty(0, np.int64)
    keys = np.concatenate([empty, *(batch.keys for batch in batches)])
    counts = np.concatenate([empty, *(batch.counts for batch in batches)])
    ids = np.arange(256 + len(keys), dtype=np.uint32)
    ids[ranks] = np.arange(256, dtype=np.uint32)
    pairs = np.stack([keys >> _SYMBOL_BITS, keys & (MAX_SYMBOLS - 1)], axis=1)
    return TrainedMerges(ids[pairs], counts, symbols.total)
