"""Greedy matching on NumPy: the longest token first, in many words at a time.

- A trie's edges are in a hash table, so a step from node to node is one look-up, whatever the
  number of children. All active words take a step together.
- A byte at which no token starts gets the id of the unknown token, or NO_TOKEN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.trie import NO_TOKEN, Trie

_FREE = -1  # key of a free slot
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Matches:
    """The tokens of some words.

    ids: uint32, all words' tokens in order.
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
    stops: no token starts here or behind.
    limits: no token ends behind this.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    limits: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Words:
        """Return some of the words."""
        return Words(self.starts[which], self.stops[which], self.limits[which])


class TrieMatcher:
    """Finds the tokens of a trie in texts. Memory: about 100 bytes for each node."""

    def __init__(self, trie: Trie, unknown_token: int | None = None) -> None:
        """Prepare for matching tokens of `trie`."""
        self.longest_token = trie.longest  # bytes
        self._unknown = NO_TOKEN if unknown_token is None else unknown_token
        self._token = np.ascontiguousarray(trie.nodes[:, 2])
        self._is_inner = trie.nodes[:, 1] > 0
        parents = np.repeat(np.arange(len(trie.nodes)), trie.nodes[:, 1])
        keys = parents << 8 | trie.edges[:, 0]
        children = trie.edges[:, 1].astype(np.int32)
        from_root = parents == 0
        self._first_node = np.zeros(256, np.int32)  # by first byte; 0, the root, if there is none
        self._first_node[trie.edges[from_root, 0]] = children[from_root]
        self._build_table(keys, children)

    def _build_table(self, keys: NDArray[np.int64], children: NDArray[np.int32]) -> None:
        """Put every edge, whose key is parent << 8 | byte, into a table at most a quarter full."""
        bits = max(4 * len(keys), 16).bit_length()
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._slot_keys = np.full(1 << bits, _FREE, np.int64)
        self._slot_children = np.zeros(1 << bits, np.int32)
        slots = self._home(keys)
        while len(keys):
            free = np.flatnonzero(self._slot_keys[slots] == _FREE)
            self._slot_keys[slots[free]] = keys[free]  # of several, the last is written
            placed = self._slot_keys[slots] == keys
            self._slot_children[slots[placed]] = children[placed]
            keys, children = keys[~placed], children[~placed]
            slots = (slots[~placed] + 1) & self._mask

    def _home(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        mixed = keys.view(np.uint64) * _GOLDEN
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _child(self, nodes: NDArray[np.int32], labels: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the node that an edge with this byte leads to, 0 where there is no such edge."""
        keys = nodes.astype(np.int64) << 8 | labels
        slots = self._home(keys)
        there = self._slot_keys[slots]
        children = np.where(there == keys, self._slot_children[slots], 0)
        pending = np.flatnonzero((there != keys) & (there != _FREE))
        while len(pending):
            slots[pending] = (slots[pending] + 1) & self._mask
            there = self._slot_keys[slots[pending]]
            hit = there == keys[pending]
            children[pending[hit]] = self._slot_children[slots[pending[hit]]]
            pending = pending[~hit & (there != _FREE)]
        return children

    def longest(
        self, text: NDArray[np.uint8], positions: NDArray[np.int64], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return id and length of the longest token at each position that ends by its limit.

        positions, limits: int64 (n,), each limit behind its position.
        """
        ids = np.full(len(positions), self._unknown, np.uint32)
        lengths = np.ones(len(positions), np.int64)
        nodes = self._first_node[text[positions]]
        active = np.flatnonzero(nodes)
        nodes, at, room = nodes[active], positions[active] + 1, limits[active]
        depth = 1
        while len(active):
            tokens = self._token[nodes]
            ends = np.flatnonzero(tokens != NO_TOKEN)
            ids[active[ends]] = tokens[ends]
            lengths[active[ends]] = depth
            more = np.flatnonzero(self._is_inner[nodes] & (at < room))
            nodes = self._child(nodes[more], text[at[more]])
            found = np.flatnonzero(nodes)
            nodes, more = nodes[found], more[found]
            active, at, room = active[more], at[more] + 1, room[more]
            depth += 1
        return ids, lengths

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words, each from its start to its stop, in as many rounds as one has tokens."""
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
    """Sort tokens that were found round by round, the k-th of all words in round k."""
    counts = np.zeros(len(exits), np.int64)
    for active, _ in rounds:
        counts[active] += 1
    ids = np.empty(int(counts.sum()), np.uint32)
    firsts = np.cumsum(counts) - counts
    for k, (active, found) in enumerate(rounds):
        ids[firsts[active] + k] = found
    return Matches(ids, counts, exits)
