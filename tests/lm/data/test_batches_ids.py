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
    check_ids(np.array([[0, 99], [5, 7]], dtype), 100, "prompt")


@pytest.mark.parametrize("ids", [[], np.zeros((2, 0, 3), np.int64)])
def test_no_ids(ids: Any) -> None:
    check_ids(ids, 0, "prompt")


def test_a_single_id() -> None:
    check_ids(3, 4, "prompt")
    with pytest.raises(
        InputError, match=re.escape("id 4 at () is not in the vocabulary of 4 tokens")
    ):
        check_ids(np.int16(4), 4, "prompt")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            np.array([1, 100, 2, 101]),
            "id 100 at (1,) is not in the vocabulary of 100 tokens",
        ),
        (
            np.array([[0, 1], [-1, 2]], np.int8),
            "id -1 at (1, 0) is not in the vocabulary of 100 tokens",
        ),
        (np.array([2**32 + 5, 5]), "4294967301 at (0,)"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 at (0,)"),
        (
            np.full((2, 2, 2), -7),
            "id -7 at (0, 0, 0) is not in the vocabulary of 100 tokens",
        ),
        (np.where(np.arange(8).reshape(2, 2, 2) < 4, 7, -7), "-7 at (1, 0, 0)"),
        (np.array([1.0]), "prompt: ids of type float64 are not whole numbers"),
        (np.array([True]), "prompt: ids of type bool are not whole numbers"),
        ([2**70], "prompt: ids of type object are not whole numbers"),
        (["7"], "prompt: ids of type str32 are not whole numbers"),
    ],
)
def test_bad_ids_are_named(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_ids(ids, 100, "prompt")
