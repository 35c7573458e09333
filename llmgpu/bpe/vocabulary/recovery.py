"""Merges recovered from ranks: the pair that makes each token.

A vocabulary may have ranks instead of merges. Then any two neighbouring symbols whose bytes
together are a token may merge, the pair of the token with the lowest rank first. Merge the bytes of
a token by this rule until two symbols are left. These two symbols are the token's pair.

No other pair ever makes the token. Take the stretch of a text that becomes the token. Until the
token is made, no merge crosses the ends of the stretch. So the merges inside the stretch are those
of the token's bytes alone, in the same order, and the last two symbols are the token's pair.

Hence a list with one merge per token, sorted by rank, gives the same ids as the ranks. A token has
no pair if its bytes never merge to the token. By ranks, such a token results only from a pre-token
of exactly its bytes. By merges, `ignore_merges` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import AnyStr

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

# In `starts`: two symbols have merged across this position, so no symbol ends here.
_NO_PART = -2


def ordinary_ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return the ids of ordinary tokens by their bytes, ascending by id.

    Tokens with the same bytes have one entry, with the lowest id.
    """
    ranks: dict[bytes, int] = {}
    for number in vocabulary.ordinary_ids.tolist():
        if token := vocabulary.tokens[number]:
            ranks.setdefault(token, number)
    return ranks


def listed_merges(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the merges of a vocabulary; if it has only ranks, the merges that give the same ids.

    uint32 (M, 3): left, right and result.
    """
    if len(vocabulary.merges):
        return vocabulary.merges
    return recover_merges(ordinary_ranks(vocabulary))


def recover_merges(ranks: Mapping[bytes, int]) -> NDArray[np.uint32]:
    """Return merges that give the same ids as ranks: uint32 (M, 3), left, right and result.

    ranks: id by token; a lower id merges first. Every byte of a token is a token, too.
    """
    triples = [
        (ranks[pair[0]], ranks[pair[1]], rank)
        for token, rank in ranks.items()
        if len(token) > 1 and (pair := last_pair(token, ranks))
    ]
    triples.sort(key=lambda triple: triple[2])
    return np.array(triples, np.uint32).reshape(-1, 3)


def last_pair(token: AnyStr, ranks: Mapping[AnyStr, int]) -> tuple[AnyStr, AnyStr] | None:
    """Merge the bytes or characters of `token` until two symbols are left.

    ranks: rank by token. The lowest rank merges first, and of equal ranks the leftmost pair.

    Returns the two symbols; None if merging stops with more than two.
    """
    length = len(token)
    ends = list(range(1, length + 1))  # ends[k]: the end of the symbol that begins at k
    starts = list(range(-1, length))  # starts[k]: the start of the symbol that ends at k
    # Heap of pairs of neighbouring symbols: rank, begin and end.
    waiting: list[tuple[int, int, int]] = []

    def push(begin: int, end: int) -> None:
        rank = ranks.get(token[begin:end])
        if rank is not None:
            heappush(waiting, (rank, begin, end))

    for begin in range(length - 1):
        push(begin, begin + 2)
    parts = length
    while parts > 2 and waiting:
        _, begin, end = heappop(waiting)
        middle = ends[begin]
        if starts[begin] == _NO_PART or middle == length or ends[middle] != end:
            continue  # one of the two symbols has merged since
        ends[begin], starts[middle], starts[end] = end, _NO_PART, begin
        parts -= 1
        # Push the pairs of the new symbol with its two neighbours.
        if begin > 0:
            push(starts[begin], end)
        if end < length:
            push(begin, ends[end])
    return None if parts > 2 else (token[: ends[0]], token[ends[0] :])
