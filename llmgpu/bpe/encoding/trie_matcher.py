"""Walking a trie on NumPy: the longest token at many places at a time, and so through many words.

- A trie's edges are in a hash table, so a step from node to node is one look-up, whatever the
  number of children. All active words take a step together.
- A byte at which no token starts gets the id of the unknown token, or NO_TOKEN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.matching import Matches, Words
from llmgpu.bpe.vocabulary.trie import NO_TOKEN, Trie
from llmgpu.bpe.words.hash_table import HashTable


class TrieMatcher:
    """Finds the tokens of a trie in texts. Memory: about 100 bytes for each node."""

    def __init__(self, trie: Trie, unknown_token: int | None = None) -> None:
        """Prepare for matching tokens of `trie`."""
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
            nodes = self._children.get(nodes[more].astype(np.int64) << 8 | text[at[more]])
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
