"""Norm, clipping and AdamW against float64 and torch, on odd sizes; what a bad step leaves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import (
    BAD,
    CLIP_SCALE,
    NORM_PARTIALS,
    WeightUpdate,
)
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.optimizers.adamw import PIECE, Moments
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters
from tests.lm.ops.adamw_steps import (
    LEARNING_RATE,
    Steps,
    half_copy_of,
    half_of,
    require_half_precision,
)
from tests.lm.ops.checking import assert_close, float32_values, poisoned, run, tensor_of
from tests.reference.lm import optimizer as reference

NORM, LOSS = 1, 3  # indices in `stats`
SHAPES = [(1,), (3,), (5, 7), (64, 64), (1031, 5)]
OPTIONS = TrainOptions(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1, grad_clip=1.0)


def test_hyper_parameters() -> None:
    first = hyper_parameters(OPTIONS, 0, 0.5, 1 / 3, 7)
    assert first["bias_correction1"] == first["one_minus_beta1"] == np.float32(0.1)
    assert first["bias_correction2"] == first["one_minus_beta2"] == np.float32(0.001)
    assert (first["learning_rate"], first["slot"]) == (0.5, 7)
    assert first["inverse_count"] == np.float32(1 / 3)
    later = hyper_parameters(OPTIONS, 99, 0.5, 1, 0)
    assert later["bias_correction2"] == np.float32(1 - 0.999**100)
    assert hyper_parameters(OPTIONS, 10**6, 0.5, 1, 0)["bias_correction2"] == 1


def norm_of(operations: Operations, gradients: list[NDArray[np.float64]]) -> NDArray[Any]:
    partials = poisoned(operations, "partials", (len(gradients), NORM_PARTIALS))
    tensors = [tensor_of(operations, "gradient", gradient) for gradient in gradients]

    run(operations, lambda: operations.reduce_norms(tensors, partials))
    together = operations.read(partials)
    for index, tensor in enumerate(tensors):
        operations.write(partials, np.full(partials.shape, np.nan))
        run(operations, partial(operations.reduce_norm_sq, tensor, partials, index))
        alone = operations.read(partials)
        np.testing.assert_array_equal(alone[index], together[index])
        assert np.isnan(np.delete(alone, index, axis=0)).all()
    return together


def test_sums_of_squares(operations: Operations) -> None:
    rng = np.random.default_rng(0)
    shapes = [*SHAPES, (NORM_PARTIALS * 1024 + 1,), (3 * NORM_PARTIALS * 1024 - 5,)]
    gradients = [float32_values(rng, *shape) for shape in shapes]
    partials = norm_of(operations, gradients)
    expected = np.array([np.sum(gradient**2) for gradient in gradients])
    assert_close(partials.astype(np.float64).sum(axis=1)[:, None], expected[:, None])
    assert np.array_equal(partials, norm_of(operations, gradients))


@pytest.mark.parametrize(("width", "start"), [(32, 2), (7, 0)])
def test_sums_of_squares_of_a_row_leave_out_those_after_it(
    operations: Operations, width: int, start: int
) -> None:
    whole = tensor_of(operations, "gradient", np.full((5, width), 2.0))
    partials = poisoned(operations, "partials", (1, NORM_PARTIALS))
    run(operations, lambda: operations.reduce_norm_sq(whole.rows(start, start + 1), partials, 0))
    assert operations.read(partials).sum() == width * 4


class Stats:
    """Tensors of `finalize_grad_stats`, with the sums given."""

    def __init__(self, operations: Operations, squares: NDArray[Any], losses: NDArray[Any]) -> None:
        self.steps = Steps(operations, np.zeros(1))
        self.partials = tensor_of(operations, "partials", squares)
        self.losses = tensor_of(operations, "losses", losses)
        self.history = poisoned(operations, "history", (3, 8))

    def finalize(
        self, options: TrainOptions, *, slot: int = 0, count: int = 1, max_norm: float = 1.0
    ) -> NDArray[Any]:
        operations, steps = self.steps.operations, self.steps
        steps.begin(options, 0, np.zeros(1), slot=slot, count=count, max_norm=max_norm)
        inputs = (self.partials, self.losses)
        run(
            operations,
            lambda: operations.finalize_grad_stats(*inputs, steps.stats, self.history, steps.hyper),
        )
        return operations.read(steps.stats)


@pytest.mark.parametrize("tensors", [1, 3, 40])
@pytest.mark.parametrize("max_norm", [0.0, -1.0, 1.0, 1e4])
def test_stats(operations: Operations, tensors: int, max_norm: float) -> None:
    rng = np.random.default_rng(tensors)
    squares = float32_values(rng, tensors, NORM_PARTIALS) ** 2
    losses = np.abs(float32_values(rng, 3 * (2 * tensors - 1), 2))  # of three parts
    parts = losses.reshape(3, -1).sum(axis=1) / 7
    stats = Stats(operations, squares, losses)
    actual = stats.finalize(TrainOptions(), slot=1, count=7, max_norm=max_norm)
    norm = np.sqrt(squares.astype(np.float32).astype(np.float64).sum())
    scale = reference.clip_scale(float(norm), max_norm)
    assert_close(actual[:, None], np.array([scale, norm, 0, parts[0]])[:, None])
    history = operations.read(stats.history)
    assert np.array_equal(history[1, :4], actual[[LOSS, NORM, CLIP_SCALE, BAD]])
    assert_close(history[1, 4:6, None], parts[1:, None])
    assert not history[1, 6:].any()
    assert np.isnan(history[[0, 2]]).all()


@pytest.mark.parametrize("where", ["squares", "losses"])
@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_step_is_remembered(
    operations: Operations, where: str, part: int, value: float
) -> None:
    good = {"squares": np.ones((2, NORM_PARTIALS)), "losses": np.ones((3, 2))}
    bad = {name: array.copy() for name, array in good.items()}
    bad[where][part % len(bad[where]), -1] = value
    stats = Stats(operations, **bad)
    assert stats.finalize(OPTIONS)[[CLIP_SCALE, BAD]].tolist() == [0, 1]
    operations.write(stats.partials, good["squares"])
    operations.write(stats.losses, good["losses"])
    assert stats.finalize(OPTIONS, slot=1)[[CLIP_SCALE, BAD]].tolist() == [0, 1]
    operations.write(stats.steps.stats, np.zeros(4))
    scale, _, marked, _ = stats.finalize(OPTIONS, slot=2)
    assert marked == 0
    assert np.isclose(scale, 1 / 16, rtol=1e-5)
    assert operations.read(stats.history)[:, 3].tolist() == [1, 1, 0]


def test_gradients_whose_squares_overflow_make_a_bad_step(operations: Operations) -> None:
    partials = norm_of(operations, [np.array([1e25, 1.0])])
    assert Stats(operations, partials, np.ones((3, 1))).finalize(OPTIONS)[BAD] == 1


def updates(
    operations: Operations, steps: Steps, decay: bool, half_copy: Tensor | None = None
) -> None:
    run(
        operations,
        lambda: operations.update_weight(
            Moments(steps.first, steps.second), steps.update(decay=decay, half_copy=half_copy)
        ),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decay", [False, True])
def test_adamw(operations: Operations, shape: tuple[int, ...], decay: bool) -> None:
    rng = np.random.default_rng(shape[0])
    parameter = float32_values(rng, *shape)
    state = (parameter, np.zeros(shape), np.zeros(shape))
    steps = Steps(operations, parameter)
    for step in range(20):
        gradient = float32_values(rng, *shape)
        steps.begin(OPTIONS, step, gradient)
        operations.write(steps.stats, np.array([0.5, 0, 0, 0]))
        updates(operations, steps, decay)
        state = reference.adamw(state, 0.5 * gradient, OPTIONS, step, LEARNING_RATE, decay=decay)
    for actual, expected in zip(steps.read(), state, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("decay", [False, True])
def test_adamw_is_that_of_torch_clipping_included(operations: Operations, decay: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    parameter = float32_values(rng, 37, 11)
    theirs = torch.nn.Parameter(torch.tensor(parameter))  # float64
    peer = torch.optim.AdamW(
        [theirs],
        lr=LEARNING_RATE,
        betas=(OPTIONS.beta1, OPTIONS.beta2),
        eps=OPTIONS.epsilon,
        weight_decay=OPTIONS.weight_decay if decay else 0.0,
    )
    steps = Steps(operations, parameter)
    stats = Stats(operations, np.zeros((1, NORM_PARTIALS)), np.zeros((3, 1)))

    def record() -> None:
        operations.reduce_norm_sq(steps.gradient, stats.partials, 0)
        operations.finalize_grad_stats(
            stats.partials, stats.losses, steps.stats, stats.history, steps.hyper
        )
        moments = Moments(steps.first, steps.second)
        operations.update_weight(moments, steps.update(decay=decay))

    for step in range(20):
        gradient = float32_values(rng, 37, 11) * 0.1 * step
        steps.begin(OPTIONS, step, gradient)
        run(operations, record)
        theirs.grad = torch.tensor(gradient)
        norm = torch.nn.utils.clip_grad_norm_([theirs], OPTIONS.grad_clip)
        peer.step()
        assert np.isclose(operations.read(steps.stats)[NORM], float(norm), rtol=1e-5)
    assert_close(steps.read()[0], theirs.detach().numpy())


@pytest.mark.parametrize("step", [0, 2**24, 2**31, 2**32 - 1, 2**32, 2**53 + 1])
@pytest.mark.parametrize(
    "options", [TrainOptions(beta1=0.0, beta2=0.0), TrainOptions(beta2=1 - 1e-9)]
)
def test_any_step(operations: Operations, options: TrainOptions, step: int) -> None:
    rng = np.random.default_rng(6)
    state = np.abs(float32_values(rng, 3, 300))
    steps = Steps(operations, state[0])
    operations.write(steps.first, state[1])
    operations.write(steps.second, state[2])
    gradient = float32_values(rng, 300)
    steps.begin(options, step, gradient, slot=step % 7)
    run(
        operations,
        lambda: operations.update_weight(Moments(steps.first, steps.second), steps.update()),
    )
    before = (state[0], state[1], state[2])
    expected = reference.adamw(before, gradient, options, step, LEARNING_RATE, decay=True)
    for found, values in zip(steps.read(), expected, strict=True):
        assert_close(found, values)


def test_more_elements_than_numpy_works_on_at_a_time() -> None:
    operations, size = Operations(), PIECE + 300
    parameter, gradient = float32_values(np.random.default_rng(1), 2, size)
    steps = Steps(operations, parameter)
    half_copy = half_copy_of(operations, np.zeros(size))
    steps.begin(OPTIONS, 0, gradient)
    updates(operations, steps, decay=True, half_copy=half_copy)
    state = (parameter, np.zeros(size), np.zeros(size))
    expected = reference.adamw(state, gradient, OPTIONS, 0, LEARNING_RATE, decay=True)
    for actual, exact in zip(steps.read(), expected, strict=True):
        assert_close(actual, exact)
    assert np.array_equal(operations.read(half_copy), half_of(steps.read()[0]))


def test_adamw_with_zero_gradients_only_decays(operations: Operations) -> None:
    parameter = np.array([1.0, -2.0, 0.0, 1e-30, 3.0])
    steps = Steps(operations, parameter)
    steps.begin(OPTIONS, 0, np.zeros(5))
    updates(operations, steps, decay=True)
    assert_close(steps.read()[0], parameter * (1 - LEARNING_RATE * OPTIONS.weight_decay))
    assert not np.any(steps.read()[1:])


@pytest.mark.parametrize("with_half_copy", [False, True])
def test_adamw_changes_nothing_in_a_bad_step(operations: Operations, with_half_copy: bool) -> None:
    if with_half_copy:
        require_half_precision(operations)
    parameter = np.arange(7.0)
    steps = Steps(operations, parameter)
    half_copy = half_copy_of(operations, parameter) if with_half_copy else None
    steps.begin(OPTIONS, 0, np.ones(7))
    updates(operations, steps, decay=True, half_copy=half_copy)
    before = steps.read()
    operations.write(steps.stats, np.array([0.0, np.nan, 1, np.nan]))
    steps.begin(OPTIONS, 1, np.full(7, np.nan))
    updates(operations, steps, decay=True, half_copy=half_copy)
    for now, then in zip(steps.read(), before, strict=True):
        assert np.array_equal(now, then)
    if half_copy is not None:
        assert np.array_equal(operations.read(half_copy), half_of(before[0]))


@pytest.mark.parametrize("size", [1, 6, 1000, 4099])
def test_the_half_copy_is_the_rounded_parameter(operations: Operations, size: int) -> None:
    require_half_precision(operations)
    rng = np.random.default_rng(size)
    parameter = float32_values(rng, size) * 10.0 ** rng.integers(-9, 6, size)
    steps = Steps(operations, parameter)
    half_copy = tensor_of(operations, "half copy", np.full(size, np.nan, np.float16))
    for step in range(4):
        steps.begin(OPTIONS, step, float32_values(rng, size))
        updates(operations, steps, decay=True, half_copy=half_copy)
        expected = half_of(operations.read(steps.parameter))
        assert np.array_equal(operations.read(half_copy).view(np.uint16), expected.view(np.uint16))


def test_the_half_copy_of_values_beyond_half_precision(operations: Operations) -> None:
    require_half_precision(operations)
    values = [65504, 65519, 65520, 1e30, -1e30, np.inf, -np.inf, 5.9e-8, 2.0**-25, 1 + 2.0**-11]
    parameter = np.array([*values, 1 + 3 * 2.0**-11, -(1 + 2.0**-11 + 2.0**-20), np.nan])
    steps = Steps(operations, parameter)
    steps.begin(TrainOptions(weight_decay=0), 0, np.zeros(parameter.shape))
    half_copy = half_copy_of(operations, np.zeros(parameter.shape))
    updates(operations, steps, decay=False, half_copy=half_copy)
    expected = half_of(parameter.astype(np.float32))
    assert np.array_equal(operations.read(half_copy), expected, equal_nan=True)


@pytest.mark.parametrize(("width", "start"), [(64, 2), (7, 0)])
@pytest.mark.parametrize("with_half_copy", [False, True])
def test_a_row_is_updated_alone(
    operations: Operations, width: int, start: int, with_half_copy: bool
) -> None:
    if with_half_copy:
        require_half_precision(operations)
    rng = np.random.default_rng(8)
    steps = Steps(operations, float32_values(rng, 5, width))
    before = steps.read()
    steps.begin(OPTIONS, 0, float32_values(rng, 5, width))
    half_copy = half_copy_of(operations, np.zeros((5, width)))
    row = slice(start, start + 1)
    state = [tensor.rows(row.start, row.stop) for tensor in steps.state]
    half_row = half_copy.rows(row.start, row.stop) if with_half_copy else None
    run(
        operations,
        lambda: operations.update_weight(
            Moments(*state[2:]),
            WeightUpdate(*state[:2], steps.stats, steps.hyper, True, half_row),
        ),
    )
    for now, then in zip(steps.read(), before, strict=True):
        assert np.array_equal(np.nonzero(np.any(now != then, axis=1))[0], [start])
    expected = half_of(np.zeros((5, width)))
    if with_half_copy:
        expected[row] = half_of(steps.read()[0][row])
    assert np.array_equal(operations.read(half_copy), expected)


def test_the_same_bits_twice(operations: Operations) -> None:
    def train() -> list[NDArray[Any]]:
        rng = np.random.default_rng(9)
        steps = Steps(operations, float32_values(rng, 33, 31))
        for step in range(3):
            steps.begin(OPTIONS, step, float32_values(rng, 33, 31))
            updates(operations, steps, decay=True)
        return steps.read()

    for once, again in zip(train(), train(), strict=True):
        assert once.tobytes() == again.tobytes()
