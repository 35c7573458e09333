"""The tokens of a vocabulary in the CPU engine: their trie, and the spellings of merges.

All functions take the tokens of a vocabulary as two arrays. data: uint8, the bytes of all tokens
end to end. offsets: int64 (tokens + 1,), the bounds of tokens in data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import call


def spelled_tokens(
    nodes: NDArray[np.uint32],
    edges: NDArray[np.uint32],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    is_ordinary: NDArray[np.bool_],
) -> int:
    """Check a trie against the tokens; return the number of nodes with a token, or -1.

    nodes, edges: see `llmgpu.bpe.vocabulary.trie.Trie`. is_ordinary: bool (tokens,).

    The result is -1 if a node's token is not ordinary or not spelled by the node's path, or if the
    nodes are in another order than `compile_trie` makes.
    """
    if len(edges) + 1 != len(nodes):
        return -1
    trie = np.ascontiguousarray(nodes), np.ascontiguousarray(edges)
    parents = np.empty(len(nodes), np.uint32)
    sizes = len(nodes), len(is_ordinary)
    return call("spelled_tokens", *trie, data, offsets, is_ordinary, *sizes, parents)


def lay_out_trie(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], ids: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the nodes and edges of the trie of some tokens, see `llmgpu.bpe.vocabulary.trie.Trie`.

    ids: the tokens to lay out, ascending. If several ids have the same bytes, the trie has the
    lowest.

    The call allocates 60 bytes of memory for each byte of the tokens in `ids`.
    """
    most = 1 + int((offsets[ids + 1] - offsets[ids]).sum())
    slots = np.zeros(2 << most.bit_length(), np.uint32)
    branches, order = np.empty((most, 5), np.uint32), np.empty(most, np.uint32)
    nodes, edges = np.empty((most, 3), np.uint32), np.empty((most, 2), np.uint32)
    data, ids = np.ascontiguousarray(data), np.ascontiguousarray(ids, np.int64)
    made = call(
        "lay_out_trie",
        *(data, offsets, ids, len(ids)),
        *(slots, len(slots), branches, order, nodes, edges),
    )
    return nodes[:made].copy(), edges[: made - 1].copy()


def append_merges(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], merges: NDArray[np.uint32], most: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """Return bytes and offsets of tokens followed by the results of merges.

    merges: uint32 (M, 3), the ids of the left token, the right token and the result. The result is
        the next id, or the id of an existing token.

    Returns None for a merge of an unknown id, for any other result, and for more than `most` bytes
    in all.
    """
    merges = np.ascontiguousarray(merges, np.uint32)
    grown = np.empty(len(offsets) + len(merges), np.int64)
    grown[: len(offsets)] = offsets
    tokens = len(offsets) - 1
    made = call("append_merges", merges, len(merges), None, grown, tokens, most)
    if made < 0:
        return None
    joined = np.empty(int(grown[made]), np.uint8)
    joined[: len(data)] = data
    call("append_merges", merges, len(merges), joined, grown, tokens, most)
    return joined, grown[: made + 1]


def merges_spell(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], merges: NDArray[np.uint32]
) -> bool:
    """Whether the result of each merge has the bytes of the two tokens that are merged.

    The length of each result must be that of the two tokens together.
    """
    merges = np.ascontiguousarray(merges, np.uint32)
    return bool(call("merges_spell", merges, len(merges), data, offsets))
