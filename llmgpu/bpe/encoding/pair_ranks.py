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

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError

NO_RANK = 0x3FFFFF  # of a pair that doesn't merge; all ranks are below


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
    ids: dict[bytes, int] = {}
    for number in vocabulary.ordinary_ids.tolist():
        ids.setdefault(vocabulary.tokens[number], number)
    ids.pop(b"", None)
    left: list[int] = []
    right: list[int] = []
    ranks: list[int] = []
    for token, rank in ids.items():
        for cut in range(1, len(token)):
            first = ids.get(token[:cut])
            second = None if first is None else ids.get(token[cut:])
            if first is not None and second is not None:
                left.append(first)
                right.append(second)
                ranks.append(rank)
    return PairRanks(
        np.array(left, np.int32),
        np.array(right, np.int32),
        np.array(ranks, np.int32),
        np.arange(vocabulary.size, dtype=np.int32),
    )


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
