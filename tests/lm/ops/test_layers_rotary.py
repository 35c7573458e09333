"""Rotary position embedding against complex numbers in float64."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import AttentionTensors, Rotation
from tests.lm.ops.checking import (
    assert_close,
    assert_rounded,
    float32_values,
    poisoned_halves,
    run,
    tensor_of,
)
from tests.reference.lm import rotary as reference

THETA = 10_000.0


def tables_of(positions: int, head_dim: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    return rotary_tables(positions, rotary_frequencies(head_dim, theta))


@pytest.mark.parametrize(
    ("rows", "heads", "head_dim"), [(1, 1, 2), (3, 1, 6), (7, 3, 8), (33, 2, 64), (5, 1, 128)]
)
@pytest.mark.parametrize("inverse", [False, True])
def test_rotary(
    operations: Operations, rows: int, heads: int, head_dim: int, inverse: bool
) -> None:
    rng = np.random.default_rng(rows)
    x = float32_values(rng, rows, heads * head_dim)
    positions = rng.integers(0, 100, rows).astype(np.uint32)
    positions[-1] = 99
    tables = [
        tensor_of(operations, "table", a)
        for a in rotary_tables(100, rotary_frequencies(head_dim, THETA))
    ]
    tensor = tensor_of(operations, "x", x)
    at = tensor_of(operations, "positions", positions)
    rotation = Rotation(*tables, at, head_dim)
    run(operations, lambda: operations.rotary(tensor, rotation, inverse=inverse))
    expected = reference.rotary(x, positions, head_dim, THETA, inverse=inverse)
    assert_close(operations.read(tensor), expected)


@pytest.mark.parametrize("inverse", [False, True])
def test_rotary_into_half_precision(operations: Operations, inverse: bool) -> None:
    rng = np.random.default_rng(0)
    x = float32_values(rng, 33, 3 * 24)
    positions = rng.integers(0, 100, 33).astype(np.uint32)
    tables = [
        tensor_of(operations, "table", a) for a in rotary_tables(100, rotary_frequencies(24, THETA))
    ]
    tensor, at = tensor_of(operations, "x", x), tensor_of(operations, "positions", positions)
    out = poisoned_halves(operations, "out", x.shape)
    rotation = Rotation(*tables, at, 24)
    run(operations, lambda: operations.rotary(tensor, rotation, out, inverse=inverse))
    expected = reference.rotary(x, positions, 24, THETA, inverse=inverse)
    found = operations.read(out).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1.01e-3, atol=1e-6)
    np.testing.assert_array_equal(operations.read(tensor), x)


SIDE_BY_SIDE = [
    (24, (0, 96, 144)),
    (24, (0, 128, 192)),
    (16, (0, 64, 96)),  # a thread takes eight pairs
    (16, (0, 72, 120)),
    (16, (0, 68, 100)),  # but not where parts start at other columns
]


@pytest.mark.parametrize(("head_dim", "starts"), SIDE_BY_SIDE, ids=str)
@np.errstate(under="ignore")
def test_heads_side_by_side(operations: Operations, head_dim: int, starts: tuple[int, ...]) -> None:
    """Four heads of queries, two of keys and of values; columns between them, too."""
    rng = np.random.default_rng(0)
    widths, rows = (4 * head_dim, 2 * head_dim, 2 * head_dim), 33
    positions = rng.integers(0, 100, rows).astype(np.uint32)
    tables = [
        tensor_of(operations, "table", a)
        for a in rotary_tables(100, rotary_frequencies(head_dim, THETA))
    ]
    rotation = Rotation(*tables, tensor_of(operations, "positions", positions), head_dim)
    shape = (rows, starts[2] + widths[2])
    x = rng.standard_normal(shape).astype(np.float16)
    packed = tensor_of(operations, "x", x)
    outs = [poisoned_halves(operations, "out", (rows, width)) for width in widths]
    heads = AttentionTensors(*outs, outs[0], outs[0])
    run(operations, lambda: operations.split_heads(packed, starts, rotation, heads))
    for k, (start, width) in enumerate(zip(starts, widths, strict=True)):
        turned = x[:, start : start + width].astype(np.float64)
        if k < 2:
            turned = reference.rotary(turned, positions, head_dim, THETA)
        assert_rounded(operations.read(outs[k]), turned)


def test_turning_back_gives_the_input(operations: Operations) -> None:
    x = float32_values(np.random.default_rng(0), 9, 32)
    tables = [
        tensor_of(operations, "table", a)
        for a in rotary_tables(9, rotary_frequencies(16, 500_000.0))
    ]
    tensor = tensor_of(operations, "x", x)
    at = tensor_of(operations, "positions", np.arange(9, dtype=np.uint32))

    rotation = Rotation(*tables, at, 16)

    def there_and_back() -> None:
        operations.rotary(tensor, rotation)
        operations.rotary(tensor, rotation, inverse=True)

    run(operations, there_and_back)
    assert_close(operations.read(tensor), x)


def test_tables() -> None:
    cosines, sines = tables_of(4096, 64, THETA)
    assert cosines.shape == sines.shape == (4096, 32)
    assert cosines.dtype == sines.dtype == np.float32
    # Angles of thousands of radians keep their digits.
    assert cosines[4095, 0] == np.float32(np.cos(4095.0))
    assert sines[4095, 1] == np.float32(np.sin(4095 * THETA ** (-1 / 32)))
    np.testing.assert_allclose(cosines**2 + sines**2, 1, rtol=3e-7)


def test_the_dot_product_of_turned_rows_depends_on_their_distance() -> None:
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 8))
    products = []
    for first in (0, 5, 1000):
        turned = [
            reference.rotary(x, np.array([position], np.uint32), 8, THETA)
            for x, position in ((q, first + 3), (k, first))
        ]
        products.append((turned[0] @ turned[1].T).item())
    np.testing.assert_allclose(products, products[0])
