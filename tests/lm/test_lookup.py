"""Rows of a table for ids of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import LlmgpuError
from llmgpu.gpu.device import Device
from llmgpu.lm import lookup
from llmgpu.lm.lookup import look_up
from llmgpu.lm.ops.operations import GpuOperations

TABLE = np.random.default_rng(0).standard_normal((40, 12)).astype(np.float32)
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (7,), (3, 5), (2, 0, 4), (2, 3, 4), (2, 1, 3, 2)]


@pytest.fixture(params=["NumPy", "GPU"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    chosen = NUMPY
    if request.param == "GPU":
        device = request.getfixturevalue("device")
        chosen = Backend(device, device.name)
    monkeypatch.setattr(lookup, "select_backend", lambda wanted: chosen)
    return chosen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint8])
def test_rows_have_the_shape_of_ids(backend: Backend, shape: tuple[int, ...], dtype: Any) -> None:
    ids = np.random.default_rng(1).integers(0, len(TABLE), shape).astype(dtype)
    found = look_up(TABLE, ids)
    assert found.dtype == np.float32 and found.shape == (*shape, 12)
    np.testing.assert_array_equal(found, TABLE[ids])


def test_ids_beyond_the_table_give_zeros(backend: Backend) -> None:
    found = look_up(TABLE, [[0, 40], [0xFFFFFFFF, 39]])
    np.testing.assert_array_equal(
        found, np.stack([[TABLE[0], 0 * TABLE[0]], [0 * TABLE[0], TABLE[39]]])
    )
    assert look_up(np.zeros((0, 3)), [[1]]).tolist() == [[[0, 0, 0]]]


@pytest.mark.parametrize("width", [12, 5])
def test_half_precision_and_double_tables(backend: Backend, width: int) -> None:
    table, ids = TABLE[:, :width], [[3, 1, 3]]
    half = table.astype(np.float16)
    np.testing.assert_array_equal(look_up(half, ids), half[np.array(ids)].astype(np.float32))
    np.testing.assert_array_equal(look_up(table.astype(np.float64), ids), table[np.array(ids)])


def test_large_tables_and_rows_come_in_parts(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def open_small(_: object) -> GpuOperations:
        operations = GpuOperations(device)
        operations.max_tensor_bytes = 5 * TABLE[:1].nbytes
        tensor = operations.tensor
        monkeypatch.setattr(
            operations, "tensor", lambda *given: made.append(tensor(*given)) or made[-1]
        )
        return operations

    monkeypatch.setattr(lookup, "open_operations", open_small)
    ids = np.random.default_rng(2).integers(0, 45, (4, 3))
    expected = np.where(ids[..., None] < 40, TABLE[np.minimum(ids, 39)], 0)
    np.testing.assert_array_equal(look_up(TABLE, ids, device="cpu"), expected)
    assert [t.name for t in made] == ["table"] * 8 + ["ids", "rows"] * 3
    assert max(t.nbytes for t in made) <= 5 * TABLE[:1].nbytes


@pytest.mark.parametrize(
    ("table", "ids", "said"),
    [
        (np.zeros(3), [0], r"the shape \(rows, columns\), not \(3,\)"),
        (TABLE, [0.5], "ids are integers, not float64"),
        (TABLE, [[-1, 4]], "ids are from -1 to 4, but must be from 0 to 4294967295"),
        (TABLE, [1 << 32], "from 4294967296 to 4294967296"),
    ],
)
def test_what_is_no_table_or_no_id_is_an_error(table: Any, ids: Any, said: str) -> None:
    with pytest.raises(LlmgpuError, match=said):
        look_up(table, ids, device="cpu")
