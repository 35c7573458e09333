"""The trie of a vocabulary's tokens, laid out flat for a walk on any device.

- Nodes are in breadth-first order, node 0 is the root, and the children of a node are sorted by
  byte. Edge e leads to node e + 1, so a node's edges are
  ``edges[first_child : first_child + num_children]``: first_child is an index into edges.
- A leaf has first_child 0 and num_children 0. A node where no token ends has token_id NO_TOKEN.
- Compilation compares neighbours in the sorted list of tokens: a token makes one node for each byte
  after the prefix that it shares with the previous token. That lists the nodes depth first; a
  stable sort by depth makes it breadth first.
- A set of tokens has exactly one trie: breadth first, siblings ascending, with no paths but those
  that spell the tokens. That is what a trie from a file is checked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING, concatenate_ranges, offsets_of, sort_by_bytes
from llmgpu.errors import VocabularyError

NO_TOKEN = 0xFFFFFFFF
_FEW_BYTES = 64  # compared for all pairs of tokens together
_MOST_LEVELS = 512  # of a trie whose paths are followed all at once


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


def compile_trie(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> Trie:
    """Build the trie of `tokens`, whose ids are `ids` (one each, below NO_TOKEN).

    Where several tokens have the same bytes, the lowest id is taken. Empty tokens are left out.
    Raises VocabularyError for an id out of range.
    """
    return _lay_out(_sort_tokens(tokens, ids))


def validate_trie(
    trie: Trie, tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]
) -> None:
    """Raise VocabularyError unless `trie` is what `compile_trie(tokens, ids)` makes.

    Nothing larger than a small multiple of `trie` and `tokens` is allocated.
    """
    if trie.longest > _MOST_LEVELS:
        is_valid = _is_compiled(trie, _sort_tokens(tokens, ids))
    else:
        is_valid = _is_tree(trie) and _spells(trie, tokens, np.asarray(ids, np.int64))
    if not is_valid:
        raise VocabularyError("the trie is not that of the tokens")


def _is_compiled(trie: Trie, listing: _SortedTokens) -> bool:
    if len(trie.nodes) != listing.num_nodes:  # which costs less memory than laying it out
        return False
    expected = _lay_out(listing)
    same = np.array_equal(trie.nodes, expected.nodes) and np.array_equal(trie.edges, expected.edges)
    return same and trie.longest == expected.longest


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
    """Whether the path to each node with a token spells it, and no token is missing."""
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
    # Follow all paths at once from their ends to the root, a byte of each a step. The longest come
    # first, so that those which are not at the root are always the first ones.
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
    """Whether `numbers` are the first in `order` of each distinct token, none of them twice."""
    is_there = np.zeros(len(tokens), np.bool_)
    is_there[numbers] = True
    missing = np.flatnonzero(~is_there).tolist()
    if int(is_there.sum()) != len(numbers):
        return False
    if not any(tokens[number] for number in missing):
        return True  # those that are empty have no node
    firsts: dict[bytes, int] = {}
    for number in order.tolist():
        firsts.setdefault(tokens[number], number)
    firsts.pop(b"", None)
    return sorted(firsts.values()) == sorted(numbers.tolist())


@dataclass(frozen=True, eq=False)
class _SortedTokens:
    """Distinct tokens in ascending order.

    data: uint8, the tokens end to end. ids (t,): their ids.
    lengths (t,): their lengths in bytes, at least 1.
    shared (t,): bytes each has in common with the one before it.
    """

    data: NDArray[np.uint8]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shared: NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        return 1 + int((self.lengths - self.shared).sum())


def _sort_tokens(
    tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]
) -> _SortedTokens:
    numbers = np.asarray(ids, np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < NO_TOKEN:
        raise VocabularyError(f"a token's id is below 0 or above {NO_TOKEN - 1}")
    filled = [
        (token, number) for token, number in zip(tokens, numbers.tolist(), strict=True) if token
    ]
    if not filled:
        none = np.empty(0, np.int64)
        return _SortedTokens(np.empty(0, np.uint8), none, none, none)
    data = np.frombuffer(b"".join(token for token, _ in filled), np.uint8)
    offsets = offsets_of(np.array([len(token) for token, _ in filled]))
    order, same = sort_by_bytes(data, offsets)
    firsts = np.flatnonzero(~same)
    lowest = np.minimum.reduceat(np.array([number for _, number in filled])[order], firsts)
    distinct = order[firsts]
    lengths = np.diff(offsets)[distinct]
    data = concatenate_ranges(data, offsets[distinct], lengths)
    return _SortedTokens(data, lowest, lengths, _shared_prefixes(data, lengths))


def _shared_prefixes(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the leading bytes that strings, stored end to end, share with the previous one.

    Eight bytes at a time, except for the few strings that share many.
    """
    padded = np.concatenate([data, np.zeros(PADDING, np.uint8)])
    loads = np.ndarray((len(data) + 1,), "<u8", padded.data, 0, (1,))
    starts = np.cumsum(lengths) - lengths
    limits = np.minimum(lengths, np.concatenate([np.zeros(1, np.int64), lengths[:-1]]))
    shared = np.zeros(len(lengths), np.int64)
    active = np.flatnonzero(limits)
    for done in range(0, _FEW_BYTES, 8):
        difference = loads[starts[active] + done] ^ loads[starts[active - 1] + done]
        equal = difference == 0
        shared[active] = done + np.where(equal, 8, _lowest_byte(difference))
        active = active[equal & (limits[active] > done + 8)]
    for string in active.tolist():
        here, before = starts[string], starts[string - 1]
        length = limits[string]
        shared[string] = _shared_prefix(
            data[before : before + length].tobytes(), data[here : here + length].tobytes()
        )
    np.minimum(shared, limits, out=shared)
    return shared


def _lowest_byte(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the index of the lowest nonzero byte of each nonzero number."""
    lowest_bit = numbers & (~numbers + np.uint64(1))
    exponents = np.frexp(lowest_bit.astype(np.float64))[1]
    lowest: NDArray[np.int64] = (exponents.astype(np.int64) - 1) >> 3
    return lowest


def _shared_prefix(left: bytes, right: bytes) -> int:
    """Count the leading bytes that two strings of equal length share."""
    # As big-endian numbers, they first differ at the top in the first byte that differs.
    difference = int.from_bytes(left, "big") ^ int.from_bytes(right, "big")
    return len(left) - (difference.bit_length() + 7) // 8


def _lay_out(listing: _SortedTokens) -> Trie:
    """Number the nodes breadth first; a position here is one in the depth-first list."""
    fresh = listing.lengths - listing.shared  # nodes that each token makes
    ends = np.cumsum(fresh)
    total = int(fresh.sum())
    # Depth of each node (1 is a child of the root), and its byte.
    depths = np.arange(1, total + 1) + np.repeat(listing.shared - (ends - fresh), fresh)
    token_starts = np.cumsum(listing.lengths) - listing.lengths
    labels = listing.data[np.repeat(token_starts - 1, fresh) + depths]

    order = np.argsort(depths, kind="stable")  # position of each node but the root
    parents = _parents(depths[order], order)
    edges = np.empty((total, 2), np.uint32)
    edges[:, 0] = labels[order]
    edges[:, 1] = np.arange(1, total + 1)

    nodes = np.empty((total + 1, 3), np.uint32)
    children = np.bincount(parents, minlength=total + 1)
    nodes[:, 0] = np.where(children > 0, np.cumsum(children) - children, 0)
    nodes[:, 1] = children
    node_tokens = np.full(total + 1, NO_TOKEN, np.uint32)  # by position + 1, the root at 0
    node_tokens[ends] = listing.ids
    nodes[0, 2] = NO_TOKEN
    nodes[1:, 2] = node_tokens[order + 1]
    return Trie(nodes, edges, int(listing.lengths.max(initial=0)))


def _parents(depths: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find each node's parent: the last node one level up that is listed before it.

    depths, order: depth and depth-first position of nodes 1, 2, ...

    Returns numbers of nodes; 0 is the root.
    """
    width = len(order) + 1
    keys = depths * width + order  # ascending: a level, then a position in it
    return np.searchsorted(keys, keys - width, side="left")
