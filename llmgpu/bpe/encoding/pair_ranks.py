"""Which pairs of tokens merge, and in which order: what byte pair encoding needs to know.

- With merges: the pairs are those listed, the first one first, as in Hugging Face's tokenizers.
  Of a pair that is listed several times the last place counts there, and here.
- Without: two neighbours merge if what they spell together is a token, the one with the lowest id
  first, as in tiktoken. Every way to cut a token into two tokens is a pair of its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING, blocks
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
    """Return a pair for every way to cut a token into two, by ids and then by places."""
    ids = vocabulary.ordinary_ids
    ids = ids[vocabulary.token_lengths[ids] > 0]
    starts, lengths = vocabulary.token_offsets[ids], vocabulary.token_lengths[ids].astype(np.int64)
    data = np.concatenate([vocabulary.token_data, np.zeros(PADDING, np.uint8)])
    table = WordTable()
    numbers = table.number_padded(data, starts, starts + lengths)
    id_of = np.empty(len(table) + 1, np.int32)
    id_of[numbers[::-1]] = ids[::-1]  # of equal tokens the lowest id is written last
    id_of[-1] = _NO_ID  # of what is not in the table
    distinct = np.flatnonzero(id_of[numbers] == ids)
    ids, starts, lengths = ids[distinct], starts[distinct], lengths[distinct]
    has_length = np.zeros(int(lengths.max(initial=0)) + 1, np.bool_)
    has_length[lengths] = True
    parts = [np.empty((3, 0), np.int32)]
    for block in blocks(lengths - 1, _BLOCK):
        token, before = _cuts(lengths[block])
        token += block.start
        possible = has_length[before] & has_length[lengths[token] - before]
        token, before = token[possible], before[possible]
        left = id_of[table.look_up(data, starts[token], starts[token] + before)]
        token, before, left = (values[left != _NO_ID] for values in (token, before, left))
        begin = starts[token]
        right = id_of[table.look_up(data, begin + before, begin + lengths[token])]
        pairs = np.stack([left, right, ids[token].astype(np.int32)])
        parts.append(pairs[:, right != _NO_ID])
    left, right, ranks = np.concatenate(parts, axis=1)
    return PairRanks(left, right, ranks, np.arange(vocabulary.size, dtype=np.int32))


def _cuts(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of some strings each cut is in, and how many bytes are before it."""
    cuts = lengths - 1
    strings = np.repeat(np.arange(len(lengths)), cuts)
    return strings, np.arange(1, len(strings) + 1) - np.repeat(np.cumsum(cuts) - cuts, cuts)


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
