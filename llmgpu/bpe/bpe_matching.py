"""Byte pair encoding on NumPy: the merges of a vocabulary applied to words, in the order of ranks.

- Of each word the pair of the lowest rank is merged, the leftmost of several, until no pair is
  left: the definition, for many words in lockstep. A round is a few operations on the symbols of
  all words that are not done.
- One long word alone goes through a heap of its pairs, in n log n steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.hash_table import HashTable
from llmgpu.bpe.matching import Matches, Words
from llmgpu.bpe.pair_ranks import NO_RANK, byte_ids, pair_ranks
from llmgpu.bpe.trie import NO_TOKEN
from llmgpu.bpe.trie_matcher import TrieMatcher
from llmgpu.bpe.vocabulary import Vocabulary

_RANK_SHIFT = np.int64(32)
_PLACE_MASK = np.int64(0xFFFFFFFF)
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


@dataclass(frozen=True, eq=False)
class _Symbols:
    """The symbols of words that are being merged, end to end.

    symbols: int32 (n,), ids.
    ranks: int32 (n,), of each symbol and the next one, NO_RANK at a word's end.
    firsts, counts: int64 (words,), where each word's symbols are.
    """

    symbols: NDArray[np.int32]
    ranks: NDArray[np.int32]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]

    def best_pairs(self) -> NDArray[np.int64]:
        """Return the lowest rank in each word and, in the lower half, the first place of it."""
        keys = self.ranks.astype(np.int64)
        keys <<= _RANK_SHIFT
        keys |= np.arange(len(keys))
        best: NDArray[np.int64] = np.minimum.reduceat(keys, self.firsts)
        return best

    def take(self, which: NDArray[np.bool_]) -> _Symbols:
        """Return some of the words."""
        kept, counts = np.repeat(which, self.counts), self.counts[which]
        return _Symbols(self.symbols[kept], self.ranks[kept], np.cumsum(counts) - counts, counts)


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare for the merges of a vocabulary."""
        self._pairs = pairs = pair_ranks(vocabulary)
        keys = pairs.left.astype(np.int64) << 32 | pairs.right
        self._ranks = HashTable(keys, pairs.ranks, default=NO_RANK)
        self._results = pairs.results
        self._byte_ids = byte_ids(vocabulary)
        self._tokens = TrieMatcher(vocabulary.trie) if vocabulary.ignore_merges else None

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of whole words; NO_TOKEN for a byte that has none."""
        whole = self._whole_tokens(text, words)
        rest = np.flatnonzero(whole == NO_TOKEN)
        ids, counts = self._merge(text, words.take(rest))
        all_counts = np.ones(len(whole), np.int64)
        all_counts[rest] = counts
        all_ids = np.repeat(whole, all_counts)
        all_ids[np.repeat(whole == NO_TOKEN, all_counts)] = ids
        return Matches(all_ids, all_counts, words.limits)

    def match_long(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Do what `match` does with few words of any length."""
        whole = self._whole_tokens(text, words)
        spans = zip(words.starts.tolist(), words.limits.tolist(), strict=True)
        ids = [
            self._merge_long(text[start:limit]) if token == NO_TOKEN else np.array([token])
            for (start, limit), token in zip(spans, whole.tolist(), strict=True)
        ]
        counts = np.array([len(word) for word in ids])
        return Matches(np.concatenate(ids).astype(np.uint32), counts, words.limits)

    def _whole_tokens(self, text: NDArray[np.uint8], words: Words) -> NDArray[np.uint32]:
        """Return the id of each word that is a token and needs no merging, else NO_TOKEN."""
        if self._tokens is None:
            return np.full(len(words.starts), NO_TOKEN, np.uint32)
        ids, lengths = self._tokens.longest(text, words.starts, words.limits)
        ids[lengths < words.limits - words.starts] = NO_TOKEN
        return ids

    def _pair_ranks(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int32]:
        # An id of -1, a byte without a token, gives a negative key, which is in no table.
        return self._ranks.get(left.astype(np.int64) << 32 | right)

    def _merge(
        self, text: NDArray[np.uint8], words: Words
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the tokens of words in order, and how many each has."""
        lengths = words.limits - words.starts
        counts = lengths.copy()
        firsts = np.cumsum(lengths) - lengths
        ids = self._byte_ids[concatenate_ranges(text, words.starts, lengths)]
        todo = _Symbols(ids.copy(), self._first_ranks(ids, firsts), firsts, lengths)
        which = np.arange(len(lengths))
        while len(which):
            best = todo.best_pairs()
            merging = best >> _RANK_SHIFT != NO_RANK
            done = todo.take(~merging)
            counts[which[~merging]] = done.counts
            ids[_positions(firsts[which[~merging]], done.counts)] = done.symbols
            which = which[merging]
            todo = self._merge_once(todo, merging, best[merging] & _PLACE_MASK)
        return concatenate_ranges(ids, firsts, counts).view(np.uint32), counts

    def _first_ranks(
        self, symbols: NDArray[np.int32], firsts: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        ranks = np.full(len(symbols), NO_RANK, np.int32)
        ranks[:-1] = self._pair_ranks(symbols[:-1], symbols[1:])
        ranks[firsts[1:] - 1] = NO_RANK
        return ranks

    def _merge_once(
        self, todo: _Symbols, merging: NDArray[np.bool_], places: NDArray[np.int64]
    ) -> _Symbols:
        """Merge one pair of each word that has one, at these places; leave the other words out."""
        kept = np.repeat(merging, todo.counts)
        kept[places + 1] = False
        todo.symbols[places] = self._results[todo.ranks[places]]
        counts = todo.counts[merging] - 1
        firsts = np.cumsum(counts) - counts
        at = firsts + (places - todo.firsts[merging])
        left = _Symbols(todo.symbols[kept], todo.ranks[kept], firsts, counts)
        left.ranks[at] = NO_RANK
        changed = np.concatenate([at[at > firsts] - 1, at[at < firsts + counts - 1]])
        left.ranks[changed] = self._pair_ranks(left.symbols[changed], left.symbols[changed + 1])
        return left

    @cached_property
    def _rank_by_pair(self) -> dict[int, int]:
        keys = self._pairs.left.astype(np.int64) << 32 | self._pairs.right
        return dict(zip(keys.tolist(), self._pairs.ranks.tolist(), strict=True))

    def _merge_long(self, word: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the tokens of one word."""
        symbols = self._byte_ids[word].tolist()
        merged = _merge_by_heap(symbols, self._rank_by_pair, self._pairs.results.tolist())
        return np.array(merged, np.int32)


def _merge_by_heap(symbols: list[int], ranks: dict[int, int], results: list[int]) -> list[int]:
    """Merge the pairs of one word; changes `symbols`.

    ranks: by left << 32 | right. A pair in the heap that was merged away, or has another rank by
    now, is passed over.
    """
    end = len(symbols)
    before, behind = list(range(-1, end - 1)), list(range(1, end + 1))

    def rank_at(place: int) -> int:
        if place < 0 or behind[place] >= end:
            return NO_RANK
        return ranks.get(symbols[place] << 32 | symbols[behind[place]], NO_RANK)

    heap = [rank << 32 | place for place in range(end) if (rank := rank_at(place)) != NO_RANK]
    heapify(heap)
    while heap:
        key = heappop(heap)
        rank, place = key >> 32, key & 0xFFFFFFFF
        if symbols[place] == _GONE or rank_at(place) != rank:
            continue
        gone = behind[place]
        symbols[place], symbols[gone] = results[rank], _GONE
        behind[place] = behind[gone]
        if behind[gone] < end:
            before[behind[gone]] = place
        for changed in (before[place], place):
            rank = rank_at(changed)
            if rank != NO_RANK:
                heappush(heap, rank << 32 | changed)
    return [symbol for symbol in symbols if symbol != _GONE]


def _positions(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return first, first + 1, ... for each first, as many as its count says, end to end."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(firsts - ends + counts, counts) + np.arange(total)
