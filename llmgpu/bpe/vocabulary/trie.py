"""The trie of a vocabulary's tokens, laid out flat for a walk on any device.

- Nodes are in breadth-first order, node 0 is the root, and the children of a node are sorted by
  byte. Edge e leads to node e + 1, so a node's edges are
  ``edges[first_child : first_child + num_children]``: first_child is an index into edges.
- A leaf has first_child 0 and num_children 0. A node where no token ends has token_id NO_TOKEN.
- How it is compiled, see `trie_levels`.
- A set of tokens has exactly one trie: breadth first, siblings ascending, with no paths but those
  that spell the tokens. That is what a trie from a file is checked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.trie_levels import NO_TOKEN as NO_TOKEN
from llmgpu.bpe.vocabulary.trie_levels import Block, SortedTokens, sort_tokens
from llmgpu.errors import VocabularyError

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

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.nodes)

    def blocks(self) -> Iterator[Block]:
        """Yield the nodes and edges, all at once."""
        yield self.nodes, self.edges


def compile_trie(tokens: Sequence[bytes], ids: Sequence[int] | NDArray[np.integer]) -> Trie:
    """Build the trie of `tokens`, whose ids are `ids` (one each, below NO_TOKEN).

    Where several tokens have the same bytes, the lowest id is taken. Empty tokens are left out.
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
    """Raise VocabularyError unless `trie` is what `compile_trie(tokens, ids)` makes.

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
