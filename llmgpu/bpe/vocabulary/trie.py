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

from llmgpu.bpe.arrays import PADDING, offsets_of, ranges
from llmgpu.errors import VocabularyError

NO_TOKEN = 0xFFFFFFFF
BLOCK_NODES = 1 << 18
_FEW_BYTES = 64  # compared for all pairs of tokens together
_MANY_BYTES = 1 << 16  # compared at once of two tokens

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
    return SortedTokens(distinct, found, lengths, _shared_prefixes(distinct))


def _shared_prefixes(tokens: list[bytes]) -> NDArray[np.int64]:
    """Count the leading bytes that each token shares with the token before: int64 (t,).

    Eight bytes at a time, except for the few tokens that share many.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    limits = np.minimum(lengths, np.concatenate([np.zeros(1, np.int64), lengths])[:-1])
    starts = offsets_of(np.minimum(lengths, _FEW_BYTES))[:-1]
    head = operator.itemgetter(slice(_FEW_BYTES))
    heads = b"".join(map(head, tokens)) + bytes(PADDING)
    loads = np.ndarray((len(heads) - 7,), "<u8", heads, 0, (1,))
    shared = np.zeros(len(tokens), np.int64)
    active = np.flatnonzero(limits)
    for done in range(0, _FEW_BYTES, 8):
        difference = loads[starts[active] + done] ^ loads[starts[active - 1] + done]
        equal = difference == 0
        shared[active] = done + np.where(equal, 8, _lowest_byte(difference))
        active = active[equal & (limits[active] > done + 8)]
    for place in active.tolist():
        shared[place] = _shared_prefix(tokens[place - 1], tokens[place], int(limits[place]))
    np.minimum(shared, limits, out=shared)
    return shared


def _lowest_byte(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index of the lowest nonzero byte of each nonzero number."""
    lowest_bit = numbers & (~numbers + np.uint64(1))
    exponents = np.frexp(lowest_bit.astype(np.float64))[1]
    lowest: NDArray[np.int64] = (exponents.astype(np.int64) - 1) >> 3
    return lowest


def _shared_prefix(left: bytes, right: bytes, length: int) -> int:
    """Count the leading bytes, of the first `length`, that two strings share."""
    for done in range(0, length, _MANY_BYTES):
        end = min(done + _MANY_BYTES, length)
        one, other = left[done:end], right[done:end]
        if one != other:
            # As big-endian numbers, the strings' highest different bit is in the first different
            # byte.
            difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
            return end - (difference.bit_length() + 7) // 8
    return length


_MOST_LEVELS = 512  # of a trie whose paths are all followed at once


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
    if trie.longest > _MOST_LEVELS:
        is_valid = _is_compiled(trie, sort_tokens(tokens, ids))
    else:
        is_valid = _is_tree(trie) and _spells(trie, tokens, np.asarray(ids, np.int64))
    if not is_valid:
        raise VocabularyError("the trie does not match the tokens")


def _is_compiled(trie: Trie, tokens: SortedTokens) -> bool:
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


def _is_tree(trie: Trie) -> bool:
    """Whether nodes are in breadth-first order, siblings ascend, and every leaf has a token."""
    first_child, children, token_ids = trie.nodes.T
    labels, targets = trie.edges.T
    total = len(labels)
    if len(children) != total + 1 or children.sum(dtype=np.uint64) != total:
        return False
    numbers = np.arange(1, total + 1, dtype=np.uint32)
    parents = _parents_of(trie)
    ends = np.cumsum(children, dtype=np.uint32)
    ascend = (labels[1:] > labels[:-1]) | (parents[1:] != parents[:-1])
    is_leaf = children == 0
    is_leaf[0] = False  # the root of no tokens
    return bool(
        np.array_equal(targets, numbers)
        and np.array_equal(first_child, np.where(children > 0, ends - children, 0))
        and (parents < numbers).all()
        and (labels < 256).all()
        and ascend.all()
        and token_ids[0] == NO_TOKEN
        and (token_ids[is_leaf] != NO_TOKEN).all()
    )


def _parents_of(trie: Trie) -> NDArray[np.uint32]:
    """Return the parent of each node but the root."""
    return np.repeat(np.arange(len(trie.nodes), dtype=np.uint32), trie.nodes[:, 1])


def _spells(trie: Trie, tokens: Sequence[bytes], ids: NDArray[np.int64]) -> bool:
    """Whether the path to each node with a token spells the token, and no token is missing."""
    node_ids = trie.nodes[:, 2]
    nodes = np.flatnonzero(node_ids != NO_TOKEN).astype(np.uint32)
    found = node_ids[nodes]
    order = np.argsort(ids, kind="stable")
    numbers = np.searchsorted(ids[order], found)
    if len(nodes) and numbers.max() >= len(ids):
        return False
    numbers = order[numbers]
    if (ids[numbers] != found).any() or not _are_all_there(tokens, order, numbers):
        return False
    data = np.frombuffer(b"".join(tokens), np.uint8)
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(lengths)[numbers]
    lengths = lengths[numbers]
    if int(lengths.max(initial=0)) != trie.longest or not lengths.all():
        return False
    # Follow all paths at once from their ends to the root, a byte of each a step. The longest paths
    # come first, so that the paths not yet at the root are always the first in the arrays.
    longest_first = np.argsort(-lengths, kind="stable")
    nodes, ends = nodes[longest_first], ends[longest_first]
    longer = len(lengths) - np.cumsum(np.bincount(lengths, minlength=trie.longest + 1))
    labels, parents = trie.edges[:, 0].astype(np.uint8), _parents_of(trie)
    for step in range(trie.longest):
        active = int(longer[step])
        edges = nodes[:active] - np.uint32(1)
        if (labels[edges] != data[ends[:active] - (step + 1)]).any():
            return False
        nodes[:active] = parents[edges]
        rest = int(longer[step + 1])
        if not nodes[:rest].all() or nodes[rest:active].any():
            return False  # a path is shorter or longer than its token
    return True


def _are_all_there(
    tokens: Sequence[bytes], order: NDArray[np.int64], numbers: NDArray[np.int64]
) -> bool:
    """Whether `numbers` are the first in `order` of each distinct token, without repeats."""
    is_there = np.zeros(len(tokens), np.bool_)
    is_there[numbers] = True
    missing = np.flatnonzero(~is_there).tolist()
    if int(is_there.sum()) != len(numbers):
        return False
    if not any(tokens[number] for number in missing):
        return True  # empty tokens have no node
    firsts: dict[bytes, int] = {}
    for number in order.tolist():
        firsts.setdefault(tokens[number], number)
    firsts.pop(b"", None)
    return sorted(firsts.values()) == sorted(numbers.tolist())
