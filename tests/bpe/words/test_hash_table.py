"""The hash table against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.words import hash_table
from llmgpu.bpe.words.hash_table import HashTable

# Keys as they are made of two ids: they differ in few bits, at either end of each half.
KEY = st.one_of(
    st.builds(lambda left, right: left << 32 | right, st.integers(0, 300), st.integers(0, 300)),
    st.integers(0, (1 << 63) - 1),
)
NEGATIVE = [-1, -(1 << 32), -(1 << 32) | 5]


def assert_same(known: dict[int, int], sought: list[int]) -> None:
    keys = np.fromiter(known, np.int64, len(known))
    values = np.fromiter(known.values(), np.int32, len(known))
    table = HashTable(keys, values, default=-7)
    found = table.get(np.array(sought, np.int64))
    assert found.dtype == np.int32
    assert found.tolist() == [known.get(key, -7) for key in sought]


@settings(deadline=None)
@given(
    known=st.dictionaries(KEY, st.integers(-(1 << 31), (1 << 31) - 1), max_size=200),
    others=st.lists(KEY, max_size=50),
)
def test_values_are_those_of_a_dictionary(known: dict[int, int], others: list[int]) -> None:
    assert_same(known, [*known, *others, *NEGATIVE, *known])


def test_many_keys() -> None:
    known = {left << 32 | right: left ^ right for left in range(300) for right in range(300)}
    assert_same(known, [*known, *(key + 1000 for key in known), *NEGATIVE])


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_larger_table_where_keys_do_not_fit(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    monkeypatch.setattr(hash_table, "_MOST_ROUNDS", rounds)
    known = {key * 0x10001: key for key in range(20)}
    assert_same(known, [*known, 5, *NEGATIVE])
