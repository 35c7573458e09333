"""Words as one array of symbols that is scanned for the best pairs: merging in little memory.

`linked_words` keeps the links of every symbol and the positions of every pair, which takes up to 85
bytes for each byte of the words. Here a symbol takes 4, and only listed pairs have positions.

- A scan counts all pairs and lists the best: all that rank at or before a threshold. They have as
  many positions as a fraction of the symbols, or are the best one alone.
- A pair gains occurrences only in the batch that makes it, so the listed pairs are all that rank at
  or before the threshold, if pairs that a batch makes are listed when they do. Once none of them
  does, the text is scanned again.
- A symbol covers as many cells as the symbols that it was merged from had at the last scan: its
  number is in the first and, marked as an end, in the last cell. So the neighbours of a cell are
  found without links. A scan moves the symbols together, to one cell each.
- Arrays as long as a pair's positions are worked on in chunks, and pairs are counted in as many
  passes as it takes to have up to MOST_COUNTED of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import GrowableArray, ranges
from llmgpu.bpe.training.linked_words import (
    MAX_SYMBOLS,
    SEPARATOR,
    SYMBOL_BITS,
    Keep,
    check_limits,
    pair_keys,
    sorted_order,
    split_keys,
)
from llmgpu.bpe.training.symbols import SymbolWords
from llmgpu.memory import Costs

COSTS = Costs(fixed=176 << 20, per_byte=11.5, per_word=24)
CHUNK = 1 << 18  # cells or positions worked on at a time
MOST_LISTED = 1 << 14  # pairs
MOST_COUNTED = 1 << 22  # different pairs counted at a time
LISTED_SHARE = 4  # pairs are listed up to 1/4 as many positions as there are symbols
_GONE = -2  # a cell inside a symbol
_NUMBER = MAX_SYMBOLS - 1  # the bits of a symbol's number in a cell
_END = MAX_SYMBOLS  # set in the last cell of a symbol that has several
_MERGING = MAX_SYMBOLS << 1  # set in the first cell of symbols that the current batch makes

_Counted = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]  # keys, counts, sizes
_Placed = tuple[NDArray[np.int64], NDArray[np.integer]]  # keys of pairs, and where they are


# Of a chunk of a batch: where its pairs are, and their left, right and new symbols.
_Part = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class ScannedWords:
    """The symbols of all words, and the pairs that are listed, by slot.

    keys: int64, left symbol << 20 | right symbol. counts: int64, weighted occurrences; 0 after the
    merge. Slot 0 is none. total: number of symbols in the whole text.
    """

    def __init__(self, words: SymbolWords, new_symbols: int, keep: Keep) -> None:
        """Take words, and how many symbols merging may add; `keep` says which pairs are merged."""
        check_limits(words, new_symbols)
        self.total = words.total
        self._keep = keep
        self._word_counts = words.counts
        self._cells = _laid_out(words)
        self._spans = np.ones(len(words.lengths) + new_symbols, np.int32)
        self._clear()

    def _clear(self) -> None:
        """List nothing."""
        self.keys, self.counts = GrowableArray(np.int64), GrowableArray(np.int64)
        self.keys.append(np.full(1, -1))
        self.counts.append(np.zeros(1, np.int64))
        self._positions: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        self._kept_positions = self._most_positions = 0
        self._least: tuple[int, int] | None = (0, 0)  # count and key of the last pair; None: all

    def live(self, least: int) -> NDArray[np.int64]:
        """Return the slots of all pairs down to some rank; none if none occurs `least` times."""
        slots = self._listed(least)
        if len(slots) == 0 and self._least is not None:
            self._scan()
            slots = self._listed(least)
        return slots

    def _listed(self, least: int) -> NDArray[np.int64]:
        counts = self.counts.values
        return np.flatnonzero((counts >= least) & self._ranks_high(self.keys.values, counts))

    def _ranks_high(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which pairs rank at or before the threshold."""
        if self._least is None:
            return np.ones(len(keys), np.bool_)
        count, key = self._least
        passed: NDArray[np.bool_] = (counts > count) | ((counts == count) & (keys <= key))
        return passed

    # -- Scanning --

    def _scan(self) -> None:
        """Count all pairs and list the best."""
        self._clear()
        self._move_together()
        (keys, counts, sizes), is_all = self._best_pairs()
        most = len(self._cells) // LISTED_SHARE
        listed = max(int(np.searchsorted(np.cumsum(sizes), most, side="right")), 1)
        if listed < len(keys) or not is_all:
            keys, counts, sizes = keys[:listed], counts[:listed], sizes[:listed]
            self._least = int(counts[-1]), int(keys[-1])
        else:
            self._least = None
        by_key = np.argsort(keys)
        self._list(keys[by_key], counts[by_key], sizes[by_key], self._pairs_in_chunks())
        self._most_positions = 2 * max(most, self._kept_positions)

    def _best_pairs(self) -> tuple[_Counted, bool]:
        """Return up to MOST_LISTED pairs, the best first, and whether these are all."""
        passes = 1 + min(len(self._cells), int(self._cells.max()) ** 2) // MOST_COUNTED
        best, is_all = _NONE, True
        for remainder in range(passes):
            counted = (
                _counted(keys[chosen], self._weights(places[chosen]))
                for keys, places in self._pairs_in_chunks()
                for chosen in [(keys >> SYMBOL_BITS) % passes == remainder]
            )
            keys, counts, sizes = _added_up(counted)
            kept = self._keep(keys, counts)
            together = _joined([best, (keys[kept], counts[kept], sizes[kept])])
            order = np.lexsort((together[0], -together[1]))
            is_all &= len(order) <= MOST_LISTED
            keys, counts, sizes = (column[order[:MOST_LISTED]] for column in together)
            best = keys, counts, sizes
        return best, is_all

    def _move_together(self) -> None:
        """Leave one cell for each symbol and separator."""
        cells, kept = self._cells, 0
        separators = [np.empty(0, np.int64)]
        for first in range(0, len(cells), CHUNK):
            some = cells[first : first + CHUNK]
            some = some[(some > _GONE) & (some < _END)]
            separators.append(kept + np.flatnonzero(some == SEPARATOR))
            cells[kept : kept + len(some)] = some
            kept += len(some)
        cells.resize(kept, refcheck=False)  # in place
        self._separators = np.concatenate(separators)
        self._spans[:] = 1

    def _pairs_in_chunks(self) -> Iterator[_Placed]:
        """Yield the pairs of the text, whose symbols have one cell each."""
        cells = self._cells
        for first in range(0, len(cells) - 1, CHUNK):
            some = cells[first : first + CHUNK + 1]
            places = np.flatnonzero((some[:-1] >= 0) & (some[1:] >= 0))
            yield pair_keys(some[places], some[places + 1]), first + places

    def _weights(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return how often the words at positions occur."""
        if len(self._word_counts) == 1:
            return np.full(len(positions), self._word_counts[0])
        return self._word_counts[np.searchsorted(self._separators, positions) - 1]

    def _list(
        self,
        keys: NDArray[np.int64],
        counts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        pairs: Iterable[_Placed],
    ) -> None:
        """Add pairs, ascending by key, of which `pairs` has all positions."""
        if len(keys) == 0:
            return
        self.keys.append(keys)
        self.counts.append(counts)
        ends = np.cumsum(sizes)
        positions = np.empty(int(ends[-1]), np.int32)
        filled = ends - sizes
        for found, places in pairs:
            slots = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
            hit = np.flatnonzero(keys[slots] == found)
            hit = hit[np.argsort(slots[hit], kind="stable")]
            many = np.bincount(slots[hit], minlength=len(keys))
            positions[ranges(filled, many)] = places[hit]
            filled += many
        # A single pair may have as many positions as there are symbols: it gets the array itself.
        self._positions += [positions] if len(keys) == 1 else np.split(positions, ends[:-1])
        self._kept_positions += len(positions)

    # -- Merging --

    def merge_batch(self, slots: NDArray[np.int64], results: NDArray[np.int64]) -> None:
        """Merge the pairs with these slots everywhere; see `linked_words.merge_batch`."""
        left, right = split_keys(self.keys.values[slots])
        found = [
            self._take_occurrences(*pair)
            for pair in zip(slots.tolist(), left.tolist(), right.tolist(), strict=True)
        ]
        batch = _batch(found, np.stack([left, right, results]))
        del found
        cells, spans = self._cells, self._spans
        for at, *_ in batch:
            cells[at] |= _MERGING
        self._take_off_counts(batch)
        self.counts.values[slots] = 0
        for at, first, second, result in batch:
            self.total -= int(self._weights(at).sum())
            middle = at + spans[first]
            end = middle + spans[second] - 1
            cells[middle - 1] = cells[middle] = _GONE
            cells[end] = result | _END
            cells[at] = result | _MERGING
        spans[results] = spans[left] + spans[right]
        self._list_new_pairs(batch)
        for at, *_ in batch:
            cells[at] &= ~_MERGING
        if self._kept_positions > self._most_positions:
            self._drop_stale()

    def _take_occurrences(self, slot: int, left: int, right: int) -> NDArray[np.int32]:
        """Return the positions at which a pair is merged, ascending, and keep them no more."""
        positions, self._positions[slot] = self._positions[slot], self._positions[0]
        self._kept_positions -= len(positions)
        current = self._current(positions, left, right)
        if left == right:
            current.sort()
            current = _every_other(current, int(self._spans[left]))
        if positions.base is not None:
            return current
        count = len(current)
        del current
        positions.resize(count, refcheck=False)  # in place, where they are now
        return positions

    def _current(self, positions: NDArray[np.int32], left: int, right: int) -> NDArray[np.int32]:
        """Move the positions that are still of a pair to the front, and return these."""
        kept, span = 0, self._spans[left]
        for first in range(0, len(positions), CHUNK):
            some = positions[first : first + CHUNK]
            some = some[(self._cells[some] == left) & (self._cells[some + span] == right)]
            positions[kept : kept + len(some)] = some
            kept += len(some)
        return positions[:kept]

    def _neighbours(
        self, at: NDArray[np.int32], spans: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the symbols before and after what starts `at` and has `spans` cells.

        -1 for none, and for one after that the batch makes: its neighbour before is this one.
        """
        before, after = self._cells[at - 1], self._cells[at + spans]
        before[before >= 0] &= _NUMBER
        after[after >= _MERGING] = SEPARATOR
        return before, after

    def _take_off_counts(self, batch: _Batch) -> None:
        """Take the pairs that will no longer be there off the counts of those that are listed."""
        order = np.argsort(self.keys.values)
        keys = self.keys.values[order]
        for at, first, second, _ in batch:
            before, after = self._neighbours(at, self._spans[first] + self._spans[second])
            has_before, has_after = before >= 0, after >= 0
            lost = np.concatenate(
                [
                    pair_keys(before[has_before], first[has_before]),
                    pair_keys(second[has_after], after[has_after]),
                ]
            )
            weights = self._weights(np.concatenate([at[has_before], at[has_after]]))
            found = np.minimum(np.searchsorted(keys, lost), len(keys) - 1)
            hit = keys[found] == lost
            np.subtract.at(self.counts.values, order[found[hit]], weights[hit])

    def _list_new_pairs(self, batch: _Batch) -> None:
        """List the pairs that the batch makes if they rank high enough."""
        made: Iterable[_Placed] = (self._made(*part) for part in batch)
        if batch.is_small:
            made = list(made)
        keys, counts, sizes = _added_up(
            _counted(keys, self._weights(places)) for keys, places in made
        )
        chosen = self._keep(keys, counts) & self._ranks_high(keys, counts)
        if not batch.is_small:
            made = (self._made(*part) for part in batch)
        self._list(keys[chosen], counts[chosen], sizes[chosen], made)

    def _made(
        self,
        at: NDArray[np.int32],
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        result: NDArray[np.int64],
    ) -> _Placed:
        """Return the pairs of symbols that a batch made, one for each boundary."""
        before, after = self._neighbours(at, self._spans[result])
        has_before, has_after = before >= 0, after >= 0
        before = before[has_before]
        keys = np.concatenate(
            [
                pair_keys(before, result[has_before]),
                pair_keys(result[has_after], after[has_after]),
            ]
        )
        return keys, np.concatenate([at[has_before] - self._spans[before], at[has_after]])

    def _drop_stale(self) -> None:
        """Drop positions whose pair has changed."""
        lefts, rights = split_keys(self.keys.values)
        for slot, (left, right) in enumerate(zip(lefts.tolist(), rights.tolist(), strict=True)):
            if len(self._positions[slot]):
                self._positions[slot] = self._current(self._positions[slot], left, right).copy()
        self._kept_positions = sum(map(len, self._positions))
        self._most_positions = max(self._most_positions, 2 * self._kept_positions)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Where pairs are merged: chunks of positions with their left, right and new symbols.

    places: int32 (n,). of_pair: uint16 (n,), which of the merges, int64 (3, pairs).
    """

    places: NDArray[np.int32]
    of_pair: NDArray[np.uint16]
    merges: NDArray[np.int64]

    @property
    def is_small(self) -> bool:
        """Whether it is one chunk."""
        return len(self.places) <= CHUNK

    def __iter__(self) -> Iterator[_Part]:
        for first in range(0, len(self.places), CHUNK):
            left, right, result = self.merges[:, self.of_pair[first : first + CHUNK]]
            yield self.places[first : first + CHUNK], left, right, result


def _batch(places: list[NDArray[np.int32]], merges: NDArray[np.int64]) -> _Batch:
    """Put the positions of several pairs end to end."""
    if len(places) == 1:
        return _Batch(places[0], np.broadcast_to(np.uint16(0), len(places[0])), merges)
    of_pair = np.repeat(np.arange(len(places), dtype=np.uint16), list(map(len, places)))
    return _Batch(np.concatenate(places), of_pair, merges)


_NONE: _Counted = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def _laid_out(words: SymbolWords) -> NDArray[np.int32]:
    """Return the symbols with a separator around each word."""
    ends = words.offsets[1:] + np.arange(1, len(words.counts) + 1)
    cells = np.empty(len(words.symbols) + len(words.counts) + 1, np.int32)
    inside = np.ones(len(cells), np.bool_)
    inside[0] = inside[ends] = False
    cells[~inside] = SEPARATOR
    cells[inside] = words.symbols
    return cells


def _counted(keys: NDArray[np.int64], weights: NDArray[np.int64]) -> _Counted:
    """Add up the weights of equal keys, and how many there are."""
    if len(keys) == 0:
        return _NONE
    order = sorted_order(keys)
    keys, weights = keys[order], weights[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(weights, starts), np.diff(starts, append=len(keys))


def _added_up(parts: Iterable[_Counted]) -> _Counted:
    """Add up pairs that were counted in parts; ascending by key."""
    total, waiting, size = _NONE, [], 0
    for part in parts:
        waiting.append(part)
        size += len(part[0])
        if size > len(total[0]) + CHUNK:  # so each pair is added up a few times only
            total, waiting, size = _sum([total, *waiting]), [], 0
    return _sum([total, *waiting])


def _sum(parts: list[_Counted]) -> _Counted:
    keys, counts, sizes = _joined(parts)
    if len(keys) == 0:
        return _NONE
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    counts, sizes = (np.add.reduceat(column[order], starts) for column in (counts, sizes))
    return keys[starts], counts, sizes


def _joined(parts: list[_Counted]) -> _Counted:
    keys, counts, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return keys, counts, sizes


def _every_other(positions: NDArray[np.int32], span: int) -> NDArray[np.int32]:
    """Of ascending positions of a pair (a, a), keep those that a merge from the left takes.

    span: cells of a. See `linked_words`.
    """
    kept, last, taken = 0, -1, False  # the last position, and whether it is taken
    for first in range(0, len(positions), CHUNK):
        some = positions[first : first + CHUNK]
        begins = np.diff(some, prepend=np.int32(last)) != span
        if last < 0:
            begins[0] = True
        place = np.arange(len(some))
        # Before the first run that begins here, counting continues from the last position.
        begun = np.maximum.accumulate(np.where(begins, place, -2 + taken))
        last_is_taken = (place - begun) % 2 == 0
        last, taken = int(some[-1]), bool(last_is_taken[-1])
        some = some[last_is_taken]
        positions[kept : kept + len(some)] = some
        kept += len(some)
    return positions[:kept]
