"""Merges recovered from ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llmgpu.bpe.vocabulary.building import ordinary_ranks, recover_merges
from tests.bpe.interchange.samples import random_ranks, trained

BYTES = {bytes([value]): value for value in range(256)}


def last_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, ...]:
    """Merge two parts at a time, the lowest rank first, until two are left or none fit."""
    parts = [bytes([value]) for value in token]
    while len(parts) > 2:
        joined = [left + right for left, right in pairwise(parts)]
        found = [(ranks[part], i) for i, part in enumerate(joined) if part in ranks]
        if not found:
            break
        _, i = min(found)
        parts[i : i + 2] = [joined[i]]
    return tuple(parts)


@pytest.mark.parametrize("seed", range(6))
def test_like_the_plain_rule(seed: int) -> None:
    ranks = random_ranks(seed, 400)
    pairs = {rank: last_pair(token, ranks) for token, rank in ranks.items() if len(token) > 1}
    expected = [
        [ranks[pair[0]], ranks[pair[1]], rank]
        for rank, pair in sorted(pairs.items())
        if len(pair) == 2
    ]
    assert len(expected) < len(pairs)  # not all can be reached
    assert recover_merges(ranks).tolist() == expected


@pytest.mark.parametrize("pattern", ["class", "gpt2", "none"])
def test_a_training_is_recovered(pattern: str) -> None:
    vocabulary = trained(pattern)
    recovered = recover_merges(ordinary_ranks(vocabulary))
    assert recovered.tolist() == vocabulary.merges.tolist()


def test_no_merges() -> None:
    assert recover_merges(BYTES).shape == (0, 3)
    assert recover_merges(BYTES | {b"abcd": 300}).shape == (0, 3)


@pytest.mark.slow
def test_a_long_token_takes_no_long_time() -> None:
    ranks = BYTES | {b"a" * 2**k: 255 + k for k in range(1, 18)}
    assert len(recover_merges(ranks)) == 17
