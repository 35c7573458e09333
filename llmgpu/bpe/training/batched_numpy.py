"""The batched trainer on NumPy: exactly the merges of the sequential algorithm, many at a time.

BPE training merges the most frequent pair of neighbouring symbols, again and again. Of the pairs
ranked by (count descending, rank of the left symbol, rank of the right symbol), the longest prefix
in which no pair's left symbol is any pair's right symbol can be merged in one pass:

- Merging (a, b) changes the counts of pairs (p, a) and (b, n) only, and none of those is in the
  prefix; nor do occurrences of its pairs overlap, since they would share a symbol.
- A new pair can't outrank a pair of the prefix. It is at most as frequent as the pair (p, a) or
  (b, n) it came from, and where it is just as frequent it ranks after it, because a new symbol
  ranks after all older ones.
- A pair (a, a) is a prefix by itself; its occurrences are merged from the left.

The words and the index of their pairs are in `linked_words`, which also replays known merges.

Decisions:

- A merge that spells an existing token which no merge has made (see `symbols.Spellings`) makes a
  symbol that is not new: its pairs may outrank what follows in the prefix, so the prefix ends with
  it. Apart from that it is as good as new, because it is nowhere in the words yet.
- A pair that is too rare when it is made stays too rare, and one that is too long stays too long:
  it gets no slot. What it would be merged to is longer yet, so pairs left out for their
  length change nothing of the above.
- Candidates for the next batch are taken from a short list of the best-ranked pairs, which is
  filled again from all pairs when it runs empty.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray
from llmgpu.bpe.training.linked_words import (
    MAX_SYMBOLS,
    SYMBOL_BITS,
    LinkedSymbols,
    PairIndex,
    check_limits,
    count_pairs,
    merge_batch,
    pairs_of_keys,
    split_keys,
)
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, OnMerges, Spellings, SymbolWords
from llmgpu.memory import Costs
from llmgpu.progress import Progress, no_progress

MAX_BATCH = 256  # merges in one pass
COSTS = Costs(fixed=10 << 20, per_byte=85, per_word=40)
SHORT_LIST = 1024  # pairs ranked for the next batches


def train(
    words: SymbolWords,
    options: TrainingOptions,
    *,
    merges: int,
    progress: Progress = no_progress,
    on_merges: OnMerges | None = None,
    spellings: Spellings | None = None,
) -> Merges:
    """Learn merges that make up to `merges` new symbols.

    options: say which pairs may be merged. (Hugging Face's trainer compares lengths differently:
        its max_token_length is one more than ours, and never keeps two bytes apart.)
    on_merges: takes the merges of each batch.
    spellings: symbols that merging may still reach, to which what is merged is added. A merge that
        reaches one makes no new symbol.

    Memory: about 60 bytes for each symbol of the words, half of it for the positions of pairs, and
    up to 60 for each distinct pair.
    """
    check_limits(words, merges)
    lengths = GrowableArray(np.int64, len(words.lengths) + merges)
    lengths.append(words.lengths)
    least = max(options.min_frequency, 1)
    are_worth = partial(_are_worth_merging, lengths, least, options.max_token_length)
    symbols, pairs = LinkedSymbols(words), PairIndex(are_worth)
    count_pairs(symbols, pairs)
    short_list = ShortList(pairs, least, spellings)
    merged_keys, merged_counts, batches = GrowableArray(np.int64), GrowableArray(np.int64), 0
    while len(lengths) < len(words.lengths) + merges:
        missing = len(words.lengths) + merges - len(lengths)
        # Select the longest prefix of the ranking that is one pass, then merge it everywhere.
        slots, results = short_list.next_batch(min(missing, MAX_BATCH), len(lengths))
        if len(slots) == 0:
            break
        keys, counts = pairs.keys.values[slots], pairs.counts.values[slots]
        left, right = split_keys(keys)
        new = results >= len(lengths)
        lengths.append((lengths.values[left] + lengths.values[right])[new])
        merge_batch(symbols, pairs, slots, results)
        merged_keys.append(keys)
        merged_counts.append(counts)
        batches += 1
        if on_merges is not None:
            on_merges(pairs_of_keys(keys), counts)
        progress("merging", len(lengths) - len(words.lengths), merges)
    return Merges(pairs_of_keys(merged_keys.values), merged_counts.values, symbols.total, batches)


def _are_worth_merging(
    lengths: GrowableArray[np.int64],
    least: int,
    longest: int | None,
    keys: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return which pairs may ever be merged: by their count, and the bytes of what they become."""
    kept = counts >= least
    if longest is not None:
        left, right = split_keys(keys)
        kept &= lengths.values[left] + lengths.values[right] <= longest
    return kept


class ShortList:
    """The best-ranked pairs: all that rank at or before a threshold, and possibly some others.

    The threshold is a count and a key. Pairs whose count drops below it are left out.
    """

    def __init__(self, pairs: PairIndex, least: int, spellings: Spellings | None) -> None:
        self._pairs = pairs
        self._least = least
        self._spellings = spellings
        self._slots = np.empty(0, np.int64)
        self._known = 1  # slots below were looked at
        self._count = np.iinfo(np.int64).max
        self._key = -1

    def next_batch(
        self, limit: int, next_symbol: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the longest prefix of the ranking that can be merged at once; empty at the end.

        limit: the batch has up to this many merges. next_symbol: the first that is new.

        Returns the slots of the pairs, and the symbols they become.
        """
        self._update()
        # While anything passes the threshold, all that rank before it are here.
        if len(self._slots) == 0:
            self._refill()
        slots = self._slots
        counts, keys = self._pairs.counts.values[slots], self._pairs.keys.values[slots]
        best = _best_ranked(counts, keys, limit)
        best = best[: _independent_prefix(keys[best])]
        results = self._results(keys[best], next_symbol)
        return slots[best[: len(results)]], results

    def _results(self, keys: NDArray[np.int64], next_symbol: int) -> NDArray[np.int64]:
        """Return what the pairs become, up to the first that becomes an existing symbol."""
        results = np.arange(next_symbol, next_symbol + len(keys))
        if self._spellings is None:
            return results
        for index, (left, right) in enumerate(pairs_of_keys(keys).tolist()):
            results[index] = self._spellings.merge(left, right)
            if results[index] < next_symbol:
                return results[: index + 1]
        return results

    def _update(self) -> None:
        """Take new pairs in and leave out what ranks after the threshold."""
        fresh = np.arange(self._known, len(self._pairs.keys))
        self._known = len(self._pairs.keys)
        slots = np.concatenate([self._slots, fresh])
        counts, keys = self._pairs.counts.values[slots], self._pairs.keys.values[slots]
        passed = (counts > self._count) | ((counts == self._count) & (keys <= self._key))
        self._slots = slots[passed]

    def _refill(self) -> None:
        """Lower the threshold to the SHORT_LIST best pairs, or to all that there are."""
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
    # Select before sorting: all above the limit-th largest count, then the lowest keys with it.
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
        left, right = key >> SYMBOL_BITS, key & mask
        chains = left == right or left in rights or right in lefts
        if chains:
            return max(length, 1)
        lefts.add(left)
        rights.add(right)
    return len(keys)
