"""Byte pair encoding of one long word, with a heap of its pairs, window by window.

A heap takes some hundred bytes for each byte of a word, so a word of more than WINDOW bytes is
merged in windows. That gives the word's tokens, if every pair with a token ranks after all pairs
that make the token: then pairs are merged in stages, rank by rank and from the left.

- If no merge of a text crosses a place, the text before it and the text after it are merged
  independently. So a window's tokens up to one of their borders are those of that part alone.
- Two parts may be put end to end if the last token of the first and the first token of the second,
  merged together, become these two again. What could cross the border is a pair of the symbols on
  either side; at every stage they do not depend on what surrounds the two tokens. Of equal symbols
  in a row every other pair is merged, counted from the left; the border of the last token with the
  one before it is not crossed, so counting starts there.

(See M. Berglund, B. van der Merwe, Formalizing BPE Tokenization, arXiv 2309.08715.) A place for the
border is sought away from the window's end; if several don't do, the window grows.
"""

from __future__ import annotations

from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.pair_ranks import PairRanks

WINDOW = 1 << 12  # bytes
_LEAST_TOKENS = 8  # of a window that is cut
_CUTS = (15, 12, 10, 8, 6)  # 16ths of a window's tokens after which a border is tried
_REMEMBERED_WORDS = 1024  # of up to WINDOW bytes: texts that repeat words repeat windows, too
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token

_Merged = tuple[NDArray[np.int32], NDArray[np.int32]]  # where tokens begin, and their ids


class LongWordMerger:
    """Merges words one at a time. Memory: 5 bytes for each byte of a word."""

    def __init__(self, pairs: PairRanks, byte_ids: NDArray[np.int32]) -> None:
        """Prepare for pairs; byte_ids: int32 (256,), the symbol of each byte."""
        self._pairs = pairs
        self._byte_ids = byte_ids
        self._remembered: dict[bytes, _Merged] = {}

    def merge(self, word: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Return the tokens of a word, uint8 (n,)."""
        if len(word) > WINDOW and self._has_stages:
            ids = self._merge_windows(word)
            if ids is not None:
                return ids
        return self._merge(word)[1].view(np.uint32)

    @cached_property
    def _ranks_and_results(self) -> tuple[dict[int, int], list[int]]:
        """The rank of each pair, by left << 32 | right, and the results by rank."""
        ranks = dict(zip(self._pairs.keys.tolist(), self._pairs.ranks.tolist(), strict=True))
        return ranks, self._pairs.results.tolist()

    @cached_property
    def _has_stages(self) -> bool:
        """Whether every pair ranks after those that make its parts."""
        pairs = self._pairs
        if len(pairs.ranks) == 0:
            return True
        results = pairs.results[pairs.ranks]
        symbols = max(array.max() for array in (results, pairs.left, pairs.right, self._byte_ids))
        made = np.full(int(symbols) + 1, -1, np.int32)
        np.maximum.at(made, results, pairs.ranks)
        return bool(((pairs.ranks > made[pairs.left]) & (pairs.ranks > made[pairs.right])).all())

    def _merge_windows(self, word: NDArray[np.uint8]) -> NDArray[np.uint32] | None:
        """Return the tokens; None if a window that grew does not go with the one before."""
        ids = bytearray()  # which grows in place
        last = first = 0  # where the last token before the window and the window begin
        size, window = WINDOW, self._merge(word[:WINDOW])
        while first + size < len(word):
            found = self._cut(word, first, window)
            if found is None:
                size *= 2
                window = self._merge(word[first : first + size])
                if first and not self._go_together(word, last, first, window):
                    return None
                continue
            begins, tokens = window
            cut, window = found
            ids += tokens[:cut].tobytes()
            last, first, size = first + int(begins[cut - 1]), first + int(begins[cut]), WINDOW
        ids += window[1].tobytes()
        return np.frombuffer(ids, np.uint32)

    def _cut(
        self, word: NDArray[np.uint8], first: int, window: _Merged
    ) -> tuple[int, _Merged] | None:
        """Return after how many tokens a window from `first` on ends, and the next window."""
        begins, _ = window
        if len(begins) < _LEAST_TOKENS:
            return None
        for sixteenths in _CUTS:
            cut = len(begins) * sixteenths // 16
            border = first + int(begins[cut])
            following = self._merge(word[border : border + WINDOW])
            if self._go_together(word, first + int(begins[cut - 1]), border, following):
                return cut, following
        return None

    def _go_together(
        self, word: NDArray[np.uint8], last: int, border: int, following: _Merged
    ) -> bool:
        """Tell whether the tokens on both sides of a border, from `last` on, stay as they are."""
        begins, _ = following
        end = border + int(begins[1]) if len(begins) > 1 else min(border + WINDOW, len(word))
        alone, _ = self._merge(word[last:end])
        return border - last in alone.tolist()

    def _merge(self, word: NDArray[np.uint8]) -> _Merged:
        """Return where the tokens of a word begin and their ids, from memory if it came before."""
        key = word.tobytes() if len(word) <= WINDOW else b""
        merged = self._remembered.get(key)
        if merged is None:
            symbols = _merge_by_heap(self._byte_ids[word].tolist(), *self._ranks_and_results)
            kept = np.array(symbols, np.int32)
            begins = np.flatnonzero(kept != _GONE)
            merged = begins.astype(np.int32), kept[begins]
            if key:
                if len(self._remembered) == _REMEMBERED_WORDS:
                    self._remembered.clear()
                self._remembered[key] = merged
        return merged


def _merge_by_heap(symbols: list[int], ranks: dict[int, int], results: list[int]) -> list[int]:
    """Merge the pairs of one word, lowest rank and then leftmost first; returns `symbols`.

    A symbol that was merged is where its first byte was, with _GONE in the other places.

    ranks: by left << 32 | right. The heap may hold pairs that have since been merged away or have
    another rank now; they are skipped.
    """
    end = len(symbols)
    symbols.append(-1)  # after the last symbol, and before the first: it has no pairs
    before, after = list(range(-1, end)), list(range(1, end + 1))
    rank_of = ranks.get
    pairs = map(rank_of, (left << 32 | right for left, right in pairwise(symbols)))
    heap = [rank << 32 | place for place, rank in enumerate(pairs) if rank is not None]
    heapify(heap)
    while heap:
        key = heappop(heap)
        rank, place = key >> 32, key & 0xFFFFFFFF
        gone = after[place]
        if symbols[place] == _GONE or rank_of(symbols[place] << 32 | symbols[gone]) != rank:
            continue
        # Merge the right symbol into the left one, and unlink it.
        merged = symbols[place] = results[rank]
        symbols[gone] = _GONE
        previous, following = before[place], after[gone]
        after[place], before[following] = following, place
        # The new symbol makes new pairs with its two neighbours.
        if (new := rank_of(symbols[previous] << 32 | merged)) is not None:
            heappush(heap, new << 32 | previous)
        if (new := rank_of(merged << 32 | symbols[following])) is not None:
            heappush(heap, new << 32 | place)
    symbols.pop()
    return symbols
