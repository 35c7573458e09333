"""Matching: words of a text in, the tokens of each out; and the walk through a trie on NumPy.

A trie's edges are in a hash table, so a step from node to node is one look-up, for any number
of children. All active words take a step together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.trie import NO_TOKEN, Trie
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
