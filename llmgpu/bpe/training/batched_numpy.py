"""The batched trainer on NumPy: exactly the merges of the sequential algorithm, many at a time.

BPE training merges the most frequent pair of neighbouring symbols, again and again. Pairs are
ranked by (count descending, rank of the left symbol, rank of the right symbol). Consider the
longest prefix of the ranking in which no pair's left symbol is any pair's right symbol. One pass
can merge all pairs of this prefix:

- Merging (a, b) changes only the counts of pairs (p, a) and (b, n). No such pair is in the prefix.
  Occurrences of pairs in the prefix do not overlap either, since they would share a symbol.
- A new pair can't outrank a pair of the prefix. The new pair replaces occurrences of an older pair
  (p, a) or (b, n), so the new pair is at most as frequent. If both pairs are equally frequent, the
  new pair ranks after the older pair, because a new symbol ranks after all older symbols.
- A pair (a, a) is a prefix by itself; its occurrences are merged from the left.

Data:

- The symbols of all words lie end to end with a separator around each word. They are linked
  forwards and backwards, so that a merge changes only the merged symbols and their neighbours.
- Every pair has a slot, and every position has the slot of the pair that starts there. A pair gains
  occurrences only in the batch that makes the pair, because this batch also makes the newer of its
  two symbols. So the pair's positions are one range of a list. A position in the list is stale if
  its slot has changed since.

Decisions:

- A merge may spell an existing token that no merge has made (see `symbols.Spellings`). The symbol
  of such a merge is not new, so its pairs may outrank the next pairs of the prefix, and the prefix
  ends with this merge. Apart from its rank the symbol is like a new symbol: it occurs in no word
  yet.
- A pair that is too rare when it is made stays too rare, and a pair that is too long stays too
  long: such a pair gets no slot. Merging a long pair would give an even longer symbol, so leaving
  out long pairs does not change the argument above.
- Only pairs from a certain count on are ranked for the next batch. When no pair is as frequent any
  more, the count is lowered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges, offsets_of
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, Spellings, SymbolWords
from llmgpu.errors import LlmgpuError
from llmgpu.machine import Costs
from llmgpu.progress import Progress, no_progress
from llmgpu.spelling import spelled

SYMBOL_BITS = 20
MAX_SYMBOLS = 1 << SYMBOL_BITS
MAX_POSITIONS = (1 << 31) - 1
SEPARATOR = -1  # separates words, and stands before the first and after the last
NO_SLOT = 0  # slot of a position at which no pair starts, or a pair without a slot
MERGING = -1  # slot of positions that the current batch merges


def check_limits(words: SymbolWords, new_symbols: int) -> None:
    """Raise an LlmgpuError if there are more symbols or positions than the trainer can number."""
    tokens = len(words.lengths) + new_symbols
    if tokens > MAX_SYMBOLS:
        raise LlmgpuError(
            f"{tokens} tokens asked for, but the limit is {MAX_SYMBOLS}; ask for fewer"
        )
    if words.positions > MAX_POSITIONS:
        raise LlmgpuError(
            f"the distinct pre-tokens take {words.positions} positions, but the limit is "
            f"{MAX_POSITIONS}; use {spelled('--limit')}, or a pattern that makes shorter pre-tokens"
        )


class LinkedSymbols:
    """The symbols of all words, as a linked list.

    All arrays have one entry for each position: a separator, then the symbols of the first word, a
    separator, and so on. After a merge, only the first position of the merged symbol stays linked.
    symbol: int32; the separator is -1.
    following, preceding: int32, the neighbours' positions.
    slot: int32, the slot of the pair that starts at the position.
    weight: int64, occurrences of the word; a separator has the weight of the word before it.
    total: number of symbols in the whole text.
    """

    def __init__(self, words: SymbolWords) -> None:
        self.total = words.total
        # Lay out a separator, then for each word its symbols and another separator.
        spans = np.diff(words.offsets) + 1
        size = int(spans.sum()) + 1
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[np.cumsum(spans)] = False
        self.symbol = np.full(size, SEPARATOR, np.int32)
        self.symbol[inside] = words.symbols
        self.weight = np.zeros(size, np.int64)
        self.weight[1:] = np.repeat(words.counts, spans)
        self.following = np.arange(1, size + 1, dtype=np.int32)
        self.preceding = np.arange(-1, size - 1, dtype=np.int32)
        self.slot = np.full(size, NO_SLOT, np.int32)

    def words(self) -> SymbolWords:
        """Return the words after the merges so far; `lengths` of the result is empty."""
        # A position is linked if the next position points back to it.
        last = len(self.symbol) - 1
        linked = np.flatnonzero(self.preceding[self.following[:-1]] == np.arange(last))
        linked = np.append(linked, last)
        symbols = self.symbol[linked]
        separators = np.flatnonzero(symbols == SEPARATOR)
        lengths = np.diff(separators) - 1
        kept = lengths > 1
        taken = np.append(False, np.repeat(kept, lengths + 1)) & (symbols != SEPARATOR)
        return SymbolWords(
            symbols=symbols[taken].astype(np.uint32),
            offsets=offsets_of(lengths[kept]),
            counts=self.weight[linked[separators[1:]]][kept],
            lengths=np.empty(0, np.uint32),
            total=self.total,
        )


# A function that gets the keys and counts of new pairs, and returns a mask of the pairs that get
# slots.
Keep = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]


class PairIndex:
    """The pairs of `symbols` that have slots.

    When a pair first occurs, the function `keep` decides whether it gets a slot. All columns are
    indexed by slot.

    keys: int64, left symbol << 20 | right symbol.
    counts: int64, occurrences weighted by the counts of words; 0 after the pair is merged.
    first, size: int64 and int32, the pair's range in `positions`, stale entries included.
    """

    def __init__(self, symbols: LinkedSymbols, keep: Keep) -> None:
        """Count the pairs; keep: gets new pairs, and returns whether each pair gets a slot."""
        self.symbols, self._keep = symbols, keep
        self.keys = GrowableArray(np.int64)
        self.counts = GrowableArray(np.int64)
        self.first = GrowableArray(np.int64)
        self.size = GrowableArray(np.int32)
        self.positions = GrowableArray(np.int32)
        for column in (self.keys, self.counts, self.first, self.size):
            column.append(np.zeros(1, np.int64))  # slot 0 is NO_SLOT, which no pair uses
        # Count the pairs in the words before any merge.
        inside = symbols.symbol != SEPARATOR
        self.add(np.flatnonzero(inside[:-1] & inside[1:]).astype(np.int32))

    def add(self, positions: NDArray[np.int32]) -> None:
        """Assign slots to new occurrences of pairs, which start at the positions (n,)."""
        if len(positions) == 0:
            return
        # Sort the occurrences by their pairs, and sum the weights of each pair.
        symbol = self.symbols.symbol
        keys = pair_keys(symbol[positions], symbol[self.symbols.following[positions]])
        order = np.argsort(keys, kind="stable")
        keys, positions = keys[order], positions[order]
        starts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
        starts = np.concatenate([np.zeros(1, np.int64), starts])
        sizes = np.diff(starts, append=len(keys))
        counts = np.add.reduceat(self.symbols.weight[positions], starts)
        # Number the kept pairs; all other pairs get NO_SLOT.
        kept = self._keep(keys[starts], counts)
        slots = np.where(kept, np.cumsum(kept) + (len(self.keys) - 1), NO_SLOT)
        of_occurrence = self.symbols.slot[positions] = np.repeat(slots, sizes)
        sizes = sizes[kept]
        self.keys.append(keys[starts[kept]])
        self.counts.append(counts[kept])
        self.first.append(len(self.positions) + np.cumsum(sizes) - sizes)
        self.size.append(sizes)
        self.positions.append(positions[of_occurrence != NO_SLOT])


def pair_keys(left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return a key for each pair; keys sort by the left symbol's rank, then the right's."""
    return left.astype(np.int64) << SYMBOL_BITS | right


def split_keys(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the left symbols and the right symbols of pairs, given by their keys."""
    return keys >> SYMBOL_BITS, keys & (MAX_SYMBOLS - 1)


def pairs_of_keys(keys: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the left and the right symbol of each pair, uint32 (n, 2)."""
    return np.column_stack(split_keys(keys)).astype(np.uint32)


def merge_batch(pairs: PairIndex, slots: NDArray[np.int64], results: NDArray[np.int64]) -> None:
    """Merge the pairs with these slots everywhere, into the symbols `results`; both int64 (n,).

    A pair of two equal symbols must be merged alone.
    """
    symbols = pairs.symbols
    positions, merged = _occurrences(pairs, slots, results)
    seconds = symbols.following[positions]
    before, after = symbols.preceding[positions], symbols.following[seconds]
    weights = symbols.weight[positions]
    symbols.total -= int(weights.sum())

    # Find the boundaries that change: to the left and to the right of each merged pair. Two
    # adjacent merged pairs share a boundary, which `left` has and `right` leaves out.
    symbols.slot[positions] = MERGING
    left = np.flatnonzero(symbols.symbol[before] != SEPARATOR)
    right = np.flatnonzero((symbols.symbol[after] != SEPARATOR) & (symbols.slot[after] != MERGING))
    lost = np.concatenate([symbols.slot[before[left]], symbols.slot[seconds[right]]])
    # `subtract.at` handles repeated slots. Pairs without a slot change only the unused NO_SLOT.
    np.subtract.at(pairs.counts.values, lost, np.concatenate([weights[left], weights[right]]))
    pairs.counts.values[slots] = 0

    # Unlink the second symbols, and replace the first symbols by the merged symbols.
    symbols.symbol[positions] = merged
    symbols.following[positions] = after
    symbols.preceding[after] = positions
    symbols.slot[positions] = NO_SLOT
    symbols.slot[seconds] = NO_SLOT
    # A new pair with a new symbol starts before each changed boundary. Assign slots to these pairs.
    pairs.add(np.concatenate([symbols.preceding[positions[left]], positions[right]]))


def _occurrences(
    pairs: PairIndex, slots: NDArray[np.int64], results: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the positions at which the pairs of a batch are merged, and their merged symbols."""
    firsts, sizes = pairs.first.values[slots], pairs.size.values[slots].astype(np.int64)
    positions = concatenate_ranges(pairs.positions.values, firsts, sizes)
    # Drop stale positions, at which another pair starts since the positions were listed.
    current = pairs.symbols.slot[positions] == np.repeat(slots.astype(np.int32), sizes)
    positions = positions[current]
    merged = np.repeat(results.astype(np.int32), sizes)[current]
    left, right = divmod(int(pairs.keys.values[slots[0]]), MAX_SYMBOLS)
    if left == right:
        positions = _every_other(np.sort(positions), pairs.symbols.following)
        merged = merged[: len(positions)]
    return positions, merged


def _every_other(positions: NDArray[np.int32], following: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the positions at which a pair (a, a) is merged, from the left of each run.

    positions: all positions of the pair, ascending. A run of n equal symbols has n - 1 occurrences
    of the pair, of which every other one is merged.
    """
    # Number the occurrences of each run from 0: subtract the index of the run's first occurrence.
    index = np.arange(len(positions))
    run_starts = index.copy()
    run_starts[1:][following[positions[:-1]] == positions[1:]] = 0
    taken: NDArray[np.int32] = positions[(index - np.maximum.accumulate(run_starts)) % 2 == 0]
    return taken


def apply_merges(
    words: SymbolWords, merges: NDArray[np.uint32], progress: Progress = no_progress
) -> SymbolWords:
    """Merge given pairs everywhere, one after the other, and return the resulting words.

    The algorithm is that of `train` without ranking: only the pairs in `merges` get slots.

    merges: uint32 (S, 3), left symbol, right symbol and result, first merge first. Pairs may be
    absent from the words; results may be symbols that exist already.
    """
    # Return early if there are no merges, and no words of fewer than two symbols to drop.
    if len(merges) == 0 and (np.diff(words.offsets) > 1).all():
        return words
    results = merges[:, 2].astype(np.int64)
    size = max(len(words.lengths), int(results.max(initial=0)) + 1)
    check_limits(words, size - len(words.lengths))
    keys = pair_keys(merges[:, 0], merges[:, 1])
    symbols = LinkedSymbols(words)
    wanted = np.unique(keys)
    pairs = PairIndex(symbols, lambda keys, counts: np.isin(keys, wanted))
    for done, (merged, result) in enumerate(zip(keys.tolist(), results.tolist(), strict=True), 1):
        progress("replaying merges", done, len(merges))
        # A pair may have several slots: it gets another slot for each merge that makes occurrences
        # of it.
        slots = np.flatnonzero(pairs.keys.values == merged)
        if len(slots):
            merge_batch(pairs, slots, np.full(len(slots), result))
    # A result may be an existing symbol, so set the lengths in the order of the merges.
    lengths = words.lengths.tolist() + [0] * (size - len(words.lengths))
    for left, right, result in merges.tolist():
        lengths[result] = lengths[left] + lengths[right]
    return replace(symbols.words(), lengths=np.array(lengths, np.uint32))


MAX_BATCH = 256  # limit of the merges in one pass
COSTS = Costs(fixed=10 << 20, per_byte=85, per_word=40)
SHORT_LIST = 1024  # pairs ranked for the next batches, besides pairs with the count of the last


def train(words: SymbolWords, options: TrainingOptions, task: MergeTask) -> Merges:
    """Learn the merges of a task.

    options: `min_frequency` and `max_token_length` decide which pairs may be merged. (Hugging
        Face's trainer needs a max_token_length larger by one for the same limit, and its limit
        never stops two bytes from merging.)

    Memory: about 60 bytes for each symbol of the words, half of this for the positions of pairs,
    and up to 60 for each distinct pair.
    """
    check_limits(words, task.merges)
    wanted = len(words.lengths) + task.merges  # symbols
    lengths = GrowableArray(np.int64, wanted)
    lengths.append(words.lengths)
    least = max(options.min_frequency, 1)
    longest = options.max_token_length

    def are_worth(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        kept = counts >= least
        if longest is not None:
            left, right = split_keys(keys)
            kept &= lengths.values[left] + lengths.values[right] <= longest
        return kept

    symbols = LinkedSymbols(words)
    pairs = PairIndex(symbols, are_worth)
    ranking = Ranking(pairs, least, task.spellings)
    merged_keys, merged_counts, batches = GrowableArray(np.int64), GrowableArray(np.int64), 0
    while len(lengths) < wanted:
        # Find the longest prefix of the ranking that one pass can merge, and merge it everywhere.
        most = min(wanted - len(lengths), MAX_BATCH)
        slots, results = ranking.next_batch(most, len(lengths))
        if len(slots) == 0:
            break
        keys, counts = pairs.keys.values[slots], pairs.counts.values[slots]
        left, right = split_keys(keys)
        # A result below len(lengths) is a symbol that exists already.
        new = results >= len(lengths)
        lengths.append((lengths.values[left] + lengths.values[right])[new])
        merge_batch(pairs, slots, results)
        # Record and report the merges.
        merged_keys.append(keys)
        merged_counts.append(counts)
        batches += 1
        if task.on_merges is not None:
            task.on_merges(pairs_of_keys(keys), counts)
        task.progress("merging", len(lengths) - len(words.lengths), task.merges)
    return Merges(pairs_of_keys(merged_keys.values), merged_counts.values, symbols.total, batches)


class Ranking:
    """Chooses the pairs of each batch.

    `_floor` is the lowest count of the pairs that are ranked. While any pair is as frequent, the
    best-ranked pairs are among these, so few pairs have to be sorted.
    """

    def __init__(self, pairs: PairIndex, least: int, spellings: Spellings | None) -> None:
        self._pairs, self._least, self._spellings = pairs, least, spellings
        self._floor = np.iinfo(np.int64).max

    def next_batch(
        self, limit: int, next_symbol: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the longest prefix of the ranking that one pass can merge; empty at the end.

        limit: largest number of merges of the batch. next_symbol: the first new symbol.

        Returns the slots of the pairs, and their merged symbols, both int64 (n,).
        """
        counts = self._pairs.counts.values
        slots = np.flatnonzero(counts >= self._floor)
        if len(slots) == 0:
            # Lower the floor to the count of the pair of rank SHORT_LIST.
            live = counts[counts >= self._least]
            rank = min(SHORT_LIST, len(live))
            self._floor = np.partition(live, -rank)[-rank] if rank else self._least
            slots = np.flatnonzero(counts >= self._floor)
        keys = self._pairs.keys.values[slots]
        best = np.lexsort((keys, -counts[slots]))[:limit]
        best = best[: _independent_prefix(keys[best])]
        results = self._results(keys[best], next_symbol)
        return slots[best[: len(results)]], results

    def _results(self, keys: NDArray[np.int64], next_symbol: int) -> NDArray[np.int64]:
        """Return the merged symbols of the pairs, up to the first symbol that already exists."""
        results = np.arange(next_symbol, next_symbol + len(keys))
        if self._spellings is None:
            return results
        for index, (left, right) in enumerate(pairs_of_keys(keys).tolist()):
            results[index] = self._spellings.merge(left, right)
            if results[index] < next_symbol:
                return results[: index + 1]
        return results


def _independent_prefix(keys: NDArray[np.int64]) -> int:
    """Return the length of the prefix that one pass can merge; see the head of this module."""
    lefts: set[int] = set()
    rights: set[int] = set()
    for length, (left, right) in enumerate(pairs_of_keys(keys).tolist()):
        if left == right or left in rights or right in lefts:
            return max(length, 1)
        lefts.add(left)
        rights.add(right)
    return len(keys)
