"""Byte pair encoding on NumPy: the merges of a vocabulary applied to words, in the order of ranks.

Words are merged many at a time; a long one goes alone through a heap of its pairs, in n log n
steps.
"""

from __future__ import annotations

from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.bpe_lockstep import LockstepMerger
from llmgpu.bpe.matching import Matches, Words
from llmgpu.bpe.pair_ranks import NO_RANK, byte_ids, pair_ranks
from llmgpu.bpe.trie import NO_TOKEN
from llmgpu.bpe.trie_matcher import TrieMatcher
from llmgpu.bpe.vocabulary import Vocabulary

_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare for the merges of a vocabulary."""
        self._pairs = pair_ranks(vocabulary)
        self._byte_ids = byte_ids(vocabulary)
        self._lockstep = LockstepMerger(self._pairs, self._byte_ids)
        self._tokens = TrieMatcher(vocabulary.trie) if vocabulary.ignore_merges else None

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of whole words; NO_TOKEN for a byte that has none."""
        whole = self._whole_tokens(text, words)
        rest = np.flatnonzero(whole == NO_TOKEN)
        lengths = (words.limits - words.starts)[rest]
        data = concatenate_ranges(text, words.starts[rest], lengths)
        ids, counts = self._lockstep.merge(data, lengths)
        all_counts = np.ones(len(whole), np.int64)
        all_counts[rest] = counts
        all_ids = np.repeat(whole, all_counts)
        all_ids[np.repeat(whole == NO_TOKEN, all_counts)] = ids.view(np.uint32)
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
