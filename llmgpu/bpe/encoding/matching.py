"""Matching on the host without the engine: the tokens of each word.

`BpeMatcher` merges pairs, `PieceMatcher` merges the symbols of `llmgpu.bpe.vocabulary.pieces`, and
`GreedyMatcher` chooses the longest token by the nodes of the trie. All take one word after the
other. The rest of this text is about `BpeMatcher`.

The order in which pairs of tokens merge:

- With a list of merges, pairs merge in the order of the list. If a pair is listed several times,
  its last place in the list decides. Hugging Face's tokenizers do the same.
- Without a list, two neighbours merge if together they spell a token, lowest id first, as in
  tiktoken. Every way to cut a token into two tokens is a pair, whose rank is the token's id.

If the vocabulary has `takes_whole_tokens`, a word that spells a token becomes this token. Any other
word merges its pair of the lowest rank, the leftmost of several, until none of its pairs merges. A
heap has the word's pairs in this order.

A heap takes some hundred bytes for each byte of a word, so a word of more than WINDOW bytes is
merged in windows. Windows give the word's tokens if every pair that contains a token ranks after
all pairs that make the token. Under this condition pairs merge in stages, rank by rank and from the
left:

- If no merge of a text crosses a border, the text before the border and the text after it merge
  independently. So the tokens of a window up to a border between two of its tokens are the tokens
  that the text up to this border has alone.
- The tokens of two stretches may be put end to end if the last token of the first stretch and the
  first token of the second stretch, merged together, become these two tokens again. The only pair
  that could cross the border consists of the symbols on either side of the border. At every stage
  these symbols do not depend on the text around the two tokens. In a run of equal symbols, every
  other pair merges, counted from the left. No merge crosses the border between the last token and
  the token before it, so counting starts there.

(See M. Berglund, B. van der Merwe, Formalizing BPE Tokenization, arXiv 2309.08715.) Borders are
tried at some distance from the window's end. If several borders fail the test, the window grows.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.building import ordinary_ranks
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.forking import cached_property
from llmgpu.spelling import spelled

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.pieces import PieceSymbols

NO_RANK = 0x3FFFFF  # the rank of a pair that does not merge; all other ranks are lower
WINDOW = 1 << 12  # bytes of a window
_LEAST_TOKENS = 8  # a window with fewer tokens is not cut
_CUTS = (15, 12, 10, 8, 6)  # borders to try: after this many 16ths of a window's tokens
_REMEMBERED_WINDOWS = 1024  # number of windows whose tokens are cached, because texts repeat them
GONE = -2  # marks a symbol that was merged into the previous symbol
# Mask of the low half of 64 bits, which holds a right symbol, a result or a position.
_LOW = 0xFFFFFFFF
_RANK = -1 ^ _LOW  # mask of the high half of 64 bits, which holds the rank

# The tokens of a window: the positions at which they begin, and their ids.
_Merged = tuple["array[int]", "array[int]"]
_CONTINUES = 4  # see `llmgpu.bpe.vocabulary.pieces`

# Pairs that merge, uint32 (pairs, 4): left and right symbol, result, and rank. The lowest rank
# merges first.
Pairs = NDArray[np.uint32]


class BpeMatcher:
    """Finds the tokens of words by merging, in windows if a word is long and windows are possible.

    Memory: about 100 bytes for each pair that merges, and 5 bytes for each byte of a word that is
    merged in windows.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare the merges of a vocabulary. Raises VocabularyError if there are too many."""
        self._whole = ordinary_ranks(vocabulary) if vocabulary.takes_whole_tokens else {}
        self._pairs = pair_ranks(vocabulary)
        self._ranked = pair_table(self._pairs)
        self._byte_ids = byte_ids(vocabulary).view(np.uint32).tolist()
        self._merge_now = partial(_merge_window, self._byte_ids, self._ranked)
        self._remembered = lru_cache(_REMEMBERED_WINDOWS)(self._merge_now)

    def match_word(self, word: bytes) -> Sequence[int]:
        """Return the tokens of a word, with NO_TOKEN for a byte without a token."""
        if word in self._whole:
            return (self._whole[word],)
        if len(word) > WINDOW and self._has_stages:
            ids = self._merge_windows(word)
            if ids is not None:
                return ids
        symbols = merge_by_heap([self._byte_ids[byte] for byte in word], self._ranked)
        return [symbol for symbol in symbols if symbol != GONE]

    @cached_property
    def _has_stages(self) -> bool:
        """Whether every pair ranks after all pairs that make one of its two symbols."""
        left, right, results, ranks = self._pairs.astype(np.int32).T
        made = np.full(int(self._pairs[:, :3].max(initial=0)) + 1, -1, np.int32)
        np.maximum.at(made, results, ranks)
        return bool(((ranks > made[left]) & (ranks > made[right])).all())

    def _merge_windows(self, word: bytes) -> array[int] | None:
        """Return the tokens of a word; None if the windows did not give them.

        Windows fail if a window was enlarged, and its first token changed so that it can't follow
        the token before it.
        """
        ids = array("I")
        # Start of the last token before the window, and start of the window.
        last = first = 0
        size, window = WINDOW, self._merge(word[:WINDOW])
        while first + size < len(word):
            found = self._cut(word, first, window)
            if found is None:
                size *= 2
                window = self._merge(word[first : first + size])
                if first and not self._go_together(word, last, first, window, size):
                    return None
                continue
            begins, tokens = window
            cut, window = found
            ids += tokens[:cut]
            last, first, size = first + begins[cut - 1], first + begins[cut], WINDOW
        return ids + window[1]

    def _cut(self, word: bytes, first: int, window: _Merged) -> tuple[int, _Merged] | None:
        """Find a border in a window at which the text may be cut.

        first: start of the window in the word. Returns the number of tokens before the border, and
        the next window, which begins at the border. Returns None if no border passes the test.
        """
        begins, _ = window
        if len(begins) < _LEAST_TOKENS:
            return None
        for sixteenths in _CUTS:
            cut = len(begins) * sixteenths // 16
            border = first + begins[cut]
            following = self._merge(word[border : border + WINDOW])
            last = first + begins[cut - 1]
            if self._go_together(word, last, border, following, WINDOW):
                return cut, following
        return None

    def _go_together(
        self, word: bytes, last: int, border: int, following: _Merged, size: int
    ) -> bool:
        """Whether the text of the two tokens at a border, merged alone, becomes these two tokens.

        last: start of the token before the border. following: tokens of the window of `size` bytes
        that begins at the border.
        """
        begins, _ = following
        end = border + begins[1] if len(begins) > 1 else min(border + size, len(word))
        alone, _ = self._merge(word[last:end])
        return border - last in alone

    def _merge(self, word: bytes) -> _Merged:
        """Return the tokens of a window."""
        return self._remembered(word) if len(word) <= WINDOW else self._merge_now(word)


def _merge_window(byte_ids: Sequence[int], ranked: Mapping[int, int], word: bytes) -> _Merged:
    symbols = merge_by_heap([byte_ids[byte] for byte in word], ranked)
    begins = [place for place, symbol in enumerate(symbols) if symbol != GONE]
    return array("i", begins), array("I", [symbols[place] for place in begins])


def pair_keys(left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return left << 32 | right for each pair: int64 (n,), negative if one of the ids is -1."""
    keys: NDArray[np.int64] = left.astype(np.int64) << 32 | right
    return keys


def pair_table(pairs: Pairs) -> dict[int, int]:
    """Return a dict of pairs: key left << 32 | right, value rank << 32 | result."""
    high = pairs[:, [0, 3]].astype(np.uint64) << np.uint64(32)
    keys, merged = (high | pairs[:, [1, 2]]).T.tolist()
    return dict(zip(keys, merged, strict=True))


def pair_ranks(vocabulary: Vocabulary) -> Pairs:
    """Return the pairs that merge in a vocabulary.

    Raises VocabularyError if there are more than NO_RANK merges or tokens.
    """
    check_ranks(max(len(vocabulary.merges), vocabulary.size))
    if len(vocabulary.merges):
        ranks = np.arange(len(vocabulary.merges), dtype=np.uint32)
        return last_listed(np.column_stack([vocabulary.merges, ranks]))
    return _all_cuts(vocabulary)


def last_listed(pairs: Pairs) -> Pairs:
    """Remove all but the last entry of a pair that is listed several times; keep the order."""
    _, last = np.unique(pair_keys(*pairs[::-1, :2].T), return_index=True)
    return pairs[np.sort(len(pairs) - 1 - last)]


def check_ranks(count: int) -> None:
    """Raise VocabularyError if there are more than NO_RANK ranks; a rank must be below NO_RANK."""
    if count > NO_RANK:
        raise VocabularyError(
            f"more than {NO_RANK} tokens or merges: too many for {spelled('--match bpe')}"
        )


def _all_cuts(vocabulary: Vocabulary) -> Pairs:
    """Return all pairs of tokens that together spell a token, in the order of that token's id.

    The pairs of one token are ordered by the length of the left token.
    """
    ids = ordinary_ranks(vocabulary)
    pairs = array("I")
    for token, number in ids.items():
        for cut in range(1, len(token)):
            before = ids.get(token[:cut])
            if before is not None:
                after = ids.get(token[cut:])
                if after is not None:
                    pairs.extend((before, after, number))
    cuts = np.frombuffer(pairs, np.uint32).reshape(-1, 3)
    return np.column_stack([cuts, cuts[:, 2]])


def byte_ids(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the id of each byte, int32 (256,).

    A byte without a token gets the id of the unknown token, or -1 if there is none.
    """
    unknown = -1 if vocabulary.unknown_token is None else vocabulary.unknown_token
    ids = np.full(256, unknown, np.int32)
    ordinary = vocabulary.ordinary_ids
    # Assign in descending order of ids, so that the lowest id of a byte is assigned last.
    single = ordinary[vocabulary.token_lengths[ordinary] == 1][::-1]
    ids[vocabulary.token_data[vocabulary.token_offsets[single]]] = single
    return ids


def merge_by_heap(symbols: list[int], pairs: Mapping[int, int]) -> list[int]:
    """Merge the pairs of one word, lowest rank and then leftmost first; return `symbols`.

    A merged symbol stands at the position of its first byte. GONE stands at the positions of its
    other bytes.

    symbols: a symbol for each byte, overwritten. pairs: rank << 32 | result of each pair, by left
    << 32 | right.
    """
    # Link the symbols: before[k] and after[k] are the positions of symbol k's neighbours. The heap
    # has rank << 32 | position for each pair.
    end = len(symbols)
    symbols.append(-1)  # the neighbour of the last symbol and, as symbols[-1], of the first symbol
    before, after = list(range(-1, end)), list(range(1, end + 1))
    find = pairs.get
    found = map(find, (left << 32 | right for left, right in pairwise(symbols)))
    heap = [pair & _RANK | place for place, pair in enumerate(found) if pair is not None]
    heapify(heap)
    while heap:
        key = heappop(heap)
        # Skip an entry whose pair has already merged, or whose symbols have changed since.
        place = key & _LOW
        gone = after[place]
        pair = find(symbols[place] << 32 | symbols[gone])
        if symbols[place] == GONE or pair is None or pair >> 32 != key >> 32:
            continue
        # Merge the right symbol into the left one, and unlink it.
        merged = symbols[place] = pair & _LOW
        symbols[gone] = GONE
        previous, following = before[place], after[gone]
        after[place], before[following] = following, place
        # Push the pairs of the new symbol and its two neighbours.
        if (pair := find(symbols[previous] << 32 | merged)) is not None:
            heappush(heap, pair & _RANK | previous)
        if (pair := find(merged << 32 | symbols[following])) is not None:
            heappush(heap, pair & _RANK | place)
    symbols.pop()
    return symbols


class PieceMatcher:
    """Finds the tokens of words of SentencePiece's kind."""

    def __init__(self, symbols: PieceSymbols) -> None:
        self._symbols = symbols
        self._pairs = pair_table(symbols.merges)
        self._bytes = symbols.byte_symbols.tolist()
        bounds, items = symbols.firsts.tolist(), symbols.items.tolist()
        self._items = [items[a:b] for a, b in pairwise(bounds)]

    def match_word(self, word: bytes) -> list[int]:
        """Return the ids of a word: merge its symbols, and replace each symbol by its items."""
        if word in self._symbols.whole_tokens:
            return [self._symbols.whole_tokens[word]]
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


class GreedyMatcher:
    """Splits words into tokens; at each position it chooses the longest token that matches."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        unknown = vocabulary.unknown_token
        # The id of a byte at which no token begins.
        self._unknown = NO_TOKEN if unknown is None else unknown
        # By node: the id of the token that ends there, or NO_TOKEN.
        self._tokens = trie.nodes[:, 2].tolist()
        parents = np.repeat(np.arange(len(trie.nodes)), trie.nodes[:, 1])
        keys = parents << 8 | trie.edges[:, 0]  # an edge's node and byte, as one number
        self._children = dict(zip(keys.tolist(), trie.edges[:, 1].tolist(), strict=True))

    def match_word(self, word: bytes) -> Sequence[int]:
        """Return the ids of a word.

        A byte at which no token begins gets the unknown token's id, or NO_TOKEN if there is none.
        """
        return self.match_until(word, len(word))[0]

    def match_until(self, text: bytes, stop: int) -> tuple[array[int], int]:
        """Return the ids of tokens that start before `stop`, and the end of the last token."""
        ids = array("I")
        tokens, children = self._tokens, self._children
        at, size = 0, len(text)
        while at < stop:
            token, end = self._unknown, at + 1
            node, next_at = children.get(text[at]), at + 1  # the root is node 0
            while node is not None:
                # Keep the longest token so far.
                if tokens[node] != NO_TOKEN:
                    token, end = tokens[node], next_at
                if next_at == size:
                    break
                node = children.get(node << 8 | text[next_at])
                next_at += 1
            ids.append(token)
            at = end
        return ids, at


Matcher = BpeMatcher | PieceMatcher | GreedyMatcher
