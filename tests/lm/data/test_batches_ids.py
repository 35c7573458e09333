"""Rows for ids given as arrays: any shape, any integers, no bad id let through."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import InputError
from llmgpu.lm.data.batches import check_ids


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i4", "u4", "i8", "u8"])
def test_integers_of_any_type_are_ids(dtype: str) -> None:
    ids = np.array([[0, 99], [5, 7]], dtype)
    checked = check_ids(ids, 100)
    assert checked.dtype == np.uint32
    np.testing.assert_array_equal(checked, ids)


@pytest.mark.parametrize("ids", [[], np.zeros((2, 0, 3), np.int64)])
def test_no_ids(ids: Any) -> None:
    checked = check_ids(ids, 0)
    assert checked.dtype == np.uint32
    assert checked.shape == np.shape(ids)


def test_a_single_id() -> None:
    assert check_ids(3, 4).shape == ()
    with pytest.raises(
        InputError, match=re.escape("1 id is not in the vocabulary of 4 tokens: 4 a")
    ):
        check_ids(np.int16(4), 4)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            np.array([1, 100, 2, 101]),
            "2 ids are not in the vocabulary of 100 tokens: 100 at (",
        ),
        (
            np.array([[0, 1], [-1, 2]], np.int8),
            "1 id is not in the vocabulary of 100 tokens: -1",
        ),
        (np.array([2**32 + 5, 5]), "4294967301 at (0,)"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 at (0,)"),
        (
            np.full((2, 2, 2), -7),
            "8 ids are not in the vocabulary of 100 tokens: -7 at (0",
        ),
        (np.full((2, 2, 2), -7), "-7 at (1, 0, 0), ..."),
        (np.array([1.0]), "whole numbers of up to 64 bits, not float64"),
        (np.array([True]), "whole numbers of up to 64 bits, not bool"),
        ([2**70], "whole numbers of up to 64 bits, not object"),
        (["7"], "whole numbers of up to 64 bits, not str32"),
    ],
)
def test_bad_ids_are_named(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_ids(ids, 100)
