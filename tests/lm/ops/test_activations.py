"""Activations against float64, on odd sizes and extreme values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.config import ACTIVATIONS, UNGATED
from llmgpu.lm.ops.activations import BY_NAME, SWIGLU, ActivationTensors
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


def count_of_inner(name: str) -> int:
    return 2 if BY_NAME[name].is_gated else 1


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(operations: Operations, shape: tuple[int, int], name: str) -> None:
    check_forward(operations, name, *inputs(shape))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_forward_of_extreme_values(operations: Operations, name: str) -> None:
    check_forward(operations, name, EXTREMES, EXTREMES[:, ::-1].copy())


def check_forward(operations: Operations, name: str, *arrays: NDArray[np.float64]) -> None:
    inner = arrays[: count_of_inner(name)]
    tensors = [tensor_of(operations, "input", array) for array in inner]
    out = poisoned(operations, "out", inner[0].shape)
    activation = ActivationTensors(BY_NAME[name], tensors, out)
    run(operations, lambda: operations.activate(activation))
    assert_close(operations.read(out), reference.forward(name, *inner))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(operations: Operations, shape: tuple[int, int], name: str) -> None:
    arrays = inputs(shape)[: count_of_inner(name) + 1]
    *inner, grad_out = [tensor_of(operations, "input", array) for array in arrays]
    activated, *outs = [poisoned(operations, "out", shape) for _ in range(1 + len(inner))]
    activation = ActivationTensors(BY_NAME[name], inner, activated)
    run(operations, lambda: operations.activate_backward(activation, grad_out, outs))
    for out, expected in zip(outs, reference.backward(name, *arrays), strict=True):
        assert_close(operations.read(out), expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(3, 7), (5, 36)])  # the second one of whole vectors
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@np.errstate(all="ignore")
def test_half_precision(
    operations: Operations, shape: tuple[int, int], kind: type[np.floating[Any]], name: str
) -> None:
    arrays = [array.astype(np.float16) for array in inputs(shape)[: count_of_inner(name) + 1]]
    arrays[0][0, 0], arrays[1][0, 0] = 300, 300  # their product is beyond half precision
    *inner, grad_out = [tensor_of(operations, "input", array.astype(kind)) for array in arrays]
    outs = [poisoned_halves(operations, "out", shape) for _ in arrays]
    activation = ActivationTensors(BY_NAME[name], inner, outs[0])

    def record() -> None:
        operations.activate(activation)
        operations.activate_backward(activation, grad_out, outs[1:])

    run(operations, record)
    exact = [array.astype(np.float64) for array in arrays]
    expected = [reference.forward(name, *exact[:-1]), *reference.backward(name, *exact)]
    for out, values in zip(outs, expected, strict=True):
        assert_rounded(operations.read(out), values)
    assert np.isinf(operations.read(outs[0])[0, 0]) == BY_NAME[name].is_gated


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
    first, second = (ActivationTensors(SWIGLU, [x], each) for each in (out, again))

    def record() -> None:
        operations.activate(first)
        operations.activate_backward(first, grad_out, [grad_x])
        operations.activate_and_backward(second, grad_out, [grad_again])

    run(operations, record)
    np.testing.assert_array_equal(operations.read(again), operations.read(out))
    read = [operations.read(each) for each in (grad_again, grad_x)]
    for columns in (slice(width), slice(-width, None)):
        np.testing.assert_array_equal(*(each[:, columns] for each in read))
    exact = [array.astype(np.float64) for array in arrays]
    assert_rounded(operations.read(out), reference.forward("swiglu", *exact[:2]))
    found = operations.read(grad_x)
    assert np.isnan(found[:, width : width + between]).all()
    for part, expected in zip(
        (found[:, :width], found[:, width + between :]),
        reference.backward("swiglu", *exact),
        strict=True,
    ):
        assert_rounded(part, expected)
