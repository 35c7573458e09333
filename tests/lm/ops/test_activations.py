"""SwiGLU and GeLU against float64, on odd sizes and extreme values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.config import ACTIVATIONS, UNGATED
from llmgpu.lm.ops.activations import BY_NAME, GELU, SWIGLU
from llmgpu.lm.ops.operations import Operations
from tests.lm.ops.checking import (
    assert_close,
    assert_rounded,
    float32_values,
    poisoned,
    poisoned_halves,
    run,
    tensor_of,
)
from tests.reference.lm import activation as reference

SHAPES = [(1, 1), (3, 7), (64, 256), (5, 1031)]
EXTREMES = np.array([[0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 80.0, -80.0]])


def inputs(shape: tuple[int, int]) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(sum(shape))
    return [float32_values(rng, *shape) for _ in range(3)]


def test_every_activation_of_models_is_there() -> None:
    assert BY_NAME.keys() == set(ACTIVATIONS)
    assert {name for name, each in BY_NAME.items() if not each.is_gated} == set(UNGATED)


@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu(operations: Operations, shape: tuple[int, int]) -> None:
    check_swiglu(operations, *inputs(shape)[:2])


def test_swiglu_of_extreme_values(operations: Operations) -> None:
    check_swiglu(operations, EXTREMES, EXTREMES[:, ::-1].copy())


def check_swiglu(
    operations: Operations, gate: NDArray[np.float64], up: NDArray[np.float64]
) -> None:
    tensors = [tensor_of(operations, "input", array) for array in (gate, up)]
    out = poisoned(operations, "out", gate.shape)
    run(operations, lambda: operations.activate(SWIGLU, tensors, out))
    assert_close(operations.read(out), reference.swiglu(gate, up))


@pytest.mark.parametrize("shape", SHAPES)
def test_swiglu_backward(operations: Operations, shape: tuple[int, int]) -> None:
    arrays = inputs(shape)
    tensors = [tensor_of(operations, "input", array) for array in arrays]
    outs = [poisoned(operations, "out", shape) for _ in range(2)]
    run(operations, lambda: operations.activate_backward(SWIGLU, tensors[:2], tensors[2], outs))
    for out, expected in zip(outs, reference.swiglu_backward(*arrays), strict=True):
        assert_close(operations.read(out), expected)


@pytest.mark.parametrize("x", [inputs(shape)[0] for shape in SHAPES] + [EXTREMES])
def test_gelu(operations: Operations, x: NDArray[np.float64]) -> None:
    out = poisoned(operations, "out", x.shape)
    tensor = tensor_of(operations, "x", x)
    run(operations, lambda: operations.activate(GELU, [tensor], out))
    assert_close(operations.read(out), reference.gelu(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_backward(operations: Operations, shape: tuple[int, int]) -> None:
    arrays = inputs(shape)[:2]
    tensors = [tensor_of(operations, "input", array) for array in arrays]
    out = poisoned(operations, "out", shape)
    run(operations, lambda: operations.activate_backward(GELU, tensors[:1], tensors[1], [out]))
    assert_close(operations.read(out), reference.gelu_backward(*arrays))


@pytest.mark.parametrize("shape", [(3, 7), (5, 36)])  # the second one of whole vectors
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@np.errstate(all="ignore")
def test_half_precision(
    operations: Operations, shape: tuple[int, int], kind: type[np.floating[Any]]
) -> None:
    arrays = [array.astype(np.float16) for array in inputs(shape)]
    arrays[0][0, 0], arrays[1][0, 0] = 300, 300  # their product is beyond half precision
    outs = [poisoned_halves(operations, "out", shape) for _ in range(5)]
    tensors = [tensor_of(operations, "input", array.astype(kind)) for array in arrays]
    x = tensors[2]

    def record() -> None:
        operations.activate(SWIGLU, tensors[:2], outs[0])
        operations.activate_backward(SWIGLU, tensors[:2], x, outs[1:3])
        operations.activate(GELU, [x], outs[3])
        operations.activate_backward(GELU, tensors[:1], x, outs[4:])

    run(operations, record)
    gate, up, grad_out = (array.astype(np.float64) for array in arrays)
    expected = [
        reference.swiglu(gate, up),
        *reference.swiglu_backward(gate, up, grad_out),
        reference.gelu(grad_out),
        reference.gelu_backward(gate, grad_out),
    ]
    for out, values in zip(outs, expected, strict=True):
        assert_rounded(operations.read(out), values)
    assert np.isinf(operations.read(outs[0])[0, 0])


@pytest.mark.parametrize("shape", [(1, 4), (5, 36), (7, 200)])
@pytest.mark.parametrize("between", [0, 4])
@np.errstate(all="ignore")
def test_gate_and_up_side_by_side(
    operations: Operations, shape: tuple[int, int], between: int
) -> None:
    rows, width = shape
    arrays = [array.astype(np.float16) for array in inputs(shape)]
    arrays[0][0, 0], arrays[1][0, 0] = 300, 300
    gap = np.full((rows, between), np.nan, np.float16)
    x = tensor_of(operations, "x", np.concatenate([arrays[0], gap, arrays[1]], axis=1))
    grad_out = tensor_of(operations, "gradient", arrays[2])
    out = poisoned_halves(operations, "out", shape)
    grad_x = poisoned_halves(operations, "gradient", x.shape)
    again = poisoned_halves(operations, "out", shape)
    grad_again = poisoned_halves(operations, "gradient", x.shape)

    def record() -> None:
        operations.activate(SWIGLU, [x], out)
        operations.activate_backward(SWIGLU, [x], grad_out, [grad_x])
        operations.activate_and_backward(SWIGLU, [x], again, grad_out, [grad_again])

    run(operations, record)
    np.testing.assert_array_equal(operations.read(again), operations.read(out))
    read = [operations.read(each) for each in (grad_again, grad_x)]
    for columns in (slice(width), slice(-width, None)):
        np.testing.assert_array_equal(*(each[:, columns] for each in read))
    exact = [array.astype(np.float64) for array in arrays]
    assert_rounded(operations.read(out), reference.swiglu(*exact[:2]))
    found = operations.read(grad_x)
    assert np.isnan(found[:, width : width + between]).all()
    for part, expected in zip(
        (found[:, :width], found[:, width + between :]),
        reference.swiglu_backward(*exact),
        strict=True,
    ):
        assert_rounded(part, expected)
