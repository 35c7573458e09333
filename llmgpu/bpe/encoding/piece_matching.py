"""Matching in Python by the symbols of `llmgpu.bpe.vocabulary.symbols`, one word at a time."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from llmgpu.bpe.encoding.matching import Matches
from llmgpu.bpe.vocabulary.symbols import PieceSymbols

_END = -1  # stands for the missing neighbour of the first or the last symbol
_CONTINUES = 4  # see `llmgpu.bpe.vocabulary.symbols`

# (rank, result) by (left, right) symbol
_Pairs = dict[tuple[int, int], tuple[int, int]]


class PieceMatcher:
    """Finds the tokens of words of SentencePiece's kind."""

    def __init__(self, symbols: PieceSymbols) -> None:
        """Prepare for a vocabulary's symbols."""
        self._symbols = symbols
        self._pairs: _Pairs = {}
        for left, right, result, rank in symbols.merges.tolist():
            self._pairs[left, right] = rank, result
        self._bytes = symbols.byte_symbols.tolist()
        bounds, items = symbols.firsts.tolist(), symbols.items.tolist()
        self._items = [items[a:b] for a, b in pairwise(bounds)]

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the tokens of words."""
        whole = self._symbols.whole_tokens
        found = [[whole[word]] if word in whole else self._match_one(word) for word in words]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        return np.array([number for each in found for number in each], np.uint32), counts

    def _match_one(self, word: bytes) -> list[int]:
        """Return the ids of a word: merge its symbols, and replace each symbol by its items."""
        size, unknown = len(self._symbols.tokens), self._symbols.unknown
        ids: list[int] = []
        # missing: number of bytes that an unknown character still lacks. was_unknown: whether the
        # last character was unknown.
        missing, was_unknown = 0, False
        for symbol in _merge([self._bytes[byte] for byte in word], self._pairs):
            for item in self._items[symbol]:
                if item < size:
                    ids.append(item)
                    missing, was_unknown = 0, False
                elif item == size + _CONTINUES and missing:
                    missing -= 1
                else:
                    missing = 0 if item == size + _CONTINUES else item - size
                    if not (was_unknown and self._symbols.rules.fuses):
                        assert unknown is not None
                        ids.append(unknown)
                    was_unknown = True
        return ids


def _merge(symbols: list[int], pairs: _Pairs) -> list[int]:
    """Merge pairs, lowest rank and then leftmost first; return the remaining symbols."""
    # before[k], after[k]: positions of the neighbours of symbol k, _END without one.
    end = len(symbols)
    before, after = [*range(-1, end - 1)], [*range(1, end), _END]

    def rank_at(place: int) -> tuple[int, int] | None:
        following = after[place]
        return None if following == _END else pairs.get((symbols[place], symbols[following]))

    heap = [(pair[0], place) for place in range(end) if (pair := rank_at(place))]
    heapify(heap)
    gone = [False] * end
    while heap:
        rank, place = heappop(heap)
        pair = None if gone[place] else rank_at(place)
        # the pair has merged or changed since its entry was made
        if pair is None or pair[0] != rank:
            continue
        symbols[place], right = pair[1], after[place]
        gone[right] = True
        after[place] = after[right]
        if after[right] != _END:
            before[after[right]] = place
        for changed in (before[place], place):
            if changed != _END and (pair := rank_at(changed)):
                heappush(heap, (pair[0], changed))
    return [symbol for symbol, is_gone in zip(symbols, gone, strict=True) if not is_gone]
