"""Muon: orthogonal steps of matrices, on every backend against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.products import FixedProducts
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.optimizers.muon import MUON, Momentum, record_orthogonal
from llmgpu.lm.options import TrainOptions
from tests.lm.ops.adamw_steps import LEARNING_RATE, Steps, half_of, require_half_precision
from tests.lm.ops.checking import float32_values, run, tensor_of
from tests.reference.lm import optimizer as reference

OPTIONS = TrainOptions(weight_decay=0.3, optimizer="muon")
SHAPES = [(8, 8), (24, 7), (7, 24), (33, 65), (65, 33), (1, 12), (12, 1), (96, 64), (130, 70)]


def matrix(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Numbers of which some directions are larger than others by far."""
    return float32_values(rng, *shape) * np.geomspace(1, 0.1, shape[0])[:, None]


def orthogonal(operations: Operations, values: NDArray[Any], *, half: bool = False) -> NDArray[Any]:
    stack = values.reshape(-1, *values.shape[-2:])
    tensor = tensor_of(operations, "matrices", stack)
    made: list[Tensor] = []
    run(operations, lambda: made.append(record_orthogonal(operations, tensor, half=half)))
    return operations.read(made[0]).reshape(values.shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_become_orthogonal(operations: Operations, shape: tuple[int, int]) -> None:
    values = matrix(np.random.default_rng(shape[0]), *shape)
    found = orthogonal(operations, values)
    np.testing.assert_allclose(found, reference.orthogonal(values), atol=2e-4)
    singular = np.linalg.svd(found, compute_uv=False)
    assert 0.4 < singular.min() <= singular.max() < 1.3


@pytest.mark.parametrize("shape", SHAPES)
def test_products_may_round_their_factors(operations: Operations, shape: tuple[int, int]) -> None:
    require_half_precision(operations)
    values = matrix(np.random.default_rng(shape[0]), *shape)
    found = orthogonal(operations, values, half=True)
    np.testing.assert_allclose(found, reference.orthogonal(values), atol=1e-2)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shape", [(4, 16, 8), (3, 16, 24), (2, 96, 64), (5, 40, 40)])
def test_matrices_of_a_stack_become_orthogonal_each(
    operations: Operations, shape: tuple[int, int, int], half: bool
) -> None:
    if half:
        require_half_precision(operations)
    rng = np.random.default_rng(shape[1])
    values = np.stack([10.0**k * matrix(rng, *shape[1:]) for k in range(shape[0])])
    found = orthogonal(operations, values, half=half)
    expected = [reference.orthogonal(each) for each in values]
    np.testing.assert_allclose(found, expected, atol=1e-2 if half else 2e-4)


@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e-10, 1e15])
def test_matrices_of_any_size(operations: Operations, scale: float) -> None:
    values = scale * matrix(np.random.default_rng(1), 12, 20)
    found = orthogonal(operations, values)
    assert np.isfinite(found).all()
    if scale in (1e-10, 1e15):
        np.testing.assert_allclose(found, reference.orthogonal(values), atol=2e-4)


def step(
    operations: Operations, steps: Steps, state: Momentum, *, decay: bool, half: Tensor | None
) -> None:
    update = steps.update(decay=decay, half_copy=half)
    run(operations, lambda: MUON.record(operations, [(state, update)]))


@pytest.mark.parametrize("shape", [(24, 7), (33, 65), (64, 64)])
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize(
    "options", [OPTIONS, replace(OPTIONS, momentum=0.9, momentum_start=0.5, momentum_steps=4)]
)
def test_muon(
    operations: Operations, shape: tuple[int, int], decay: bool, options: TrainOptions
) -> None:
    rng = np.random.default_rng(shape[0])
    expected = (matrix(rng, *shape), np.zeros(shape))
    steps = Steps(operations, expected[0])
    (state,) = Momentum.make(operations, [steps.parameter])
    for number in range(6):
        gradient = matrix(rng, *shape)
        steps.begin(options, number, gradient)
        operations.write(steps.stats, np.array([0.5, 0, 0, 0]))
        step(operations, steps, state, decay=decay, half=None)
        expected = reference.muon(
            expected, 0.5 * gradient, options, number, LEARNING_RATE, decay=decay
        )
    np.testing.assert_allclose(operations.read(steps.parameter), expected[0], atol=2e-5)
    np.testing.assert_allclose(operations.read(state.momentum), expected[1], atol=1e-6)


def test_a_momentum_of_95_hundredths_keeps_its_bits_on_the_cpu() -> None:
    """Runs of earlier versions, whose momentum is a constant, resume to the same bits."""
    operations, rng = Operations(FixedProducts(1)), np.random.default_rng(4)
    steps = Steps(operations, matrix(rng, 40, 30))
    (state,) = Momentum.make(operations, [steps.parameter])
    expected = np.zeros((40, 30), np.float32)
    for number in range(3):
        gradient = matrix(rng, 40, 30).astype(np.float32)
        steps.begin(OPTIONS, number, gradient)
        step(operations, steps, state, decay=True, half=None)
        expected += np.float32(0.05) * (gradient - expected)
    assert operations.read(state.momentum).tobytes() == expected.tobytes()


def test_matrices_of_several_shapes(operations: Operations) -> None:
    rng = np.random.default_rng(5)
    shapes = [(16, 24), (8, 16), (16, 24), (7, 9), (8, 16), (16, 24), (7, 9)]
    steps, states, expected = [], [], []
    for shape in shapes:
        values, gradient = matrix(rng, *shape), matrix(rng, *shape)
        steps.append(Steps(operations, values))
        states += Momentum.make(operations, [steps[-1].parameter])
        steps[-1].begin(OPTIONS, 0, gradient)
        before = values, np.zeros(shape)
        expected.append(reference.muon(before, gradient, OPTIONS, 0, LEARNING_RATE, decay=True)[0])
    updates = [each.update(decay=True, half_copy=None) for each in steps]
    taken = list(zip(states, updates, strict=True))
    run(operations, lambda: MUON.record(operations, taken))
    for each, values in zip(steps, expected, strict=True):
        np.testing.assert_allclose(operations.read(each.parameter), values, atol=2e-5)


@pytest.mark.parametrize("with_half_copy", [False, True])
def test_muon_changes_nothing_in_a_bad_step(operations: Operations, with_half_copy: bool) -> None:
    if with_half_copy:
        require_half_precision(operations)
    rng = np.random.default_rng(2)
    steps = Steps(operations, matrix(rng, 9, 7))
    half = tensor_of(operations, "half copy", np.zeros((9, 7), np.float16))
    (state,) = Momentum.make(operations, [steps.parameter])
    steps.begin(OPTIONS, 0, matrix(rng, 9, 7))
    copy = half if with_half_copy else None
    step(operations, steps, state, decay=True, half=copy)
    before = [operations.read(t) for t in (steps.parameter, state.momentum, half)]
    if with_half_copy:
        assert np.array_equal(before[2], half_of(before[0]))
    operations.write(steps.stats, np.array([0.0, np.nan, 1, np.nan]))
    steps.begin(OPTIONS, 1, np.full((9, 7), np.nan))
    step(operations, steps, state, decay=True, half=copy)
    for tensor, then in zip((steps.parameter, state.momentum, half), before, strict=True):
        assert np.array_equal(operations.read(tensor), then)


@pytest.mark.parametrize("shape", [(256, 512), (512, 256)])
def test_the_same_bits_with_any_number_of_threads(shape: tuple[int, int]) -> None:
    values = matrix(np.random.default_rng(3), *shape)
    one, three = (orthogonal(Operations(FixedProducts(n)), values) for n in (1, 3))
    assert one.tobytes() == three.tobytes()
