"""Which pairs of tokens merge, in which order, and which may be merged at once.

- With a list of merges, pairs merge in the order of the list, as in Hugging Face's tokenizers. Of a
  pair that is listed several times the last place counts, as it does there.
- Without, two neighbours merge if together they spell a token, lowest id first, as in tiktoken.
  Every way to cut a token into two tokens is a pair of that token's rank.

Byte pair encoding merges the pair of the lowest rank first. A pair of bytes a b of rank r is sure
to be merged, regardless of the order of all other merges, if

- no pair of rank r or lower joins a to what precedes it: neither to the byte before nor to any
  token that ends with that byte;
- no pair of rank r or lower joins b to a token that starts with the byte after it;
- the token a b is in no pair of rank r or lower, so merging it early gives nothing a head start.

So all such pairs of a text may be merged at once. No two of them overlap, since each would need a
lower rank than the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING, blocks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.word_table import WordTable
from llmgpu.errors import VocabularyError

NO_RANK = 0x3FFFFF  # of a pair that does not merge; all ranks are below
_NO_ID = -1  # of bytes that are not a token
_BLOCK = 1 << 18  # cuts of tokens looked up at a time


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


def pair_ranks(vocabulary: Vocabulary) -> PairRanks:
    """Return the pairs of a vocabulary; VocabularyError if there are too many to be ranked."""
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
    """Return a pair for every way to cut a token into two, sorted by id and then by cut."""
    ids = vocabulary.ordinary_ids
    ids = ids[vocabulary.token_lengths[ids] > 0]
    starts, lengths = vocabulary.token_offsets[ids], vocabulary.token_lengths[ids].astype(np.int64)
    data = np.concatenate([vocabulary.token_data, np.zeros(PADDING, np.uint8)])
    # Number the tokens by their bytes, to look up the two parts of a cut.
    table = WordTable()
    numbers = table.number(data, starts, starts + lengths)
    id_of = np.empty(len(table) + 1, np.int32)
    id_of[numbers[::-1]] = ids[::-1]  # the lowest id of equal tokens is written last
    id_of[-1] = _NO_ID  # for parts that are not in the table
    distinct = np.flatnonzero(id_of[numbers] == ids)
    ids, starts, lengths = ids[distinct], starts[distinct], lengths[distinct]
    has_length = np.zeros(int(lengths.max(initial=0)) + 1, np.bool_)
    has_length[lengths] = True
    parts = [np.empty((3, 0), np.int32)]
    for block in blocks(lengths - 1, _BLOCK):
        token, before = _cuts(lengths[block])
        token += block.start
        # Most cuts leave a part of a length that no token has: skip their look-ups.
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
    """Return for all cuts of strings the string and the number of bytes before the cut."""
    cuts = lengths - 1
    strings = np.repeat(np.arange(len(lengths)), cuts)
    return strings, np.arange(1, len(strings) + 1) - np.repeat(np.cumsum(cuts) - cuts, cuts)


def byte_ids(vocabulary: Vocabulary) -> NDArray[np.int32]:
    """Return the id of each byte, int32 (256,); without one, that of the unknown token or -1."""
    unknown = -1 if vocabulary.unknown_token is None else vocabulary.unknown_token
    ids = np.full(256, unknown, np.int32)
    ordinary = vocabulary.ordinary_ids
    # In descending order, so that the lowest id of a byte is written last.
    single = ordinary[vocabulary.token_lengths[ordinary] == 1][::-1]
    ids[vocabulary.token_data[vocabulary.token_offsets[single]]] = single
    return ids


class SafePairs:
    """Finds the pairs of bytes in words that are sure to be merged.

    ranks: uint32 (256, 256), of a byte and the next; NO_RANK if they do not merge.
    """

    def __init__(
        self, vocabulary: Vocabulary, pairs: PairRanks, byte_pair_ranks: NDArray[np.uint32]
    ) -> None:
        """Make the tables of a vocabulary; byte_pair_ranks: see `ranks`."""
        of_byte = byte_ids(vocabulary)
        byte_of = np.full(vocabulary.size, -1)
        byte_of[of_byte[of_byte >= 0]] = np.flatnonzero(of_byte >= 0)
        left, right = byte_of[pairs.left], byte_of[pairs.right]
        first_byte = vocabulary.token_data[vocabulary.token_offsets[pairs.right]]
        last_byte = vocabulary.token_data[vocabulary.token_offsets[pairs.left + 1] - 1]
        ranks = pairs.ranks.astype(np.uint32)
        self.ranks = byte_pair_ranks
        # By the byte before and a pair's first byte: the lowest rank that joins the two.
        self._before = _lowest(last_byte[right >= 0], right[right >= 0], ranks[right >= 0])
        # By a pair's second byte and the byte after: the same.
        self._after = _lowest(left[left >= 0], first_byte[left >= 0], ranks[left >= 0])
        # By token: the lowest rank of a pair that it is in.
        in_pairs = np.full(vocabulary.size, NO_RANK, np.uint32)
        np.minimum.at(in_pairs, pairs.left, ranks)
        np.minimum.at(in_pairs, pairs.right, ranks)
        known = self.ranks < NO_RANK
        self._safe = np.zeros_like(known)
        self._safe[known] = in_pairs[pairs.results[self.ranks[known]]] > self.ranks[known]
        if (of_byte < 0).any() or vocabulary.unknown_token is not None:
            self._safe[:] = False  # several bytes may be one symbol

    def find(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where sure pairs start in words that lie end to end; ends: int64, ascending."""
        codes = data[:-1].astype(np.uint16) << 8 | data[1:]
        ranks = self.ranks.reshape(-1)[codes]
        before, after = self._before.reshape(-1)[codes], self._after.reshape(-1)[codes]
        safe = self._safe.reshape(-1)[codes]
        across = ends[:-1] - 1  # a word's last byte and the next word's first
        before[across] = after[across] = NO_RANK
        safe[across] = False
        safe[1:] &= ranks[1:] < before[:-1]
        safe[:-1] &= ranks[:-1] < after[1:]
        return np.flatnonzero(safe)


def _lowest(
    rows: NDArray[np.integer], columns: NDArray[np.integer], ranks: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return the lowest rank of each entry of a table, uint32 (256, 256)."""
    table = np.full((256, 256), NO_RANK, np.uint32)
    np.minimum.at(table, (rows, columns), ranks)
    return table
