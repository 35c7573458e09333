"""The trie of a vocabulary's tokens, laid out flat for a walk on any device.

- Nodes are in breadth-first order, node 0 is the root, and the children of a node are sorted by
  byte. Edge e leads to node e + 1, so a node's edges are
  ``edges[first_child : first_child + num_children]``: first_child is an index into edges.
- A leaf has first_child 0 and num_children 0. A node where no token ends has token_id NO_TOKEN.
- A set of tokens has exactly one trie: breadth first, siblings ascending, and every path leads to
  a token. A trie from a file is checked to be this trie.

The trie is laid out block by block, some of its levels at a time, in memory that does not grow:

- Compilation compares neighbours in the sorted list of tokens: a token makes one node for each byte
  after the prefix in common with the token before. A node is thus a depth and a place in this list.
  Nodes ordered by depth, then place, are in breadth-first order.
- A node's parent is the last node a level up whose place in the list is the same or earlier.
- Training on one long pre-token makes tokens of megabytes. Their trie has many times the bytes of
  the tokens, and is written to a file without ever being whole.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import offsets_of, ranges
from llmgpu.errors import VocabularyError

NO_TOKEN = 0xFFFFFFFF
BLOCK_NODES = 1 << 18

# some nodes, and the edges that leave these nodes
Block = tuple[NDArray[np.uint32], NDArray[np.uint32]]


@dataclass(frozen=True, eq=False)
class SortedTokens:
    """Distinct tokens in ascending order.

    tokens: of at least one byte. ids (t,): their ids. lengths (t,): their lengths in bytes.
    shared (t,): bytes that each token has in common with the token before.
    """

    tokens: list[bytes]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shared: NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        """Nodes of the trie, the root included."""
        return 1 + int((self.lengths - self.shared).sum())

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return int(self.lengths.max(initial=0))

    def blocks(self, most: int = BLOCK_NODES) -> Iterator[Block]:
        """Yield the nodes of the trie and the edges that leave them, in order.

        most: nodes of a block, unless one level has more.
        """
        if not self.tokens:
            yield np.array([[0, 0, NO_TOKEN]], np.uint32), np.empty((0, 2), np.uint32)
            return
        done = 0  # edges
        for first, last in self._levels(most):
            nodes, edges = self._block(first, last, done)
            done += len(edges)
            yield nodes, edges

    def _first_levels(self) -> NDArray[np.int64]:
        """Return the level of the first node that each token makes; the first makes the root."""
        first = self.shared + 1
        first[0] = 0
        return first

    def _levels(self, most: int) -> Iterator[tuple[int, int]]:
        """Cut the levels, 0 to the longest token's length, into ranges of up to `most` nodes."""
        # Between two ends the levels are equally wide.
        begins = np.sort(self._first_levels())
        ends = np.sort(self.lengths + 1)
        cuts = np.unique(np.concatenate([begins, ends]))
        widths = np.searchsorted(begins, cuts, "right") - np.searchsorted(ends, cuts, "right")
        before = offsets_of(np.diff(cuts) * widths[:-1])  # nodes in the levels before each cut
        first, done = 0, 0
        while first <= self.longest:
            cut = int(np.searchsorted(before, done + most, "right")) - 1
            last = int(cuts[cut])
            if widths[cut]:
                last += int(done + most - before[cut]) // int(widths[cut])
            last = max(last, first + 1)
            yield first, last
            cut = int(np.searchsorted(cuts, last, "right")) - 1
            done = int(before[cut] + (last - cuts[cut]) * widths[cut])
            first = last

    def _block(self, first: int, last: int, done: int) -> Block:
        """Return the nodes of levels first .. last - 1; done: edges that leave earlier levels."""
        begins = np.maximum(self._first_levels(), first)
        ends = np.minimum(self.lengths, last)  # with the level below, of the last nodes' children
        listed = np.flatnonzero(ends >= begins)
        counts = ends[listed] + 1 - begins[listed]
        depths = ranges(begins[listed], counts)
        places = np.repeat(listed, counts)
        # Numbers of up to 16 bits are sorted in one pass.
        narrow = np.min_scalar_type(last - first)
        order = np.argsort((depths - first).astype(narrow), kind="stable")
        depths, places = depths[order], places[order]
        keys = depths * len(self.tokens) + places
        own, below = np.searchsorted(depths, [last, first + 1])

        parents = np.searchsorted(keys[:own], keys[below:] - len(self.tokens), "right") - 1
        children = np.bincount(parents, minlength=own)
        firsts = done + np.cumsum(children) - children
        is_end = depths[:own] == self.lengths[places[:own]]
        nodes = np.empty((own, 3), np.uint32)
        nodes[:, 0] = np.where(children > 0, firsts, 0)
        nodes[:, 1] = children
        nodes[:, 2] = np.where(is_end, self.ids[places[:own]], NO_TOKEN)
        edges = np.empty((len(parents), 2), np.uint32)
        edges[:, 0] = self._labels(listed, begins[listed], ends[listed])[order[below:]]
        edges[:, 1] = np.arange(done + 1, done + 1 + len(parents))
        return nodes, edges

    def _labels(
        self, listed: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return the byte that leads to each node of levels begins .. ends of the tokens listed."""
        firsts, root = np.maximum(begins - 1, 0).tolist(), b"\0" * int(begins[0] == 0)
        tokens = map(self.tokens.__getitem__, listed.tolist())
        parts = map(bytes.__getitem__, tokens, map(slice, firsts, ends.tolist()))
        return np.frombuffer(root + b"".join(parts), np.uint8)


def sort_tokens(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> SortedTokens:
    """Sort tokens for their trie; see `llmgpu.bpe.vocabulary.trie.compile_trie`."""
    numbers = np.asarray(ids, np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < NO_TOKEN:
        raise VocabularyError(f"a token's id is below 0 or above {NO_TOKEN - 1}")
    if len(tokens) != len(numbers):
        raise ValueError(f"{len(tokens)} tokens, but {len(numbers)} ids")
    # The lowest id of a token comes first, and stays first.
    ascending = np.argsort(numbers, kind="stable").tolist()
    order = sorted(filter(tokens.__getitem__, ascending), key=tokens.__getitem__)
    listed = [tokens[place] for place in order]
    is_first = list(map(operator.ne, [b"", *listed[:-1]], listed))
    distinct = list(compress(listed, is_first))
    lengths = np.fromiter(map(len, distinct), np.int64, len(distinct))
    found = numbers[np.array(order, np.int64)[is_first]]
    shared = np.zeros(len(distinct), np.int64)
    shared[1:] = list(map(_shared_prefix, distinct, distinct[1:]))
    return SortedTokens(distinct, found, lengths, shared)


def _shared_prefix(left: bytes, right: bytes) -> int:
    """Count the leading bytes that two strings share."""
    length = min(len(left), len(right))
    left, right = left[:length], right[:length]
    if left == right:
        return length
    # As big-endian numbers, the strings' highest different bit is in the first different byte.
    difference = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return length - (difference.bit_length() + 7) // 8


@dataclass(frozen=True, eq=False)
class Trie:
    """Tokens as a tree of bytes.

    nodes: uint32 (N, 3), first_child, num_children and token_id of each node.
    edges: uint32 (N - 1, 2), byte and target node of each edge.
    longest: bytes of the longest token, the depth of the tree.
    """

    nodes: NDArray[np.uint32]
    edges: NDArray[np.uint32]
    longest: int

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.nodes)

    def blocks(self) -> Iterator[Block]:
        """Yield the nodes and edges, all at once."""
        yield self.nodes, self.edges


def compile_trie(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> Trie:
    """Build the trie of `tokens`, whose ids are `ids` (one each, below NO_TOKEN).

    Of several tokens with the same bytes, the lowest id is taken. Empty tokens are left out.
    Raises VocabularyError for an id out of range.
    """
    return lay_out(sort_tokens(tokens, ids))


def lay_out(tokens: SortedTokens) -> Trie:
    """Build the trie of sorted tokens."""
    nodes, edges = zip(*tokens.blocks(), strict=True)
    return Trie(np.concatenate(nodes), np.concatenate(edges), tokens.longest)


def validate_trie(
    trie: Trie, tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]
) -> None:
    """Raise VocabularyError unless `trie` equals `compile_trie(tokens, ids)`.

    Nothing larger than a small multiple of `trie` and `tokens` is allocated.
    """
    if not _is_equal(trie, sort_tokens(tokens, ids)):
        raise VocabularyError("the trie does not match the tokens")


def _is_equal(trie: Trie, tokens: SortedTokens) -> bool:
    if (len(trie.nodes), trie.longest) != (tokens.num_nodes, tokens.longest):
        return False
    first_node = first_edge = 0
    for nodes, edges in tokens.blocks():
        last_node, last_edge = first_node + len(nodes), first_edge + len(edges)
        if not (
            np.array_equal(trie.nodes[first_node:last_node], nodes)
            and np.array_equal(trie.edges[first_edge:last_edge], edges)
        ):
            return False
        first_node, first_edge = last_node, last_edge
    return len(trie.edges) == first_edge
