"""Which pairs of tokens merge, and in which order: what byte pair encoding needs to know.

- With merges: the pairs are those listed, the first one first, as in Hugging Face's tokenizers.
  Of a pair that is listed several times the last place counts there, and here.
- Without: two neighbours merge if what they spell together is a token, the one with the lowest id
  first, as in tiktoken. Every way to cut a token into two tokens is a pair of its rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.word_table import WordTable
from llmgpu.errors import VocabularyError

NO_RANK = 0x3FFFFF  # of a pair that doesn't merge; all ranks are below
_NO_ID = -1  # of what is no token
_BLOCK = 1 << 18  # places at which tokens are cut, looked at at once


@dataclass(frozen=True, eq=False)
class PairRanks:
    """The pairs that merge, all different; int32 (pairs,).

    left, right: ids of the parts.
    ranks: which merges first, the lowest. Pairs of equal rank have one result.
    results: int32 (ranks,), id by rank.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    ranks: NDArray[np.int32]
    results: NDArray[np.int32]


def pair_ranks(vocabulary: Vocabulary) -> PairRanks:
    """Return the pairs of a vocabulary; VocabularyError if there are too many for their ranks."""
    if max(len(vocabulary.merges), vocabulary.size) > NO_RANK:
        raise VocabularyError(f"more than {NO_RANK} tokens or merges: too many for --match bpe")
    if len(vocabulary.merges):
        return _listed(vocabulary.merges.astype(np.int32))
    return _all_cuts(vocabulary)


def _listed(merges: NDArray[np.int32]) -> PairRanks:
    keys = merges[::-1, 0].astype(np.int64) << 32 | merges[::-1, 1]
    _, last = np.unique(keys, return_index=True)
    ranks = np.sort(len(merges) - 1 - last).astype(np.int32)
    return PairRanks(merges[ranks, 0], merges[ranks, 1], ranks, merges[:, 2])


def _all_cuts(vocabulary: Vocabulary) -> PairRanks:
    ids = vocabulary.ordinary_ids
    ids = ids[vocabulary.token_lengths[ids] > 0]
    starts, lengths = vocabulary.token_offsets[ids], vocabulary.token_lengths[ids].astype(np.int64)
    data = np.concatenate([vocabulary.token_data, np.zeros(PADDING, np.uint8)])
    table = WordTable()
    numbers = table.number_padded(data, starts, starts + lengths)
    id_of = np.empty(len(table) + 1, np.int32)
    id_of[numbers[::-1]] = ids[::-1]  # of equal tokens the lowest id is written last
    id_of[-1] = _NO_ID
    distinct = np.flatnonzero(id_of[numbers] == ids)
    ids, starts, lengths = ids[distinct], starts[distinct], lengths[distinct]
    has_length = np.zeros(int(lengths.max(initial=0)) + 1, np.bool_)
    has_length[lengths] = True
    parts = [np.empty((0, 3), np.int32)]
    for block in _blocks(lengths - 1):
        cuts = lengths[block] - 1  # places to cut each token at
        token = np.repeat(np.arange(block.start, block.stop), cuts)
        before = np.arange(1, len(token) + 1) - np.repeat(np.cumsum(cuts) - cuts, cuts)
        possible = has_length[before] & has_length[lengths[token] - before]
        token, before = token[possible], before[possible]
        begin = starts[token]
        left = id_of[table.look_up(data, begin, begin + before)]
        token, before, left = (values[left != _NO_ID] for values in (token, before, left))
        begin = starts[token]
        right = id_of[table.look_up(data, begin + before, begin + lengths[token])]
        made = np.column_stack([left, right, ids[token].astype(np.int32)])
        parts.append(made[right != _NO_ID])
    left, right, ranks = np.ascontiguousarray(np.concatenate(parts).T)
    return PairRanks(left, right, ranks, np.arange(vocabulary.size, dtype=np.int32))


def _blocks(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Cut a list into slices whose sizes add up to _BLOCK at most, or hold one each."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        yield slice(first, last)
        first = last


def byte_ids(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the id of each byte, int32 (256,); if it has none, the unknown token's, or -1."""
    unknown = -1 if vocabulary.unknown_token is None else vocabulary.unknown_token
    ids = np.full(256, unknown, np.int32)
    ordinary = vocabulary.ordinary_ids
    single = ordinary[vocabulary.token_lengths[ordinary] == 1][
        ::-1
    ]  # the lowest id is written last
    ids[vocabulary.token_data[vocabulary.token_offsets[single]]] = single
    return ids
