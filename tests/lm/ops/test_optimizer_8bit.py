"""AdamW with 8-bit moments: steps against float64, the bound of rounding, training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.optimizers.adamw import BLOCK, PIECE, CodedMoments, block_codes
from llmgpu.lm.options import TrainOptions
from tests.lm.ops.adamw_steps import (
    LEARNING_RATE,
    Steps,
    half_copy_of,
    half_of,
    require_half_precision,
)
from tests.lm.ops.checking import FLOAT32_TOLERANCE, assert_close, float32_values, run
from tests.reference.lm import optimizer as reference

SIZES = [1, 3, 255, 256, 257, 1030]
OPTIONS = TrainOptions(beta2=0.999, weight_decay=0.1)
Array = NDArray[np.float64]


class CodedSteps(Steps):
    """One parameter whose moments are codes."""

    def __init__(self, operations: Operations, parameter: NDArray[Any]) -> None:
        super().__init__(operations, parameter)
        self.codes = [block_codes(operations, name, parameter.size) for name in ("first", "second")]

    def take(self, *, decay: bool = True, half_copy: Tensor | None = None) -> None:
        (first, second), update = self.codes, self.update(decay=decay, half_copy=half_copy)
        state = CodedMoments(*first, *second)
        run(self.operations, lambda: self.operations.update_weight(state, update))

    def read_codes(self, moment: tuple[Tensor, Tensor], dtype: type) -> tuple[NDArray[Any], Array]:
        """Codes of the parameter's elements, and scales."""
        codes = self.operations.read(moment[0])
        assert not np.any(codes[self.parameter.size :])
        scales = self.operations.read(moment[1]).astype(np.float64)
        return codes[: self.parameter.size].view(dtype), scales

    def moments(self) -> tuple[Array, Array]:
        """First moment and root of the second one."""
        first = self.read_codes(self.codes[0], np.int8)
        root = self.read_codes(self.codes[1], np.uint8)
        return (
            reference.decode(first[0].astype(int), 127, first[1]),
            reference.decode(root[0].astype(int), 255, root[1]),
        )

    def everything(self) -> list[NDArray[Any]]:
        moments = (tensor for moment in self.codes for tensor in moment)
        return [self.operations.read(tensor) for tensor in (self.parameter, *moments)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("decay", [False, True])
def test_steps(operations: Operations, size: int, decay: bool) -> None:
    rng = np.random.default_rng(size)
    steps = CodedSteps(operations, float32_values(rng, size))
    operations.write(steps.stats, np.array([0.5, 0, 0, 0]))
    magnitudes = 10.0 ** rng.integers(-12, 2, size)
    for step in range(8):
        parameter = operations.read(steps.parameter).astype(np.float64)
        first, root = steps.moments()
        gradient = float32_values(rng, size) * magnitudes * rng.integers(0, 2, size)
        steps.begin(OPTIONS, step, gradient)
        steps.take(decay=decay)
        gradient = 0.5 * gradient.astype(np.float32).astype(np.float64)
        state = (parameter, first, root**2)
        expected = reference.adamw(state, gradient, OPTIONS, step, LEARNING_RATE, decay=decay)
        assert_close(operations.read(steps.parameter), expected[0])
        check_codes(steps, expected[1], np.sqrt(expected[2]))


def test_more_elements_than_numpy_works_on_at_a_time() -> None:
    rng = np.random.default_rng(1)
    parameter, *gradients = float32_values(rng, 3, PIECE + 300)

    def train(part: slice) -> list[NDArray[Any]]:
        steps = CodedSteps(Operations(), parameter[part])
        for step, gradient in enumerate(gradients):
            steps.begin(OPTIONS, step, gradient[part])
            steps.take()
        return steps.everything()

    parts = zip(train(slice(PIECE)), train(slice(PIECE, None)), strict=True)
    for whole, two in zip(train(slice(None)), parts, strict=True):
        assert np.array_equal(whole, np.concatenate(two))


def test_a_row_is_updated_alone(operations: Operations) -> None:
    parameter = float32_values(np.random.default_rng(2), 5, 7)
    whole = Steps(operations, parameter)
    whole.begin(OPTIONS, 0, np.array([[1.0], [1e6], [1e6], [1e6], [1e6]]) * np.ones(7))
    steps = CodedSteps(operations, parameter[0])
    steps.begin(OPTIONS, 0, np.zeros(7))
    steps.parameter, steps.gradient = whole.parameter.rows(0, 1), whole.gradient.rows(0, 1)
    steps.take()
    expected = parameter[0] * (1 - LEARNING_RATE * OPTIONS.weight_decay) - LEARNING_RATE
    updated = operations.read(whole.parameter)
    assert_close(updated[0], expected)
    assert np.array_equal(updated[1:], parameter[1:])
    _, first_scales = steps.read_codes(steps.codes[0], np.int8)
    assert_close(first_scales, np.array([0.1]))


def check_codes(steps: CodedSteps, first: Array, root: Array) -> None:
    """Check that codes are those of the values nearest to the moments."""
    scales = [steps.read_codes(moment, np.uint8)[1] for moment in steps.codes]
    for actual, exact in zip(scales, (first, root), strict=True):
        largest = reference.block_largest(exact)
        assert np.allclose(actual, largest, rtol=FLOAT32_TOLERANCE, atol=0)
    rounded_first, rounded_root = steps.moments()
    least = reference.rounding_error(np.abs(first), 127, scales[0])
    assert np.all(np.abs(rounded_first - first) <= least + FLOAT32_TOLERANCE * np.abs(first))
    least = np.where(root > 0, reference.rounding_error(root, 255, scales[1], least=1), 0)
    assert np.all(np.abs(rounded_root - root) <= least + FLOAT32_TOLERANCE * root)
    assert np.array_equal(rounded_root > 0, root > 0)


def test_rounding_changes_moments_no_more_than_stated(operations: Operations) -> None:
    rng = np.random.default_rng(3)
    gradient = float32_values(rng, 5 * BLOCK) * 10.0 ** rng.integers(-6, 1, 5 * BLOCK)
    steps = CodedSteps(operations, np.zeros(gradient.size))
    steps.begin(OPTIONS, 0, gradient)
    steps.take()
    exact = (0.1 * gradient, np.sqrt(0.001) * np.abs(gradient))
    for rounded, x, levels in zip(steps.moments(), exact, (127, 255), strict=True):
        largest = np.repeat(reference.block_largest(x), BLOCK)
        u = (np.abs(x) / largest) ** 0.25
        bound = largest / 2 * ((u + 1 / levels) ** 4 - u**4)
        if levels == 255:
            bound = np.maximum(bound, largest / levels**4)
        assert np.all(np.abs(rounded - x) <= bound + FLOAT32_TOLERANCE * np.abs(x))


def test_a_small_second_moment_next_to_a_large_one_keeps_the_step_small(
    operations: Operations,
) -> None:
    # Rounding at most doubles a first moment, and makes no second moment that is 0.
    gradient = np.array([1e6, 1e3, 1.0, 1e-2, 1e-3, 1e-6, 1e-10, 0.0])
    steps = CodedSteps(operations, np.zeros(gradient.size))
    for step in range(10):
        steps.begin(OPTIONS, step, gradient)
        steps.take(decay=False)
    moved = np.abs(operations.read(steps.parameter))
    assert np.all(moved <= 2 * 10 * LEARNING_RATE)
    assert moved[-1] == 0


def test_no_gradients_leave_codes_of_zero(operations: Operations) -> None:
    steps = CodedSteps(operations, np.ones(300))
    steps.begin(OPTIONS, 0, np.zeros(300))
    steps.take(decay=False)
    parameter, *moments = steps.everything()
    assert np.all(parameter == 1)
    assert not any(np.any(array) for array in moments)


def minimize(step_of: Callable[[int, Array], Array], size: int, steps: int) -> float:
    """Return the loss of a quadratic problem with noisy gradients after steps from zero."""
    rng = np.random.default_rng(6)
    curvature, target = np.exp(rng.normal(0, 1.5, size)), 0.5 * rng.standard_normal(size)
    x = np.zeros(size)
    for step in range(steps):
        x = step_of(step, curvature * (x - target + 0.1 * rng.standard_normal(size)))
    return float(np.mean(curvature * (x - target) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize(("beta2", "tolerance"), [(0.95, 0.05), (0.999, 0.5)])
def test_it_trains_like_adamw(operations: Operations, beta2: float, tolerance: float) -> None:
    size, steps = 2 * BLOCK + 37, 600
    options = TrainOptions(beta2=beta2, weight_decay=0)
    coded = CodedSteps(operations, np.zeros(size))
    state = (np.zeros(size),) * 3

    def coded_step(step: int, gradient: Array) -> Array:
        coded.begin(options, step, gradient)
        coded.take()
        return operations.read(coded.parameter).astype(np.float64)

    def exact_step(step: int, gradient: Array) -> Array:
        nonlocal state
        state = reference.adamw(state, gradient, options, step, LEARNING_RATE, decay=True)
        return state[0]

    start = minimize(lambda step, gradient: np.zeros(size), size, 1)
    exact, ours = minimize(exact_step, size, steps), minimize(coded_step, size, steps)
    assert exact < 0.01 * start
    assert ours == pytest.approx(exact, rel=tolerance)
    distance = np.linalg.norm(operations.read(coded.parameter) - state[0])
    assert distance < 0.05 * np.linalg.norm(state[0])


@pytest.mark.parametrize("with_half_copy", [False, True])
def test_nothing_changes_in_a_bad_step(operations: Operations, with_half_copy: bool) -> None:
    if with_half_copy:
        require_half_precision(operations)
    parameter = np.arange(300.0)
    steps = CodedSteps(operations, parameter)
    half_copy = half_copy_of(operations, parameter) if with_half_copy else None
    steps.begin(OPTIONS, 0, np.ones(300))
    steps.take(half_copy=half_copy)
    before = steps.everything()
    operations.write(steps.stats, np.array([0.0, np.nan, 1, np.nan]))
    steps.begin(OPTIONS, 1, np.full(300, np.nan))
    steps.take(half_copy=half_copy)
    for now, then in zip(steps.everything(), before, strict=True):
        assert np.array_equal(now, then)
    if half_copy is not None:
        assert np.array_equal(operations.read(half_copy), half_of(before[0]))


@pytest.mark.parametrize("size", SIZES)
def test_the_half_copy(operations: Operations, size: int) -> None:
    require_half_precision(operations)
    rng = np.random.default_rng(size)
    steps = CodedSteps(operations, float32_values(rng, size) * 10.0 ** rng.integers(-9, 6, size))
    half_copy = half_copy_of(operations, np.zeros(size))
    for step in range(3):
        steps.begin(OPTIONS, step, float32_values(rng, size))
        steps.take(half_copy=half_copy)
        assert np.array_equal(operations.read(half_copy), half_of(steps.everything()[0]))


def test_the_same_bits_twice(operations: Operations) -> None:
    def train() -> list[NDArray[Any]]:
        rng = np.random.default_rng(9)
        steps = CodedSteps(operations, float32_values(rng, 1000))
        for step in range(3):
            steps.begin(OPTIONS, step, float32_values(rng, 1000))
            steps.take()
        return steps.everything()

    for once, again in zip(train(), train(), strict=True):
        assert once.tobytes() == again.tobytes()
