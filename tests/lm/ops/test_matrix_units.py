"""The choice of matrix units, for the lists of shapes that devices of several vendors report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmgpu.gpu.adapters import WEBGPU_DEFAULT_LIMITS
from llmgpu.gpu.driver import MatrixShape
from llmgpu.lm.ops import linear
from llmgpu.lm.ops.matrix_units import MATRIX_TILES, WIDE_TILE, attention_units, matrix_units
from llmgpu.lm.ops.tensor import Tensor

NVIDIA = [(16, 8, 8), (16, 8, 16), (16, 16, 16)]


def described(shapes: list[tuple[int, int, int]], lanes: int, **limits: int) -> Any:
    """Return a stand-in for a device with these matrix shapes, lanes and limits."""
    names = {"invocations": "max-compute-invocations-per-workgroup"}
    names |= {"memory": "max-compute-workgroup-storage-size"}
    given = {names[name]: value for name, value in limits.items()}
    return SimpleNamespace(
        matrix_shapes=tuple(
            MatrixShape(*kinds, *shape)
            for kinds in (("f16", "f32"), ("f16", "f16"), ("i8", "i32"))
            for shape in (*shapes, *([(32, 32, 32)] if kinds[0] == "i8" else []))
        ),
        subgroup_size=lanes,
        limits={**WEBGPU_DEFAULT_LIMITS, names["memory"]: 49_152, **given},
    )


@pytest.mark.parametrize(
    ("shapes", "lanes", "unit"),
    [
        (NVIDIA, 32, (16, 16, 16)),
        ([(16, 16, 16)], 64, (16, 16, 16)),  # AMD
        ([(8, 16, 16), (8, 8, 16)], 16, (8, 16, 16)),  # Intel
        ([(8, 8, 8)], 32, (8, 8, 8)),  # Apple
    ],
)
def test_the_largest_product_is_taken(
    shapes: list[tuple[int, int, int]], lanes: int, unit: tuple[int, int, int]
) -> None:
    units = matrix_units(described(shapes, lanes))
    assert units is not None
    assert (units.unit, units.lanes) == (unit, lanes)
    assert set(units.tiles) <= set(MATRIX_TILES) and units.tiles[0].rows == 128


def test_a_product_that_no_tile_can_be_made_of_is_passed_over() -> None:
    units = matrix_units(described([(16, 8, 16), (24, 24, 24)], 32))
    assert units is not None and units.unit == (16, 8, 16)


def test_tiles_keep_to_the_limits_of_the_device() -> None:
    units = matrix_units(described(NVIDIA, 32, memory=16_384))
    assert units is not None
    assert all(tile.memory(units.unit) <= 16_384 for tile in units.tiles)
    assert len(units.tiles) < len(MATRIX_TILES) and not units.wide
    assert matrix_units(described(NVIDIA, 128, invocations=256)) is None


# Products of a step of preset gpt2: the output of the feed-forward network, and gradients of the
# weights and of the input of gate and up. The last is symmetric.
@pytest.mark.parametrize(
    ("sizes", "left_transposed", "right_transposed", "is_wide"),
    [
        ((8192, 768, 2048), False, True, True),
        ((4096, 768, 8192), True, False, True),
        ((8192, 768, 4096), False, False, False),
        ((768, 768, 768), False, True, False),
    ],
)
def test_products_of_two_factors_of_one_order_take_the_wide_tile(
    sizes: tuple[int, int, int], left_transposed: bool, right_transposed: bool, is_wide: bool
) -> None:
    units = matrix_units(described(NVIDIA, 32))
    assert units is not None and units.wide == (WIDE_TILE,)
    rows, columns, inner = sizes
    left, right, out = (
        Tensor("", shape, np.dtype("f2"), None)
        for shape in (
            (inner, rows) if left_transposed else (rows, inner),
            (columns, inner) if right_transposed else (inner, columns),
            (rows, columns),
        )
    )
    right = left if rows == columns else right
    product = linear.Product("product", left, right, out, left_transposed, right_transposed)
    recorder: Any = SimpleNamespace(
        device=SimpleNamespace(is_software=False, max_binding_bytes=1 << 31)
    )
    tile = linear.GpuProducts._tiling(recorder, product, units).tile
    assert (tile == WIDE_TILE) == is_wide
    assert tile in units.square_tiles or not product.is_symmetric


def test_without_units_or_ordered_subgroups_there_are_none() -> None:
    assert matrix_units(described([], 32)) is None
    assert matrix_units(described(NVIDIA, 0)) is None


@pytest.mark.parametrize(
    ("shapes", "lanes", "unit"),
    [(NVIDIA, 32, (16, 16, 16)), ([(8, 16, 16)], 16, (8, 16, 16)), ([(8, 8, 8)], 32, (8, 8, 8))],
)
def test_attention_takes_the_largest_product(
    shapes: list[tuple[int, int, int]], lanes: int, unit: tuple[int, int, int]
) -> None:
    device = described(shapes, lanes)
    for gradients in (False, True):
        made = attention_units(device, 64, gradients=gradients)
        assert made is not None and made.unit == unit
        assert made.memory(gradients=gradients) <= 49_152


def test_attention_without_fitting_heads_memory_or_units_is_none_of_the_units() -> None:
    assert attention_units(described(NVIDIA, 32), 20, gradients=False) is None
    assert attention_units(described(NVIDIA, 32, memory=16_384), 128, gradients=True) is None
    assert attention_units(described([], 32), 64, gradients=True) is None
