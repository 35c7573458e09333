"""Shares of corpora: exact all along, each corpus taken in its own order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.lm.data.mixture import Mixture


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 10**12))
def test_shares_are_exact_to_a_sequence_of_each_corpus_before(
    weights: list[float], begin: int
) -> None:
    numbers = np.arange(begin, begin + 300, dtype=np.int64)
    corpora, places = Mixture(weights).places(numbers)
    for number, weight in enumerate(weights):
        mine = places[corpora == number]
        assert np.array_equal(mine, np.arange(mine[0], mine[0] + len(mine)) if len(mine) else mine)
        if len(mine):
            fraction = weight / sum(weights)
            # Weights are rounded to whole numbers of 2^-20.
            off = number + 1.01 + (begin + 300) * 2.0**-19
            assert abs(mine[-1] + 1 - fraction * (numbers[corpora == number][-1] + 1)) <= off


def test_the_first_sequences_of_three_corpora() -> None:
    corpora, places = Mixture([2, 1, 1]).places(np.arange(8, dtype=np.int64))
    assert corpora.tolist() == [2, 0, 1, 0, 2, 0, 1, 0]
    assert places.tolist() == [0, 0, 0, 1, 1, 2, 1, 3]


def test_one_corpus_has_all() -> None:
    numbers = np.array([5, 99_999_999_999, 6], np.int64)
    corpora, places = Mixture([0.3]).places(numbers)
    assert corpora.tolist() == [0, 0, 0] and np.array_equal(places, numbers)
