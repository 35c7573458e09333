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
- A merge that spells a token which is there already, but which no merge has made (see
  `llmgpu.bpe.symbols.Spellings`), makes a symbol that is not new: its pairs may outrank what
  follows in the prefix, so the prefix ends with it. Apart from that it is as good as new, because
  it is nowhere in the words yet.
- Every pair has a slot, and every position has the slot of the pair that starts there. A pair
  gains occurrences only in the batch that makes it, as its newer symbol is made there. So its
  positions are one range of a list; those whose slot has changed since are stale.
- A pair that is too rare when it is made stays too rare, and one that is too long stays too long:
  it gets no slot of its own. What it would be merged to is longer yet, so pairs left out for their
  length change nothing of the above.
- Candidates for the next batch are taken from a short list of the best-ranked pairs, which is
  filled again from all pairs when it runs empty.
- Replaying known merges is the same work without the ranking: only pairs that are to be merged get
  slots, and consecutive merges that share no symbols as the above demands are one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.merges import OnMerges, SymbolMerges
from llmgpu.bpe.symbols import Spellings, SymbolWords, offsets_of
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


Keep = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


def train(
    words: SymbolWords,
    *,
    merges: int,
    min_frequency: int = 2,
    max_token_length: int | None = None,
    progress: Progress = no_progress,
    on_merges: OnMerges | None = None,
    spellings: Spellings | None = None,
) -> SymbolMerges:
    """Learn merges that make up to `merges` new symbols.

    min_frequency: rarer pairs are not merged; 0 counts as 1.
    max_token_length: pairs of more bytes are not merged. Hugging Face's trainer compares otherwise:
        its max_token_length is one more than this, and never keeps two bytes apart.
    on_merges: takes the merges of each batch.
    spellings: symbols that merging may still reach; what is merged is added to it. A merge that
        reaches one makes no new symbol.

    Memory: about 60 bytes for each symbol of the words, half of it for the positions of pairs, and
    up to 60 for each distinct pair.

    Raises:
        LlmgpuError: more tokens or more positions than the trainer can number.
    """
    _check_limits(words, merges)
    least = max(min_frequency, 1)
    lengths = GrowableArray(np.int64, len(words.lengths) + merges)
    lengths.append(words.lengths)
    symbols = _Symbols(words)
    pairs = _Pairs(_worth_merging(least, max_token_length, lengths))
    _count_pairs(symbols, pairs)
    short_list = _ShortList(pairs, least, spellings)
    log = _Log(on_merges)
    while len(lengths) < len(words.lengths) + merges:
        missing = len(words.lengths) + merges - len(lengths)
        batch = short_list.next_batch(min(missing, MAX_BATCH), len(lengths))
        if len(batch.slots) == 0:
            break
        keys, counts = pairs.keys.values[batch.slots], pairs.counts.values[batch.slots]
        left, right = _split(keys)
        new = batch.results >= len(lengths)
        lengths.append((lengths.values[left] + lengths.values[right])[new])
        _merge_batch(symbols, pairs, batch)
        log.add(keys, counts)
        progress("merging", len(lengths) - len(words.lengths), merges)
    return SymbolMerges(*log.merges(), symbols.total, log.batches)


def apply_merges(
    words: SymbolWords, merges: NDArray[np.uint32], progress: Progress = no_progress
) -> SymbolWords:
    """Merge given pairs everywhere, one after the other, and return what becomes of the words.

    merges: uint32 (S, 3), the left symbol, the right one and the result, first merge first. Pairs
        may be absent; results may be symbols that are there already.

    Raises:
        LlmgpuError: more tokens or more positions than the trainer can number.
    """
    results = merges[:, 2].astype(np.int64)
    size = max(len(words.lengths), int(results.max(initial=0)) + 1)
    _check_limits(words, size - len(words.lengths))
    keys = _keys(merges[:, 0], merges[:, 1])
    symbols = _Symbols(words)
    pairs = _Pairs(_one_of(np.unique(keys)))
    _count_pairs(symbols, pairs)
    slots_of: dict[int, list[int]] = {}
    known = 1  # slots below are in slots_of
    for first, last in _independent_groups(merges):
        for slot, key in enumerate(pairs.keys.values[known:].tolist(), known):
            slots_of.setdefault(key, []).append(slot)
        known = len(pairs.keys)
        progress("replaying merges", last, len(merges))
        slots = [slots_of.get(key, []) for key in keys[first:last].tolist()]
        counted = np.fromiter(map(len, slots), np.int64, last - first)
        if counted.any():
            together = np.array([slot for some in slots for slot in some], np.int64)
            _merge_batch(symbols, pairs, _Batch(together, np.repeat(results[first:last], counted)))
    return replace(symbols.words(), lengths=_lengths_of(words.lengths, merges, size))


def _check_limits(words: SymbolWords, new_symbols: int) -> None:
    tokens = len(words.lengths) + new_symbols
    if tokens > MAX_SYMBOLS:
        raise LlmgpuError(
            f"{tokens} tokens asked for, the trainer can number {MAX_SYMBOLS}; ask for fewer"
        )
    positions = len(words.symbols) + len(words.counts) + 1
    if positions > MAX_POSITIONS:
        raise LlmgpuError(
            f"the distinct pre-tokens take {positions} positions, the trainer can number "
            f"{MAX_POSITIONS}; use --limit, or a pattern that makes shorter pre-tokens"
        )


def _worth_merging(
    least: int, max_token_length: int | None, lengths: GrowableArray[np.int64]
) -> Keep:
    """Return what says which pairs, by keys and counts, may be merged now or later."""

    def keep(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        kept = counts >= least
        if max_token_length is not None:
            left, right = _split(keys)
            kept &= lengths.values[left] + lengths.values[right] <= max_token_length
        return kept

    return keep


def _one_of(wanted: NDArray[np.int64]) -> Keep:
    """Return what says which pairs are among `wanted`, ascending keys."""

    def keep(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        found = np.searchsorted(wanted, keys)
        inside = found < len(wanted)
        inside[inside] = wanted[found[inside]] == keys[inside]
        return inside

    return keep


def _independent_groups(merges: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """Cut merges into ranges [first, last) that can be merged in one pass each.

    In a group no left symbol is a right one, no result is a part, and no pair comes twice; a pair
    of equal symbols is alone.
    """
    first = 0
    lefts: set[int] = set()
    rights: set[int] = set()
    results: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    for index, (left, right, result) in enumerate(merges.tolist()):
        # Lefts and rights are the same where a pair of equal symbols is in the group.
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
    """Return the bytes of `size` symbols, of which those behind `lengths` are made by merges."""
    known = lengths.tolist() + [0] * (size - len(lengths))
    for left, right, result in merges.tolist():
        known[result] = known[left] + known[right]
    return np.array(known, np.uint32)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pairs to merge in one pass: their slots (int64), and the symbols they become (int64).

    A pair of equal symbols has no other pair with it.
    """

    slots: NDArray[np.int64]
    results: NDArray[np.int64]


class _Log:
    """The merges made: their keys and counts, batch by batch."""

    def __init__(self, on_merges: OnMerges | None) -> None:
        self._keys = GrowableArray(np.int64)
        self._counts = GrowableArray(np.int64)
        self._on_merges = on_merges
        self.batches = 0

    def add(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.batches += 1
        self._keys.append(keys)
        self._counts.append(counts)
        if self._on_merges is not None:
            self._on_merges(_pairs_of(keys), counts)

    def merges(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        return _pairs_of(self._keys.values), self._counts.values


class _Symbols:
    """The symbols of all words.

    All arrays have one entry for each position: a separator, then the symbols of the first word, a
    separator, and so on. Of a merged symbol only the first position stays linked.
    symbol: int32; the separator is -1.
    following, preceding: int32, the neighbours' positions.
    slot: int32, that of the pair that starts here.
    weight: int64, how often the word occurs; a separator has that of the word before it.
    total: number of symbols in the whole text.
    """

    def __init__(self, words: SymbolWords) -> None:
        self.total = words.total
        spans = np.diff(words.offsets) + 1
        size = int(spans.sum()) + 1
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[np.cumsum(spans)] = False
        self.symbol = np.full(size, _SEPARATOR, np.int32)
        self.symbol[inside] = words.symbols
        self.weight = np.zeros(size, np.int64)
        self.weight[1:] = np.repeat(words.counts, spans)
        self.following = np.arange(1, size + 1, dtype=np.int32)
        self.preceding = np.arange(-1, size - 1, dtype=np.int32)
        self.slot = np.full(size, _NO_SLOT, np.int32)

    def words(self) -> SymbolWords:
        """Return the words as they are now, without lengths."""
        # The neighbours of a position that is no longer linked don't know it any more.
        last = len(self.symbol) - 1
        linked = np.flatnonzero(self.preceding[self.following[:-1]] == np.arange(last))
        linked = np.append(linked, last)
        symbols = self.symbol[linked]
        separators = np.flatnonzero(symbols == _SEPARATOR)
        lengths = np.diff(separators) - 1
        kept = lengths > 1
        taken = np.append(False, np.repeat(kept, lengths + 1)) & (symbols != _SEPARATOR)
        return SymbolWords(
            symbols=symbols[taken].astype(np.uint32),
            offsets=offsets_of(lengths[kept]),
            counts=self.weight[linked[separators[1:]]][kept],
            lengths=np.empty(0, np.uint32),
            total=self.total,
        )


class _Pairs:
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
            column.append(np.zeros(1, np.int64))  # _NO_SLOT

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
        order = _sorted_order(_keys(symbol[positions], symbol[positions + 1]))
    positions = positions[order]
    keys = _keys(symbol[positions], symbol[positions + 1])
    symbols.slot[positions] = pairs.add(keys, positions, symbols.weight[positions])


def _keys(left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int64]:
    return left.astype(np.int64) << _SYMBOL_BITS | right


def _split(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return keys >> _SYMBOL_BITS, keys & (MAX_SYMBOLS - 1)


def _pairs_of(keys: NDArray[np.int64]) -> NDArray[np.uint32]:
    return np.column_stack(_split(keys)).astype(np.uint32)


class _ShortList:
    """The best-ranked pairs: all that rank at or before a threshold, and possibly some behind it.

    The threshold is a count and a key. Pairs whose count falls behind it are left out.
    """

    def __init__(self, pairs: _Pairs, least: int, spellings: Spellings | None) -> None:
        self._pairs = pairs
        self._least = least
        self._spellings = spellings
        self._slots = np.empty(0, np.int64)
        self._known = 1  # slots below were looked at
        self._count = np.iinfo(np.int64).max
        self._key = -1

    def next_batch(self, limit: int, next_symbol: int) -> _Batch:
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
        return _Batch(slots[best[: len(results)]], results)

    def _results(self, keys: NDArray[np.int64], next_symbol: int) -> NDArray[np.int64]:
        """Return what the pairs become, up to the first that becomes a symbol there is already."""
        results = np.arange(next_symbol, next_symbol + len(keys))
        if self._spellings is None:
            return results
        for index, (left, right) in enumerate(_pairs_of(keys).tolist()):
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


def _merge_batch(symbols: _Symbols, pairs: _Pairs, batch: _Batch) -> None:
    """Merge the pairs of a batch everywhere."""
    positions, merged = _occurrences(symbols, pairs, batch)
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
    symbols: _Symbols, pairs: _Pairs, batch: _Batch
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
