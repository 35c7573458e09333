"""The trie of a vocabulary's tokens, laid out flat for a walk on any device.

- Nodes are in breadth-first order, node 0 is the root, and the children of a node are sorted by
  byte. Edge e leads to node e + 1, so a node's edges are ``edges[first_child : first_child +
  num_children]``: first_child is an index into edges.
- A leaf has first_child 0 and num_children 0. A node at which no token ends has token_id NO_TOKEN.
- A set of tokens has exactly one trie: breadth first, siblings ascending, and every path leads to a
  token. A trie in a file must equal this trie.

The trie is computed block by block, a few levels at a time, so that large tries need little memory:

- Compilation compares neighbours in the sorted list of tokens. A token makes one node for each byte
  after the prefix that it shares with the token before. So a depth and a position in the list
  identify a node. Nodes sorted by depth, then position, are in breadth-first order.
- A node's parent is the last node of the level above with the same or an earlier position in the
  list.
- Training on one long pre-token makes tokens of megabytes. Their trie is many times larger than the
  tokens, and is written to a file without being whole in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import ranges
from llmgpu.errors import VocabularyError

NO_TOKEN = 0xFFFFFFFF
BLOCK_NODES = 1 << 18

# A range of nodes, uint32 (n, 3), and the edges that leave these nodes, uint32 (m, 2); see `Trie`.
Block = tuple[NDArray[np.uint32], NDArray[np.uint32]]


@dataclass(frozen=True, eq=False)
class SortedTokens:
    """Distinct tokens in ascending order.

    tokens: each of at least one byte. ids: int64 (tokens,). lengths: int64 (tokens,), in bytes.
    shared: int64 (tokens,), the number of leading bytes that each token shares with the token
        before; -1 for the first token, which also makes the root.
    """

    tokens: list[bytes]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shared: NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        """Number of the trie's nodes, the root included."""
        return max(1, int((self.lengths - self.shared).sum()))

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return int(self.lengths.max(initial=0))

    def blocks(self, most: int = BLOCK_NODES) -> Iterator[Block]:
        """Yield the nodes of the trie and the edges that leave them, in order.

        most: largest number of nodes of a block, unless a single level has more.
        """
        if not self.tokens:
            yield np.array([[0, 0, NO_TOKEN]], np.uint32), np.empty((0, 2), np.uint32)
            return
        done = 0  # number of edges in earlier blocks
        for first, last in self._levels(most):
            nodes, edges = self._block(first, last, done)
            done += len(edges)
            yield nodes, edges

    def _levels(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of levels, (first, last + 1), of at most `most` nodes each.

        A level with more nodes is a range of its own.
        """
        lengths, first = np.sort(self.lengths), 0
        while first <= self.longest:
            # Tokens shorter than `first` have no node in this range. Every other token has at most
            # one node in a level.
            widest = len(lengths) - int(np.searchsorted(lengths, first))
            last = min(first + max(1, most // widest), self.longest + 1)
            yield first, last
            first = last

    def _block(self, first: int, last: int, done: int) -> Block:
        """Return the nodes of levels first .. last - 1, and their edges.

        done: number of edges that leave earlier levels.
        """
        # List the nodes of levels first .. last. Level `last` is included because it has the
        # children of level last - 1. depths: the level of a node. places: position of the token
        # that makes the node.
        begins = np.maximum(self.shared + 1, first)
        ends = np.minimum(self.lengths, last)
        listed = np.flatnonzero(ends >= begins)
        counts = ends[listed] + 1 - begins[listed]
        depths = ranges(begins[listed], counts)
        places = np.repeat(listed, counts)
        # Sort the nodes by level, then place. Sort narrow numbers, because NumPy sorts 16 bits
        # faster.
        narrow = np.min_scalar_type(last - first)
        order = np.argsort((depths - first).astype(narrow), kind="stable")
        depths, places = depths[order], places[order]
        keys = depths * len(self.tokens) + places
        # own: number of nodes in the block. below: index of the first node after level `first`,
        # which is the first child.
        own, below = np.searchsorted(depths, [last, first + 1])

        # Find each child's parent, and fill the table of nodes.
        parents = np.searchsorted(keys[:own], keys[below:] - len(self.tokens), "right") - 1
        children = np.bincount(parents, minlength=own)
        firsts = done + np.cumsum(children) - children
        is_end = depths[:own] == self.lengths[places[:own]]
        nodes = np.empty((own, 3), np.uint32)
        nodes[:, 0] = np.where(children > 0, firsts, 0)
        nodes[:, 1] = children
        nodes[:, 2] = np.where(is_end, self.ids[places[:own]], NO_TOKEN)
        # Fill the table of edges, one for each child.
        edges = np.empty((len(parents), 2), np.uint32)
        # labels: the byte that leads to each listed node, 0 for the root.
        spans = zip(listed.tolist(), begins[listed].tolist(), ends[listed].tolist(), strict=True)
        parts = [self.tokens[place][max(begin - 1, 0) : end] for place, begin, end in spans]
        labels = np.frombuffer(b"\0" * (first == 0) + b"".join(parts), np.uint8)
        edges[:, 0] = labels[order[below:]]
        edges[:, 1] = np.arange(done + 1, done + 1 + len(parents))
        return nodes, edges


def sort_tokens(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> SortedTokens:
    """Sort tokens for a trie. Takes the arguments of `compile_trie`, raises its errors."""
    numbers = np.asarray(ids, np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < NO_TOKEN:
        raise VocabularyError(f"a token's id is below 0 or above {NO_TOKEN - 1}")
    if len(tokens) != len(numbers):
        raise ValueError(f"{len(tokens)} tokens, but {len(numbers)} ids")
    # Sort by id, then by token. The second sort keeps the order of equal tokens, so the lowest id
    # is the first of them.
    ascending = np.argsort(numbers, kind="stable").tolist()
    order = sorted(filter(tokens.__getitem__, ascending), key=tokens.__getitem__)
    listed = [tokens[place] for place in order]
    is_first = list(map(operator.ne, [b"", *listed[:-1]], listed))
    # Keep only the first of equal tokens.
    distinct = list(compress(listed, is_first))
    lengths = np.fromiter(map(len, distinct), np.int64, len(distinct))
    found = numbers[np.array(order, np.int64)[is_first]]
    shared = np.full(len(distinct), -1, np.int64)
    shared[1:] = list(map(_shared_prefix, distinct, distinct[1:]))
    return SortedTokens(distinct, found, lengths, shared)


def _shared_prefix(left: bytes, right: bytes) -> int:
    """Count the leading bytes that two strings share."""
    length = min(len(left), len(right))
    left, right = left[:length], right[:length]
    if left == right:
        return length
    # As big-endian numbers, the strings differ first in the byte of the highest bit that differs.
    difference = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return length - (difference.bit_length() + 7) // 8


@dataclass(frozen=True, eq=False)
class Trie:
    """Tokens as a tree of bytes.

    nodes: uint32 (N, 3), first_child, num_children and token_id of each node.
    edges: uint32 (N - 1, 2), byte and target node of each edge.
    longest: bytes of the longest token, which is the depth of the tree.
    """

    nodes: NDArray[np.uint32]
    edges: NDArray[np.uint32]
    longest: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.nodes)

    def blocks(self) -> Iterator[Block]:
        """Yield all nodes and edges as one block."""
        yield self.nodes, self.edges


def compile_trie(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> Trie:
    """Build the trie of `tokens`; ids: the id of each token, below NO_TOKEN.

    Of several tokens with the same bytes, the trie has the lowest id. Empty tokens are left out.
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

    Allocates at most a small multiple of the memory of `trie` and `tokens`.
    """
    found = sort_tokens(tokens, ids)
    # Compare the sizes first, because the trie of the tokens may be much larger than `trie`.
    fits = (len(trie.nodes), trie.longest) == (found.num_nodes, found.longest)
    expected = lay_out(found) if fits else None
    if expected is None or not (
        np.array_equal(trie.nodes, expected.nodes) and np.array_equal(trie.edges, expected.edges)
    ):
        raise VocabularyError("the trie does not match the tokens")
