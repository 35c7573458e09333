"""Pairs of neighbouring bytes that can be merged at once, before any other pair is looked at.

Byte pair encoding merges the pair of the lowest rank first. A pair of bytes a b of rank r is sure
to be merged, whatever the order of all other merges, if

- no pair of rank r or lower takes a together with what is before it: neither with the byte before
  nor with any token that ends with it;
- no pair of rank r or lower takes b together with a token that begins with the byte behind;
- what a b makes is in no pair of rank r or lower, so that merging it early gives nothing a start.

So all such pairs of a text may be merged at once. No two of them overlap, since each would have to
be of lower rank than the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.pair_ranks import NO_RANK, PairRanks, byte_ids
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary


class SafePairs:
    """Finds the pairs of bytes in words that are sure to be merged.

    ranks: uint32 (256, 256), of a byte and the next, NO_RANK if they don't merge.
    """

    def __init__(
        self, vocabulary: Vocabulary, pairs: PairRanks, byte_pair_ranks: NDArray[np.uint32]
    ) -> None:
        """Make the tables of a vocabulary; byte_pair_ranks: what `ranks` is to be."""
        of_byte = byte_ids(vocabulary)
        byte_of = np.full(vocabulary.size, -1)
        byte_of[of_byte[of_byte >= 0]] = np.flatnonzero(of_byte >= 0)
        left, right = byte_of[pairs.left], byte_of[pairs.right]
        first_byte = vocabulary.token_data[vocabulary.token_offsets[pairs.right]]
        last_byte = vocabulary.token_data[vocabulary.token_offsets[pairs.left + 1] - 1]
        ranks = pairs.ranks.astype(np.uint32)
        self.ranks = byte_pair_ranks
        # By the byte before and the first of a pair: the lowest rank that takes the first to it.
        self._before = _lowest(last_byte[right >= 0], right[right >= 0], ranks[right >= 0])
        # By the second of a pair and the byte behind.
        self._behind = _lowest(left[left >= 0], first_byte[left >= 0], ranks[left >= 0])
        in_pairs = np.full(vocabulary.size, NO_RANK, np.uint32)
        np.minimum.at(in_pairs, pairs.left, ranks)
        np.minimum.at(in_pairs, pairs.right, ranks)
        known = self.ranks < NO_RANK
        self._safe = np.zeros_like(known)
        self._safe[known] = in_pairs[pairs.results[self.ranks[known]]] > self.ranks[known]
        if (of_byte < 0).any() or vocabulary.unknown_token is not None:
            self._safe[:] = False  # several bytes may be one symbol

    def find(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the pairs start in words that lie end to end; ends: int64, ascending."""
        codes = data[:-1].astype(np.uint16) << 8 | data[1:]
        ranks = self.ranks.reshape(-1)[codes]
        before, behind = self._before.reshape(-1)[codes], self._behind.reshape(-1)[codes]
        safe = self._safe.reshape(-1)[codes]
        across = ends[:-1] - 1  # a word's last byte and the next word's first
        before[across] = behind[across] = NO_RANK
        safe[across] = False
        safe[1:] &= ranks[1:] < before[:-1]
        safe[:-1] &= ranks[:-1] < behind[1:]
        return np.flatnonzero(safe)


def _lowest(
    rows: NDArray[np.integer], columns: NDArray[np.integer], ranks: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return a table of bytes by bytes with the lowest rank of each entry."""
    table = np.full((256, 256), NO_RANK, np.uint32)
    np.minimum.at(table, (rows, columns), ranks)
    return table
