"""Matrix products against float64: all forms, sizes that divide tiles and sizes that don't."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from tests.lm.ops.checking import (
    HALF_WEIGHTS_TOLERANCE,
    assert_close,
    float32_values,
    poisoned,
    run,
    tensor_of,
)
from tests.reference.lm import linear as reference

# (N, I, O): rows, width of the input, width of the output.
SIZES = [
    (1, 1, 1),
    (1, 37, 5),
    (9, 1, 3),
    (9, 37, 1),
    (33, 20, 35),
    (33, 22, 36),
    (64, 64, 64),
    (130, 36, 132),
    (32, 300, 40),
    (520, 24, 28),
]


def weights(rng: np.random.Generator, half: bool, *shape: int) -> NDArray[Any]:
    values = float32_values(rng, *shape)
    return values.astype(np.float16) if half else values


def tolerance(half: bool) -> dict[str, float]:
    return {"tolerance": HALF_WEIGHTS_TOLERANCE} if half else {}


def require_half_precision(operations: Operations, half: bool) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("the device has no half precision")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("add", ["nothing", "residual", "to itself"])
@pytest.mark.parametrize("sizes", SIZES)
def test_linear(operations: Operations, sizes: tuple[int, int, int], add: str, half: bool) -> None:
    require_half_precision(operations, half)
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    x, weight, residual = (
        float32_values(rng, n, i),
        weights(rng, half, o, i),
        float32_values(rng, n, o),
    )
    tensors = [tensor_of(operations, "input", array) for array in (x, weight, residual)]
    out = tensors[2] if add == "to itself" else poisoned(operations, "out", (n, o))
    extra = () if add == "nothing" else (tensors[2],)
    run(operations, lambda: operations.linear(tensors[0], tensors[1], out, *extra))
    expected = reference.linear(x, weight.astype(np.float64))
    assert_close(operations.read(out), expected + residual * (add != "nothing"), **tolerance(half))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_linear_backward_input(
    operations: Operations, sizes: tuple[int, int, int], accumulate: bool, half: bool
) -> None:
    require_half_precision(operations, half)
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    grad_out, weight, before = (
        float32_values(rng, n, o),
        weights(rng, half, o, i),
        float32_values(rng, n, i),
    )
    tensors = [tensor_of(operations, "input", array) for array in (grad_out, weight)]
    grad_x = (
        tensor_of(operations, "grad_x", before)
        if accumulate
        else poisoned(operations, "grad_x", (n, i))
    )
    run(
        operations,
        lambda: operations.linear_backward_input(*tensors, grad_x, accumulate=accumulate),
    )
    expected = reference.backward_input(grad_out, weight.astype(np.float64))
    assert_close(operations.read(grad_x), expected + before * accumulate, **tolerance(half))


@pytest.mark.parametrize("sizes", SIZES)
def test_linear_backward_weight(operations: Operations, sizes: tuple[int, int, int]) -> None:
    n, i, o = sizes
    rng = np.random.default_rng(n + i + o)
    grad_out, x, before = (
        float32_values(rng, n, o),
        float32_values(rng, n, i),
        float32_values(rng, o, i),
    )
    tensors = [tensor_of(operations, "input", array) for array in (grad_out, x, before)]
    run(operations, lambda: operations.linear_backward_weight(*tensors))
    assert_close(operations.read(tensors[2]), reference.backward_weight(grad_out, x) + before)
