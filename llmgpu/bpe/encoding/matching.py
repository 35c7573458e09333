"""Matching on the host without the engine: the tokens of each word.

`BpeMatcher` merges pairs, many words at a time. `PieceMatcher` merges the symbols of
`llmgpu.bpe.vocabulary.pieces`, and `GreedyMatcher` chooses the longest token by the nodes of the
trie; both take one word after the other. The rest of this text is about `BpeMatcher`.

The order in which pairs of tokens merge:

- With a list of merges, pairs merge in the order of the list. If a pair is listed several times,
  its last place in the list decides. Hugging Face's tokenizers do the same.
- Without a list, two neighbours merge if together they spell a token, lowest id first, as in
  tiktoken. Every way to cut a token into two tokens is a pair, whose rank is the token's id.

If the vocabulary has `takes_whole_tokens`, a word that spells a token becomes this token. Other
words are merged in rounds, many words at a time. In each round, every word merges its pair of the
lowest rank, the leftmost of several. A word is done when none of its pairs merges. A word of more
than MOST_BYTES is merged alone, with a heap of its pairs; the order of its merges is the same.

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
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import blocks, ranges
from llmgpu.bpe.vocabulary.building import ordinary_ranks
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.spelling import spelled

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.pieces import PieceSymbols

NO_RANK = 0x3FFFFF  # the rank of a pair that does not merge; all other ranks are lower
WINDOW = 1 << 12  # bytes of a window
_LEAST_TOKENS = 8  # a window with fewer tokens is not cut
_CUTS = (15, 12, 10, 8, 6)  # borders to try: after this many 16ths of a window's tokens
# Number of words and windows whose tokens are cached, because texts repeat words.
_REMEMBERED_WORDS = 1024
GONE = -2  # marks a symbol that was merged into the previous symbol; -1 is a byte without a token
# Mask of the low half of 64 bits, which holds a right symbol, a result or a position.
_LOW = 0xFFFFFFFF
_RANK = -1 ^ _LOW  # mask of the high half of 64 bits, which holds the rank

# The tokens of a word: the positions at which they begin, int32, and their ids, int32.
_Merged = tuple[NDArray[np.int32], NDArray[np.int32]]
# Longer words, in bytes, are merged with a heap, because a word may need a round for each byte.
MOST_BYTES = 128
_BLOCK = 1 << 18  # bytes of words that are merged at a time
_NO_TOKEN = -1  # in place of an id: the word spells no token
_CONTINUES = 4  # see `llmgpu.bpe.vocabulary.pieces`

# The tokens of all words in order, uint32, and the number of tokens of each word, int64 (words,).
Matches = tuple[NDArray[np.uint32], NDArray[np.int64]]
# Pairs that merge, uint32 (pairs, 4): left and right symbol, result, and rank. The lowest rank
# merges first.
Pairs = NDArray[np.uint32]
# The number of the word of each symbol, int64, and the id of each symbol, int32.
_Symbols = tuple[NDArray[np.int64], NDArray[np.int32]]


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes for each pair that merges."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare the merges of a vocabulary. Raises VocabularyError if there are too many."""
        self._whole = ordinary_ranks(vocabulary) if vocabulary.takes_whole_tokens else {}
        self._byte_ids, pairs = byte_ids(vocabulary), pair_ranks(vocabulary)
        self._long_words = LongWordMerger(pairs, self._byte_ids)
        # _keys: int64, keys of the pairs in ascending order, then a key that no pair has. _ranks:
        # int32, the rank of each key. _results: int32 (ranks,), the result of each rank's pairs.
        keys = pair_keys(pairs[:, 0], pairs[:, 1])
        order = np.argsort(keys)
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._ranks = np.append(pairs[order, 3], NO_RANK).astype(np.int32)
        self._results = np.zeros(int(pairs[:, 3].max(initial=0)) + 1, np.int32)
        self._results[pairs[:, 3]] = pairs[:, 2]

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the tokens of words, with NO_TOKEN for a byte without a token."""
        count = len(words)
        # Match words that are tokens, short words and long words separately. whole: int32 (words,),
        # the id of each word that is a token.
        whole = np.fromiter((self._whole.get(word, _NO_TOKEN) for word in words), np.int32, count)
        lengths = np.fromiter(map(len, words), np.int64, count)
        counts = np.ones(count, np.int64)
        short = np.flatnonzero((whole == _NO_TOKEN) & (lengths <= MOST_BYTES))
        merged = self._merge_short([words[number] for number in short.tolist()], lengths[short])
        counts[short] = merged[1]
        longer = np.flatnonzero((whole == _NO_TOKEN) & (lengths > MOST_BYTES)).tolist()
        long_ids = [self._long_words.merge(np.frombuffer(words[k], np.uint8)) for k in longer]
        counts[longer] = [len(ids) for ids in long_ids]
        # Join the ids in the order of the words. firsts: position of each word's first id.
        ids = np.repeat(whole.view(np.uint32), counts)
        firsts = np.cumsum(counts) - counts
        ids[ranges(firsts[short], counts[short])] = merged[0]
        for first, of_word in zip(firsts[longer].tolist(), long_ids, strict=True):
            ids[first : first + len(of_word)] = of_word
        return ids, counts

    def _merge_short(self, words: Sequence[bytes], lengths: NDArray[np.int64]) -> Matches:
        """Return the tokens of words of at most MOST_BYTES; lengths: int64 (words,), in bytes."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int32))]
        for block in blocks(lengths, _BLOCK):
            symbols = self._byte_ids[np.frombuffer(b"".join(words[block]), np.uint8)]
            parts += self._merge(
                np.repeat(np.arange(block.start, block.stop), lengths[block]), symbols
            )
        of_words, symbols = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(of_words, kind="stable")
        return symbols[order].view(np.uint32), np.bincount(of_words, minlength=len(words))

    def _merge(self, words: NDArray[np.int64], symbols: NDArray[np.int32]) -> list[_Symbols]:
        """Merge pairs until no pair is left to merge; return the remaining symbols.

        An entry of the result has the words that were completed in one round, with their symbols in
        order.

        words: int64 (n,), ascending, the number of each symbol's word. symbols: int32 (n,),
        overwritten.
        """
        done = []
        # ranks[k]: the rank of the pair of symbols k and k + 1, NO_RANK at the end of a word.
        ranks = np.full(len(words), NO_RANK, np.int32)
        self._rank(ranks, words, symbols, np.arange(len(words)))
        while True:
            # Remove the words in which no pair merges.
            firsts = np.flatnonzero(np.diff(words, prepend=-1))
            best = np.minimum.reduceat(ranks, firsts)
            best = np.repeat(best, np.diff(firsts, append=len(words)))
            merging = best != NO_RANK
            done.append((words[~merging], symbols[~merging]))
            words, symbols, ranks, best = (
                values[merging] for values in (words, symbols, ranks, best)
            )
            if len(words) == 0:
                return done
            # Merge the leftmost pair of the lowest rank of each word.
            places = np.flatnonzero(ranks == best)
            places = places[np.diff(words[places], prepend=-1) > 0]
            symbols[places] = self._results[ranks[places]]
            words, symbols, ranks = (
                np.delete(values, places + 1) for values in (words, symbols, ranks)
            )
            # Rank the pairs of the new symbols and their neighbours.
            places -= np.arange(len(places))
            ranks[places] = NO_RANK
            self._rank(ranks, words, symbols, np.concatenate([places - 1, places]))

    def _rank(
        self,
        ranks: NDArray[np.int32],
        words: NDArray[np.int64],
        symbols: NDArray[np.int32],
        places: NDArray[np.int64],
    ) -> None:
        """Write the ranks of the pairs whose left symbols are at `places`, int64."""
        places = places[(places >= 0) & (places < len(words) - 1)]
        places = places[words[places] == words[places + 1]]
        ranks[places] = self.look_up(symbols[places], symbols[places + 1])

    def look_up(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the rank of each pair, int32 (n,), or NO_RANK if the pair does not merge."""
        wanted = pair_keys(left, right)
        at = np.searchsorted(self._keys, wanted)
        return np.where(self._keys[at] == wanted, self._ranks[at], np.int32(NO_RANK))


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


class LongWordMerger:
    """Merges words one at a time, in windows if possible.

    Memory: 5 bytes for each byte of a word, if the word is merged in windows.
    """

    def __init__(self, pairs: Pairs, byte_ids: NDArray[np.int32]) -> None:
        """Prepare to merge `pairs`; byte_ids: int32 (256,), the symbol of each byte."""
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
    def _ranked(self) -> dict[int, int]:
        """The pairs that merge, in the form that `merge_by_heap` reads."""
        return pair_table(self._pairs)

    @cached_property
    def _has_stages(self) -> bool:
        """Whether every pair ranks after all pairs that make one of its two symbols."""
        left, right, results, ranks = self._pairs.astype(np.int32).T
        made = np.full(int(self._pairs[:, :3].max(initial=0)) + 1, -1, np.int32)
        np.maximum.at(made, results, ranks)
        return bool(((ranks > made[left]) & (ranks > made[right])).all())

    def _merge_windows(self, word: NDArray[np.uint8]) -> NDArray[np.uint32] | None:
        """Return the tokens of a word; None if the windows did not give them.

        Windows fail if a window was enlarged, and its first token changed so that it can't follow
        the token before it.
        """
        ids = bytearray()  # uint32 ids as raw bytes, because a bytearray grows in place
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
            ids += tokens[:cut].tobytes()
            last, first, size = first + int(begins[cut - 1]), first + int(begins[cut]), WINDOW
        ids += window[1].tobytes()
        return np.frombuffer(ids, np.uint32)

    def _cut(
        self, word: NDArray[np.uint8], first: int, window: _Merged
    ) -> tuple[int, _Merged] | None:
        """Find a border in a window at which the text may be cut.

        first: start of the window in the word. Returns the number of tokens before the border, and
        the next window, which begins at the border. Returns None if no border passes the test.
        """
        begins, _ = window
        if len(begins) < _LEAST_TOKENS:
            return None
        for sixteenths in _CUTS:
            cut = len(begins) * sixteenths // 16
            border = first + int(begins[cut])
            following = self._merge(word[border : border + WINDOW])
            last = first + int(begins[cut - 1])
            if self._go_together(word, last, border, following, WINDOW):
                return cut, following
        return None

    def _go_together(
        self, word: NDArray[np.uint8], last: int, border: int, following: _Merged, size: int
    ) -> bool:
        """Whether the text of the two tokens at a border, merged alone, becomes these two tokens.

        last: start of the token before the border. following: tokens of the window of `size` bytes
        that begins at the border.
        """
        begins, _ = following
        end = border + int(begins[1]) if len(begins) > 1 else min(border + size, len(word))
        alone, _ = self._merge(word[last:end])
        return border - last in alone.tolist()

    def _merge(self, word: NDArray[np.uint8]) -> _Merged:
        """Return the tokens of a word or window. Results are cached."""
        key = word.tobytes() if len(word) <= WINDOW else b""
        merged = self._remembered.get(key)
        if merged is None:
            symbols = merge_by_heap(self._byte_ids[word].tolist(), self._ranked)
            kept = np.array(symbols, np.int32)
            begins = np.flatnonzero(kept != GONE)
            merged = begins.astype(np.int32), kept[begins]
            if key:
                if len(self._remembered) == _REMEMBERED_WORDS:
                    self._remembered.clear()
                self._remembered[key] = merged
        return merged


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

    def match(self, words: Sequence[bytes]) -> Matches:
        """Return the ids of words end to end, and the number of ids of each word.

        A byte at which no token begins gets the unknown token's id, or NO_TOKEN if there is none.
        """
        ids = array("I")
        counts = np.empty(len(words), np.int64)
        for number, word in enumerate(words):
            before = len(ids)
            self._match(word, len(word), ids)
            counts[number] = len(ids) - before
        return np.frombuffer(ids, np.uint32), counts

    def match_until(self, text: bytes, stop: int) -> tuple[NDArray[np.uint32], int]:
        """Return the ids, uint32, of tokens that start before `stop`, and the last token's end."""
        ids = array("I")
        end = self._match(text, stop, ids)
        return np.frombuffer(ids, np.uint32), end

    def _match(self, text: bytes, stop: int, ids: array[int]) -> int:
        """Append the ids of tokens that start before `stop`; return the last token's end."""
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
        return at


Matcher = BpeMatcher | PieceMatcher | GreedyMatcher
