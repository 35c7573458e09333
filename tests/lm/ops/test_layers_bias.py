"""Biases and their gradients against float64."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.lm.ops.operations import Operations
from tests.lm.ops.checking import assert_close, float32_values, run, tensor_of

SHAPES = [(1, 1), (3, 7), (33, 64), (300, 257), (9001, 8), (0, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_add_bias(operations: Operations, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    x, bias = float32_values(rng, *shape), float32_values(rng, shape[1])
    tensors = [tensor_of(operations, "input", array) for array in (x, bias)]
    run(operations, lambda: operations.add_bias(*tensors))
    np.testing.assert_array_equal(operations.read(tensors[0]), (x + bias).astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_backward_adds(operations: Operations, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    gradient, before = float32_values(rng, *shape), float32_values(rng, shape[1])
    tensors = [tensor_of(operations, "input", array) for array in (gradient, before)]
    run(operations, lambda: operations.bias_backward(*tensors))
    expected = before.copy()
    for row in gradient:
        expected += row
    assert_close(operations.read(tensors[1])[None], expected[None])
