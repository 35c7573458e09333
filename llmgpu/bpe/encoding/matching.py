"""Matching on NumPy: words in, the tokens of each out, by the longest token or by merges.

A trie's edges are in a hash table, so a step from node to node is one look-up, for any number
of children. All active words take a step together.

Byte pair encoding applies the merges of a vocabulary to words, by rank.
Words of up to MOST_BYTES are merged many at a time, in lockstep:

- Pairs of bytes that are sure to be merged are merged first, all at once.
- In each round every word merges its pair of the lowest rank, the leftmost of several, until no
  pair is left: that is the definition. A round is a minimum over the keys of all pairs and a few
  operations for each word that is not done.
- A word's symbols are a linked list over the positions of its bytes; a merged symbol is at the
  position of its first byte. The key of a pair is at the position of its left symbol, and holds
  its rank and that place in the word.

A longer word is merged on its own, see `long_words`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges, ranges
from llmgpu.bpe.encoding.long_words import LongWordMerger
from llmgpu.bpe.encoding.pair_ranks import NO_RANK, PairRanks, SafePairs, byte_ids, pair_ranks
from llmgpu.bpe.vocabulary.trie import NO_TOKEN, Trie
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.hash_table import HashTable


@dataclass(frozen=True, eq=False)
class Matches:
    """The tokens of words.

    ids: uint32 (tokens,), of all words in order.
    counts: int64 (words,), tokens of each word.
    exits: int64 (words,), where the last token of each word ends.
    """

    ids: NDArray[np.uint32]
    counts: NDArray[np.int64]
    exits: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Words:
    """Words of a text, ascending and disjoint; all int64 (words,).

    starts: where the first token starts.
    stops: tokens start before this position.
    limits: tokens end at or before this position.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    limits: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Words:
        """Return some of the words."""
        return Words(self.starts[which], self.stops[which], self.limits[which])


class Matcher(Protocol):
    """Finds the tokens of words by one of the match rules."""

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of any number of words; NO_TOKEN for a byte that has none."""
        ...

    def match_long(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of a few words, one or more, of any length."""
        ...


class TrieMatcher:
    """Finds the longest tokens of a trie in texts. Memory: about 100 bytes per node."""

    def __init__(self, trie: Trie, unknown_token: int | None = None) -> None:
        """Prepare for the tokens of `trie`.

        unknown_token: id for a byte at which no token starts; NO_TOKEN if it is None.
        """
        self.longest_token = trie.longest  # bytes
        self._unknown = NO_TOKEN if unknown_token is None else unknown_token
        self._token = np.ascontiguousarray(trie.nodes[:, 2])
        self._is_inner = trie.nodes[:, 1] > 0
        parents = np.repeat(np.arange(len(trie.nodes)), trie.nodes[:, 1])
        keys = parents << 8 | trie.edges[:, 0]  # an edge: its node and its byte
        children = trie.edges[:, 1].astype(np.int32)
        from_root = parents == 0
        self._first_node = np.zeros(256, np.int32)  # by first byte; 0, the root, if there is none
        self._first_node[trie.edges[from_root, 0]] = children[from_root]
        self._children = HashTable(keys, children, default=0)

    def longest(
        self, text: NDArray[np.uint8], positions: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return id and length of the longest token at each position that ends by its limit.

        positions, limits: int64 (n,), each limit after its position.
        """
        ids = np.full(len(positions), self._unknown, np.uint32)
        lengths = np.ones(len(positions), np.int64)
        nodes = self._first_node[text[positions]]
        active = np.flatnonzero(nodes)
        nodes, at, room = nodes[active], positions[active] + 1, limits[active]
        depth = 1
        while len(active):
            # A token that ends here is longer than the one found before.
            tokens = self._token[nodes]
            ends = np.flatnonzero(tokens != NO_TOKEN)
            ids[active[ends]] = tokens[ends]
            lengths[active[ends]] = depth
            # Follow the next byte from nodes that have children, unless the word ends.
            more = np.flatnonzero(self._is_inner[nodes] & (at < room))
            nodes = self._children.get(nodes[more].astype(np.int64) << 8 | text[at[more]])
            found = np.flatnonzero(nodes)
            nodes, more = nodes[found], more[found]
            active, at, room = active[more], at[more] + 1, room[more]
            depth += 1
        return ids, lengths

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of words from start to stop, the k-th token of all words in round k."""
        active, at = np.arange(len(words.starts)), words.starts
        exits = np.empty(len(at), np.int64)
        rounds: list[tuple[NDArray[np.int64], NDArray[np.uint32]]] = []
        while len(active):
            ids, lengths = self.longest(text, at, words.limits[active])
            rounds.append((active, ids))
            at = at + lengths
            exits[active] = at
            more = at < words.stops[active]
            active, at = active[more], at[more]
        return _in_text_order(rounds, exits)


def _in_text_order(
    rounds: list[tuple[NDArray[np.int64], NDArray[np.uint32]]], exits: NDArray[np.int64]
) -> Matches:
    """Sort tokens that were found round by round into the order of the text."""
    counts = np.zeros(len(exits), np.int64)
    for active, _ in rounds:
        counts[active] += 1
    ids = np.empty(int(counts.sum()), np.uint32)
    firsts = np.cumsum(counts) - counts
    for k, (active, found) in enumerate(rounds):
        ids[firsts[active] + k] = found
    return Matches(ids, counts, exits)


MOST_BYTES = 256  # of a word that is merged in lockstep: a key has 8 bits for the place
_PLACE_BITS = np.uint32(8)
_PLACE_MASK = np.uint32(MOST_BYTES - 1)
_NO_KEY = np.uint32(NO_RANK << 8)  # keys from here on are of pairs that do not merge
_GONE = -2  # a symbol that was merged into the one before; -1 is a byte without a token


class BpeMatcher:
    """Finds the tokens of words by merging. Memory: about 100 bytes per pair that merges."""

    def __init__(self, vocabulary: Vocabulary, pairs: PairRanks | None = None) -> None:
        """Prepare for the merges of a vocabulary; pairs: its `pair_ranks`, if known."""
        self._vocabulary = vocabulary
        self._pairs = pairs or pair_ranks(vocabulary)
        self._byte_ids = byte_ids(vocabulary)

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Return the tokens of whole words; NO_TOKEN for a byte that has none."""
        # Words are whole tokens, short, or long; each kind has its own way to ids.
        whole = self._whole_tokens(text, words)
        lengths = words.limits - words.starts
        rest = np.flatnonzero((whole == NO_TOKEN) & (lengths <= MOST_BYTES))
        ids, counts = self._merge_short(text, words.starts[rest], lengths[rest])
        long = np.flatnonzero((whole == NO_TOKEN) & (lengths > MOST_BYTES))
        spans = zip(words.starts[long].tolist(), words.limits[long].tolist(), strict=True)
        long_ids = [self._long_words.merge(text[start:limit]) for start, limit in spans]
        if len(long) == len(whole) == 1:  # which may be long enough for a copy to matter
            return Matches(long_ids[0], np.array([len(long_ids[0])]), words.limits)
        # Put the ids of the three kinds together in the order of the text.
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
        if not len(starts):  # a merger is not made for nothing
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return self._lockstep.merge(concatenate_ranges(text, starts, lengths), lengths)

    def _whole_tokens(self, text: NDArray[np.uint8], words: Words) -> NDArray[np.uint32]:
        """Return the id of each word that is taken whole, else NO_TOKEN."""
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
        """Return the tokens, int64, that are taken whole and that merges may not lead to."""
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
    def _lockstep(self) -> _LockstepMerger:
        return _LockstepMerger(self._vocabulary, self._pairs)

    @cached_property
    def _long_words(self) -> LongWordMerger:
        return LongWordMerger(self._pairs, self._byte_ids)


class _LockstepMerger:
    """Merges the bytes of many words at a time. Memory: about 100 bytes per pair that merges."""

    def __init__(self, vocabulary: Vocabulary, pairs: PairRanks) -> None:
        """Prepare for the pairs of a vocabulary."""
        self._results = pairs.results
        self._byte_ids = byte_ids(vocabulary)
        keys = pairs.left.astype(np.int64) << 32 | pairs.right
        self._ranks = HashTable(keys, pairs.ranks, default=NO_RANK)
        of_pairs = self._rank(np.repeat(self._byte_ids, 256), np.tile(self._byte_ids, 256))
        self._safe_pairs = SafePairs(vocabulary, pairs, of_pairs.reshape(256, 256))

    def _rank(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.uint32]:
        # An id of -1, for a byte without a token, gives a negative key, which is in no table.
        return self._ranks.get(left.astype(np.int64) << 32 | right).view(np.uint32)

    def merge(
        self, data: NDArray[np.uint8], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the symbols of words in order, and how many each has.

        data: uint8, the words end to end. lengths: int64 (words,), from 1 to MOST_BYTES.
        """
        # First the sure pairs, all at once, then round by round the best pair of each word.
        symbols = self._byte_ids[data]
        left = self._safe_pairs.find(data, np.cumsum(lengths))
        symbols[left] = self._results[self._safe_pairs.ranks[data[left], data[left + 1]]]
        symbols[left + 1] = _GONE
        words = _MergingWords(symbols, *self._first_ranks(data, symbols), lengths)
        while len(best := words.best_keys()):
            words.merge(best & _PLACE_MASK, self._results[best >> _PLACE_BITS], self._rank)
        return words.result(lengths)

    def _first_ranks(
        self, data: NDArray[np.uint8], symbols: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the positions of symbols, and the rank of each with the next one."""
        there = np.flatnonzero(symbols != _GONE)
        ranks = self._safe_pairs.ranks[data[there[:-1]], data[there[1:]]]
        # Ranks of pairs of bytes are in a table; pairs with a merged symbol are looked up.
        merged = np.diff(np.append(there, len(symbols))) > 1
        new = np.flatnonzero(merged[:-1] | merged[1:])
        ranks[new] = self._rank(symbols[there[new]], symbols[there[new + 1]])
        return there, ranks


class _MergingWords:
    """Words while they are merged.

    symbols: int32 (n,), by position; _GONE where one was merged into another.
    """

    def __init__(
        self,
        symbols: NDArray[np.int32],
        there: NDArray[np.int64],
        ranks: NDArray[np.uint32],
        lengths: NDArray[np.int64],
    ) -> None:
        """Start with symbols at the positions `there`; ranks: uint32, of each with the next."""
        self.symbols = symbols
        positions = np.arange(len(symbols), dtype=np.int32)
        self._before, self._after = positions - 1, positions + 1
        self._before[there[1:]], self._after[there[:-1]] = there[:-1], there[1:]
        # Of the words that are not done: where they start and end, and where their keys start.
        self._ends = np.cumsum(lengths)
        self._firsts = self._ends - lengths
        self._after[there[-1:]] = len(symbols)
        self._keys = np.full(len(symbols), _NO_KEY, np.uint32)
        self._keys[there[:-1]] = ranks << _PLACE_BITS
        # The last symbol of a word has no next one in it.
        self._keys[there[np.searchsorted(there, self._ends) - 1]] = _NO_KEY
        self._keys |= (positions - np.repeat(self._firsts, lengths)).astype(np.uint32)
        self._key_firsts = self._firsts

    def best_keys(self) -> NDArray[np.uint32]:
        """Drop the words that are done; return the lowest key of each of the others."""
        if len(self._firsts) == 0:
            return np.empty(0, np.uint32)
        # Keys of words that are done may lie between those of others, and are larger than all.
        best = np.minimum.reduceat(self._keys, self._key_firsts)
        which = np.flatnonzero(best < _NO_KEY)
        if len(which) < len(best):
            self._firsts, self._ends = self._firsts[which], self._ends[which]
            self._key_firsts = self._key_firsts[which]
            self._compact()
        return best[which]

    def _compact(self) -> None:
        """Drop the keys of words that are done, once they are the majority."""
        lengths = self._ends - self._firsts
        left = int(lengths.sum())
        if left < len(self._keys) // 2:
            self._keys = self._keys[ranges(self._key_firsts, lengths)]
            self._key_firsts = np.cumsum(lengths) - lengths

    def merge(
        self,
        places: NDArray[np.uint32],
        results: NDArray[np.int32],
        rank: Callable[[NDArray[np.int32], NDArray[np.int32]], NDArray[np.uint32]],
    ) -> None:
        """Merge the symbol at a place of each word with the next.

        rank: returns the ranks of pairs, given their left and their right symbols.
        """
        # Unlink the right symbol, and drop the keys of both.
        left = self._firsts + places
        right = self._after[left]
        after = self._after[right]
        self.symbols[left], self.symbols[right] = results, _GONE
        self._after[left] = after
        key = self._key_firsts - self._firsts  # of the symbol at a position, relative to it
        self._keys[key + left] = self._keys[key + right] = _NO_KEY
        # The merged symbol makes a pair with the next symbol and one with the previous symbol.
        at_end = after >= self._ends
        has_next, has_previous = np.flatnonzero(~at_end), np.flatnonzero(places)
        after, previous = after[has_next], self._before[left[has_previous]]
        self._before[after] = left[has_next]
        previous_places = previous - self._firsts[has_previous]
        ranks = rank(
            np.concatenate([results[has_next], self.symbols[previous]]),
            np.concatenate([self.symbols[after], results[has_previous]]),
        )
        keys = np.concatenate([(key + left)[has_next], key[has_previous] + previous])
        new_places = np.concatenate([places[has_next], previous_places.astype(np.uint32)])
        self._keys[keys] = ranks << _PLACE_BITS | new_places

    def result(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the remaining symbols, and how many each word has."""
        there = self.symbols != _GONE
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(there)])
        ends = np.cumsum(lengths)
        return self.symbols[there], before[ends] - before[ends - lengths]
