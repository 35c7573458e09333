"""Byte pair encoding on NumPy: the merges of a vocabulary applied to words, in the order of ranks.

Words are merged many at a time; a long one goes alone through a heap of its pairs, in n log n
steps.
"""

from __future__ import annotations

from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges, ranges
from llmgpu.bpe.encoding.bpe_lockstep import MOST_BYTES, LockstepMerger
from llmgpu.bpe.encoding.matching import Matches, Words
from llmgpu.bpe.encoding.pair_ranks import NO_RANK, PairRanks, byte_ids, pair_ranks
from llmgpu.bpe.encoding.trie_matcher import TrieMatcher
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

_REMEMBERED_WORDS, _REMEMBERED_BYTES = 1024, 1 << 12  # long words at most, and bytes of each
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, vocabulary: Vocabulary, pairs: PairRanks | None = None) -> None:
        """Prepare for the merges of a vocabulary; pairs: those that merge, if they are known."""
        self._vocabulary = vocabulary
        self._pairs = pairs or pair_ranks(vocabulary)
        self._byte_ids = byte_ids(vocabulary)
        self._remembered: dict[bytes, NDArray[np.uint32]] = {}

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of whole words; NO_TOKEN for a byte that has none."""
        whole = self._whole_tokens(text, words)
        lengths = words.limits - words.starts
        rest = np.flatnonzero((whole == NO_TOKEN) & (lengths <= MOST_BYTES))
        ids, counts = self._merge_short(text, words.starts[rest], lengths[rest])
        long = np.flatnonzero((whole == NO_TOKEN) & (lengths > MOST_BYTES))
        spans = zip(words.starts[long].tolist(), words.limits[long].tolist(), strict=True)
        long_ids = [self._merge_long(text[start:limit].tobytes()) for start, limit in spans]
        all_counts = np.ones(len(whole), np.int64)
        all_counts[rest] = counts
        all_counts[long] = [len(tokens) for tokens in long_ids]
        all_ids = np.repeat(whole, all_counts)
        firsts = np.cumsum(all_counts) - all_counts
        all_ids[ranges(firsts[rest], counts)] = ids.view(np.uint32)
        for first, tokens in zip(firsts[long].tolist(), long_ids, strict=True):
            all_ids[first : first + len(tokens)] = tokens
        return Matches(all_ids, all_counts, words.limits)

    match_long = match

    def _merge_short(
        self, text: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the tokens of words of at most MOST_BYTES, and how many each has."""
        if not len(starts):  # where all are long, what merges short ones is never made
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return self._lockstep.merge(concatenate_ranges(text, starts, lengths), lengths)

    def _whole_tokens(self, text: NDArray[np.uint8], words: Words) -> NDArray[np.uint32]:
        """Return the id of each word that is a token and needs no merging, else NO_TOKEN."""
        whole = np.full(len(words.starts), NO_TOKEN, np.uint32)
        if not self._vocabulary.takes_whole_tokens:
            return whole
        lengths = words.limits - words.starts
        fitting = np.flatnonzero(lengths <= self._vocabulary.trie.longest)
        if len(fitting):
            ids, found = self._tokens.longest(text, words.starts[fitting], words.limits[fitting])
            ids[found < lengths[fitting]] = NO_TOKEN
            whole[fitting] = ids
        return whole

    def unmerged_tokens(self) -> NDArray[np.int64]:
        """Return the tokens that words are taken as, though merges may not lead to them: int64."""
        ids = self._vocabulary.ordinary_ids
        lengths = self._vocabulary.token_lengths[ids]
        if not self._vocabulary.takes_whole_tokens:
            return ids[:0]
        short = (lengths > 1) & (lengths <= MOST_BYTES)
        tokens, lengths, long = ids[short], lengths[short], ids[lengths > MOST_BYTES]
        starts = self._vocabulary.token_offsets[tokens]
        ends = starts + lengths
        whole = self._whole_tokens(self._vocabulary.token_data, Words(starts, ends, ends))
        data = concatenate_ranges(self._vocabulary.token_data, starts, lengths)
        merged, counts = self._lockstep.merge(data, lengths)
        first = merged[np.cumsum(counts) - counts].view(np.uint32)
        return np.concatenate([tokens[(counts > 1) | (first != whole)], long])

    @cached_property
    def _tokens(self) -> TrieMatcher:
        return TrieMatcher(self._vocabulary.trie)

    @cached_property
    def _lockstep(self) -> LockstepMerger:
        return LockstepMerger(self._vocabulary, self._pairs)

    @cached_property
    def _rank_by_pair(self) -> dict[int, int]:
        keys = self._pairs.left.astype(np.int64) << 32 | self._pairs.right
        return dict(zip(keys.tolist(), self._pairs.ranks.tolist(), strict=True))

    @cached_property
    def _results(self) -> list[int]:
        results: list[int] = self._pairs.results.tolist()
        return results

    def _merge_long(self, word: bytes) -> NDArray[np.uint32]:
        """Return the tokens of one word; text repeats itself, so some words are remembered."""
        ids = self._remembered.get(word)
        if ids is None:
            symbols = self._byte_ids[np.frombuffer(word, np.uint8)].tolist()
            merged = _merge_by_heap(symbols, self._rank_by_pair, self._results)
            ids = np.array(merged, np.int32).view(np.uint32)
            if len(word) <= _REMEMBERED_BYTES:
                if len(self._remembered) == _REMEMBERED_WORDS:
                    self._remembered.clear()
                self._remembered[word] = ids
        return ids


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
