"""Matrix products against float64: all forms, sizes that divide tiles and sizes that don't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.device import Device
from llmgpu.lm.ops import linear
from llmgpu.lm.ops.matrix_tiling import SOFTWARE_TILES, TILES, Tile
from llmgpu.lm.ops.operations import Operations, open_operations
from tests.lm.ops.checking import (
    FLOAT32_TOLERANCE,
    HALF_WEIGHTS_TOLERANCE,
    assert_close,
    float32_values,
    poisoned,
    poisoned_halves,
    run,
    tensor_of,
)
from tests.reference.lm import linear as reference

Sizes = tuple[int, int, int]  # N rows, I width of the input, O width of the output
SIZES = [
    (1, 1, 1),
    (1, 37, 5),  # one row
    (9, 1, 3),  # inner dimension 1
    (9, 37, 1),  # one column
    (33, 22, 36),
    (64, 64, 64),
    (32, 300, 40),
    (520, 24, 28),  # many rows: sums of the weights' gradient in parts
]
WHOLE_STEPS, ODD = (66, 128, 48), (67, 37, 131)
HALF_SIZES = [(1, 37, 5), (33, 22, 36), (64, 64, 64)]
CASES = [(sizes, False) for sizes in SIZES] + [(sizes, True) for sizes in HALF_SIZES]


def weights(rng: np.random.Generator, half: bool, *shape: int) -> NDArray[Any]:
    values = float32_values(rng, *shape)
    return values.astype(np.float16) if half else values


def tolerance(half: bool) -> float:
    return HALF_WEIGHTS_TOLERANCE if half else FLOAT32_TOLERANCE


def require_half_precision(operations: Operations, half: bool) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("the device has no half precision")


def check_linear(operations: Operations, sizes: Sizes, add: str, half: bool = False) -> None:
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    x, weight = float32_values(rng, n, i), weights(rng, half, o, i)
    residual = float32_values(rng, n, o)
    tensors = [tensor_of(operations, "input", array) for array in (x, weight, residual)]
    out = tensors[2] if add == "to itself" else poisoned(operations, "out", (n, o))
    added = None if add == "nothing" else tensors[2]
    run(operations, lambda: operations.linear(tensors[0], tensors[1], out, added))
    expected = reference.linear(x, weight.astype(np.float64)) + residual * (added is not None)
    assert_close(operations.read(out), expected, tolerance(half))


def check_backward_input(
    operations: Operations, sizes: Sizes, accumulate: bool, half: bool = False
) -> None:
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    grad_out, weight = float32_values(rng, n, o), weights(rng, half, o, i)
    before = float32_values(rng, n, i) if accumulate else np.full((n, i), np.nan)
    tensors = [tensor_of(operations, "input", array) for array in (grad_out, weight, before)]
    run(
        operations,
        lambda: operations.linear_backward_input(*tensors, accumulate=accumulate),
    )
    expected = reference.backward_input(grad_out, weight.astype(np.float64))
    expected += before if accumulate else 0
    assert_close(operations.read(tensors[2]), expected, tolerance(half))


def check_backward_weight(operations: Operations, sizes: Sizes, *, accumulate: bool) -> None:
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    arrays = [float32_values(rng, *shape) for shape in ((n, o), (n, i), (o, i))]
    before = arrays[2] if accumulate else np.full((o, i), np.nan)
    tensors = [tensor_of(operations, "input", array) for array in (*arrays[:2], before)]
    run(operations, lambda: operations.linear_backward_weight(*tensors, accumulate=accumulate))
    expected = reference.backward_weight(*arrays[:2]) + (before if accumulate else 0)
    assert_close(operations.read(tensors[2]), expected)


@pytest.mark.parametrize("add", ["nothing", "residual", "to itself"])
@pytest.mark.parametrize(("sizes", "half"), CASES)
def test_linear(operations: Operations, sizes: Sizes, add: str, half: bool) -> None:
    require_half_precision(operations, half)
    check_linear(operations, sizes, add, half)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("sizes", "half"), CASES)
def test_linear_backward_input(
    operations: Operations, sizes: Sizes, accumulate: bool, half: bool
) -> None:
    require_half_precision(operations, half)
    check_backward_input(operations, sizes, accumulate, half)


@pytest.mark.parametrize("sizes", SIZES)
@np.errstate(under="ignore")
def test_products_in_half_precision(operations: Operations, sizes: Sizes) -> None:
    n, o, i = sizes
    rng = np.random.default_rng(4)
    arrays = [weights(rng, True, *shape) for shape in ((n, i), (o, i), (n, o))]
    out = poisoned_halves(operations, "out", (n, o))
    grad_x = poisoned_halves(operations, "grad_x", (n, i))
    x, weight, grad_out = (tensor_of(operations, "input", array) for array in arrays)

    def record() -> None:
        operations.linear(x, weight, out)
        operations.linear_backward_input(grad_out, weight, grad_x, accumulate=False)

    run(operations, record)
    exact = [array.astype(np.float64) for array in arrays]
    expected = reference.linear(*exact[:2]), reference.backward_input(exact[2], exact[1])
    for tensor, values in zip((out, grad_x), expected, strict=True):
        assert_close(operations.read(tensor), values, HALF_WEIGHTS_TOLERANCE)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_linear_backward_weight(operations: Operations, sizes: Sizes, accumulate: bool) -> None:
    check_backward_weight(operations, sizes, accumulate=accumulate)


@pytest.mark.parametrize("tile", sorted({*TILES, *SOFTWARE_TILES}, key=repr))
@pytest.mark.parametrize("sizes", [WHOLE_STEPS, ODD])
def test_every_tile(
    device: Device, monkeypatch: pytest.MonkeyPatch, tile: Tile, sizes: Sizes
) -> None:
    use(monkeypatch, tile)
    operations = open_operations(device)
    check_linear(operations, sizes, "nothing")
    check_backward_input(operations, sizes, accumulate=True)
    check_backward_weight(operations, sizes, accumulate=True)


@pytest.mark.parametrize("tile", TILES)
def test_tiles_keep_to_webgpu_s_default_limits(
    portable_device: Device, monkeypatch: pytest.MonkeyPatch, tile: Tile
) -> None:
    use(monkeypatch, tile)
    check_linear(open_operations(portable_device), ODD, "residual")


def use(monkeypatch: pytest.MonkeyPatch, tile: Tile) -> None:
    """Have all products computed with this tile, on any device."""
    monkeypatch.setattr(linear, "TILES", (tile,))
    monkeypatch.setattr(linear, "SOFTWARE_TILES", (tile,))


def test_parts_of_the_inner_dimension(operations: Operations) -> None:
    sizes = (16, 10, 4003)  # both gradients have long sums and few elements
    check_linear(operations, (16, 4003, 10), "residual")
    check_backward_input(operations, sizes, accumulate=True)
    check_backward_input(operations, sizes, accumulate=False)
    check_linear(operations, (15, 4003, 5), "residual")  # 75 sums are no whole vectors
    for accumulate in (False, True):
        check_backward_weight(operations, (4003, 10, 16), accumulate=accumulate)
        check_backward_weight(operations, (4003, 5, 7), accumulate=accumulate)


@pytest.mark.slow
def test_more_workgroups_than_a_dimension_of_a_dispatch_has(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Tile(16, 32, 8, 4, 4))
    operations = open_operations(device)
    check_linear(operations, (1, 1, 66_000), "residual")
    check_backward_input(operations, (16 * 65_536 + 5, 1, 1), accumulate=False)


def test_results_repeat_bit_for_bit(operations: Operations) -> None:
    rng = np.random.default_rng(0)
    grad_out, x = float32_values(rng, 3000, 24), float32_values(rng, 3000, 40)
    tensors = [tensor_of(operations, "input", array) for array in (grad_out, x)]
    grads = [tensor_of(operations, "grad", np.zeros((24, 40))) for _ in range(2)]
    for grad in grads:
        run(
            operations,
            lambda grad=grad: operations.linear_backward_weight(*tensors, grad, accumulate=True),
        )
    first, second = (operations.read(grad) for grad in grads)
    assert first.tobytes() == second.tobytes()


@np.errstate(under="ignore")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("sizes", [(16, 8, 12), (40, 64, 48), (9, 5, 7)])
def test_products_of_stacks(
    operations: Operations, sizes: Sizes, transposed: tuple[bool, bool], stack: int, half: bool
) -> None:
    require_half_precision(operations, half)
    n, i, o = sizes
    rng = np.random.default_rng(n)
    left, right = weights(rng, half, stack, n, i), weights(rng, half, stack, i, o)
    stored = [
        each.transpose(0, 2, 1) if turned else each
        for each, turned in zip((left, right), transposed, strict=True)
    ]
    factors = [tensor_of(operations, "factor", np.ascontiguousarray(each)) for each in stored]
    out = poisoned(operations, "product", (stack, n, o))
    turns = dict(zip(("left_transposed", "right_transposed"), transposed, strict=True))
    run(operations, lambda: operations.multiply(*factors, out, **turns))
    expected = left.astype(np.float64) @ right.astype(np.float64)
    assert_close(operations.read(out), expected)
