"""Rows for ids given as arrays: any shape, any integers, no bad id let through."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import DeviceError, InputError
from llmgpu.gpu import WEBGPU_DEFAULT_LIMITS, Device
from llmgpu.lm.embedding import check_ids, embedding_lookup
from tests.conftest import require_adapter


@pytest.fixture(params=["numpy", "full", "portable"])
def place(request: pytest.FixtureRequest) -> Device | None:
    """NumPy, the best adapter, and the same with WebGPU's default limits and no feature."""
    if request.param == "numpy":
        return None
    require_adapter()
    name = "device" if request.param == "full" else "portable_device"
    found: Device = request.getfixturevalue(name)
    return found


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
        (["7"], "whole numbers of up to 64 bits, not <U1"),
    ],
)
def test_bad_ids_are_named(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_ids(ids, 100)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 0), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_lookup(place: Device | None, shape: tuple[int, ...], width: int, dtype: str) -> None:
    rng = np.random.default_rng(width)
    table = rng.standard_normal((11, width)).astype(dtype)
    ids = rng.integers(0, 11, shape)
    rows = embedding_lookup(table, ids, place)
    assert rows.dtype == np.float32
    assert rows.shape == (*shape, width)
    np.testing.assert_array_equal(rows, table[ids].astype(np.float32))


def test_a_table_beyond_one_binding() -> None:
    require_adapter()
    limits = {**WEBGPU_DEFAULT_LIMITS, "max-storage-buffer-binding-size": 4096}
    small = Device(features=frozenset(), limits=limits)
    table = np.arange(300 * 12, dtype=np.float32).reshape(300, 12)  # 14 400 bytes
    ids = np.array([[299, 0, 84], [85, 86, 170]])
    np.testing.assert_array_equal(embedding_lookup(table, ids, small), table[ids])
    with pytest.raises(DeviceError, match=r"table needs 4608 bytes, .* binds at most 4096"):
        embedding_lookup(np.zeros((2, 1100), np.float32), [0], small)


def test_ids_and_tables_are_checked() -> None:
    with pytest.raises(InputError, match=r"-1 at \(0,\)"):
        embedding_lookup(np.zeros((2, 3), np.float32), [-1])
    with pytest.raises(InputError, match="not float64 of 2"):
        embedding_lookup(np.zeros((2, 3)), [0])
    with pytest.raises(InputError, match="not float32 of 1"):
        embedding_lookup(np.zeros(3, np.float32), [0])
