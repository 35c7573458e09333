"""Which pairs of tokens merge, and in which order.

- With a list of merges, pairs merge in the order of the list, as in Hugging Face's tokenizers. Of a
  pair that is listed several times the last place counts, as it does there.
- Without, two neighbours merge if together they spell a token, lowest id first, as in tiktoken.
  Every way to cut a token into two tokens is a pair of that token's rank.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.recovery import ordinary_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.spelling import spelled

NO_RANK = 0x3FFFFF  # of a pair that does not merge; all ranks are below


@dataclass(frozen=True, eq=False)
class PairRanks:
    """The pairs that merge, all different; int32 (pairs,).

    left, right: ids of the parts.
    ranks: the lowest merges first. Pairs of equal rank have the same result.
    results: int32 (ranks,), id by rank.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    ranks: NDArray[np.int32]
    results: NDArray[np.int32]

    @property
    def keys(self) -> NDArray[np.int64]:
        """One number for each pair, from its parts: int64 (pairs,)."""
        return pair_keys(self.left, self.right)

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The keys, ascending, with their ranks; after them one that is of no pair."""
        order = np.argsort(self.keys)
        keys = np.append(self.keys[order], np.iinfo(np.int64).max)
        return keys, np.append(self.ranks[order], np.int32(NO_RANK))

    def look_up(self, left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ranks of pairs, int32 (n,): NO_RANK for those that do not merge."""
        keys, ranks = self._sorted
        wanted = pair_keys(left, right)
        at = np.searchsorted(keys, wanted)
        return np.where(keys[at] == wanted, ranks[at], np.int32(NO_RANK))


def pair_keys(left: NDArray[np.int32], right: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return a number for each pair: int64 (n,), below 0 if a part is -1."""
    return left.astype(np.int64) << 32 | right


def pair_ranks(vocabulary: Vocabulary) -> PairRanks:
    """Return the pairs of a vocabulary; VocabularyError if there are too many to be ranked."""
    if max(len(vocabulary.merges), vocabulary.size) > NO_RANK:
        raise VocabularyError(
            f"more than {NO_RANK} tokens or merges: too many for {spelled('--match bpe')}"
        )
    if len(vocabulary.merges):
        return _listed(vocabulary.merges.astype(np.int32))
    return _all_cuts(vocabulary)


def _listed(merges: NDArray[np.int32]) -> PairRanks:
    _, last = np.unique(pair_keys(*merges[::-1, :2].T), return_index=True)
    ranks = np.sort(len(merges) - 1 - last).astype(np.int32)
    return PairRanks(merges[ranks, 0], merges[ranks, 1], ranks, merges[:, 2])


def _all_cuts(vocabulary: Vocabulary) -> PairRanks:
    """Return a pair for every way to cut a token into two, sorted by id and then by cut."""
    ids = ordinary_ranks(vocabulary)
    pairs = array("i")
    for token, number in ids.items():
        for cut in range(1, len(token)):
            before = ids.get(token[:cut])
            if before is not None:
                after = ids.get(token[cut:])
                if after is not None:
                    pairs.extend((before, after, number))
    left, right, ranks = np.frombuffer(pairs, np.int32).reshape(-1, 3).T
    return PairRanks(left, right, ranks, np.arange(vocabulary.size, dtype=np.int32))


def byte_ids(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the id of each byte, int32 (256,); without one, that of the unknown token or -1."""
    unknown = -1 if vocabulary.unknown_token is None else vocabulary.unknown_token
    ids = np.full(256, unknown, np.int32)
    ordinary = vocabulary.ordinary_ids
    # In descending order, so that the lowest id of a byte is written last.
    single = ordinary[vocabulary.token_lengths[ordinary] == 1][::-1]
    ids[vocabulary.token_data[vocabulary.token_offsets[single]]] = single
    return ids
