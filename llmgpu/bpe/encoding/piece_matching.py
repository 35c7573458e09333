"""Matching in Python by the symbols of `llmgpu.bpe.vocabulary.symbols`, one word at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from llmgpu.bpe.encoding.matching import GONE, Matches, merge_by_heap
from llmgpu.bpe.vocabulary.symbols import PieceSymbols

_CONTINUES = 4  # see `llmgpu.bpe.vocabulary.symbols`


class PieceMatcher:
    """Finds the tokens of words of SentencePiece's kind."""

    def __init__(self, symbols: PieceSymbols) -> None:
        self._symbols = symbols
        self._pairs = {
            left << 32 | right: rank << 32 | result
            for left, right, result, rank in symbols.merges.tolist()
        }
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
        # missing: number of bytes of an unknown character that are still to come. was_unknown:
        # whether the previous character was unknown.
        missing, was_unknown = 0, False
        merged = merge_by_heap([self._bytes[byte] for byte in word], self._pairs)
        for symbol in merged:
            for item in self._items[symbol] if symbol != GONE else ():
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
