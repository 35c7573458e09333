"""Cross-entropy against float64, and float64 against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import Losses, Tensor
from tests.lm.ops.checking import (
    assert_close,
    float32_values,
    poisoned,
    run,
    tensor_of,
)
from tests.reference.lm import loss as reference

# One entry; odd sizes; one more than a workgroup; four logits a thread, and one more.
SHAPES = [(1, 1), (3, 7), (5, 257), (4, 1024), (3, 1025), (2, 5003), (2, 50304)]
SETTINGS = [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.05, 1e-4)]  # alpha, beta

Array = NDArray[np.float64]


def parameters(
    operations: Operations, tokens: int, inv_norm: float, alpha: float, beta: float
) -> Tensor:
    params = operations.tensor("loss", (4,))
    operations.write(params, np.array([inv_norm, alpha, beta, 1 / tokens]))
    return params


def losses_of(operations: Operations, targets: Tensor) -> Losses:
    parts = (poisoned(operations, "losses", targets.shape) for _ in range(3))
    return Losses(targets, *parts)


def cross_entropy(
    operations: Operations,
    logits: NDArray[np.floating],
    targets: NDArray[np.integer],
    inv_norm: float = 1.0,
    alpha: float = 0.0,
    beta: float = 0.0,
    *,
    tokens: int | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return (parts of the losses (3, N), gradient)."""
    tokens = tokens or logits.shape[1]
    params = parameters(operations, tokens, inv_norm, alpha, beta)
    logits_tensor = tensor_of(operations, "logits", logits.astype(np.float32))
    targets_tensor = tensor_of(operations, "targets", targets.astype(np.uint32))
    losses = losses_of(operations, targets_tensor)
    run(operations, lambda: operations.cross_entropy(logits_tensor, losses, params, tokens))
    parts = np.array([operations.read(part) for part in losses.parts])
    return parts, operations.read(logits_tensor)


def check(
    operations: Operations,
    logits: Array,
    targets: NDArray[np.integer],
    settings: tuple[float, float] = (0.0, 0.0),
    inv_norm: float = 0.25,
) -> None:
    """Compare the parts of the loss and the gradient with those of float64."""
    total, expected_gradient = reference.cross_entropy(logits, targets, inv_norm, *settings)
    expected = reference.parts(logits, targets, *settings)
    np.testing.assert_allclose(expected.sum(axis=0), total, rtol=1e-9)
    parts, gradient = cross_entropy(operations, logits, targets, inv_norm, *settings)
    assert_close(parts[0][:, None], expected[0][:, None])
    # Smoothing is the difference of the target's loss to the mean of all.
    assert_close(parts.T[:, 1:], expected.T[:, 1:], 1e-5 * (1 + np.abs(expected[0]).max()))
    assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy(
    operations: Operations, shape: tuple[int, int], settings: tuple[float, float]
) -> None:
    rng = np.random.default_rng(sum(shape))
    logits = float32_values(rng, *shape) * 4
    check(operations, logits, rng.integers(0, shape[1], shape[0]), settings)


def test_every_thread_may_write_the_target(operations: Operations) -> None:
    # The target of row k is logit k, so that in each row another thread overwrites it.
    logits = float32_values(np.random.default_rng(1), 600, 600)
    check(operations, logits, np.arange(600))


def test_targets_beyond_the_vocabulary_are_ignored(operations: Operations) -> None:
    logits = float32_values(np.random.default_rng(2), 6, 300)
    logits[4] = np.nan
    targets = np.array([300, 5, 301, 299, 0xFFFFFFFF, 0])
    check(operations, logits, targets, (0.1, 1e-3))


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_but_ignored_rows(operations: Operations, settings: tuple[float, float]) -> None:
    logits = float32_values(np.random.default_rng(3), 3, 20)
    parts, gradient = cross_entropy(operations, logits, np.full(3, 20), 0.0, *settings)
    assert not parts.any() and not gradient.any()


def extreme_rows() -> tuple[Array, NDArray[np.int64]]:
    rng = np.random.default_rng(4)
    logits = float32_values(rng, 9, 513)
    targets = rng.integers(0, 513, 9)
    logits[0] += 1e4
    logits[1] -= 1e4
    logits[2] = 7.5
    logits[3, 0] = -3e38
    logits[4, -1] = -3e38
    logits[5] *= 3e4
    logits[6] = 0
    logits[6, 100] = 1e4
    logits[7, targets[7]] = 30  # p of the target is 1 in float32, and the gradient isn't 0
    logits[8, :2] = 1e18, -3e38
    return logits.astype(np.float32).astype(np.float64), targets


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("row", range(9))
def test_extreme_rows(operations: Operations, row: int, settings: tuple[float, float]) -> None:
    logits, targets = extreme_rows()
    check(operations, logits[row : row + 1], targets[row : row + 1], settings)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_show(
    operations: Operations, value: float, settings: tuple[float, float]
) -> None:
    logits = float32_values(np.random.default_rng(5), 6, 700)
    targets = np.array([1, 2, 3, 4, 5, 700])
    for row, place in ((0, 0), (1, 2), (2, 699), (3, slice(None)), (5, 7)):
        logits[row, place] = value
    parts, gradient = cross_entropy(operations, logits, targets, 1.0, *settings)
    _, expected_gradient = reference.cross_entropy(logits[4:], targets[4:], 1.0, *settings)
    expected = reference.parts(logits[4:], targets[4:], *settings)
    assert np.isnan(parts[:, :4]).all() and np.isnan(gradient[:4]).all()
    assert_close(parts[:, 4:], expected)
    assert_close(gradient[4:], expected_gradient)


@pytest.mark.parametrize("settings", [(0.0, 0.0), (0.1, 1e-3)])
@pytest.mark.parametrize("tokens", [1, 3, 65, 1025, 5003])
def test_columns_without_a_token_count_for_nothing(
    operations: Operations, tokens: int, settings: tuple[float, float]
) -> None:
    """With anything in them, results are the same bit by bit, and their gradient is 0."""
    rng = np.random.default_rng(tokens)
    width = -(-(tokens + 1) // 64) * 64
    logits = float32_values(rng, 5, width) * 4
    targets = rng.integers(0, tokens, 5)
    targets[3] = tokens  # a column, but no token
    _, expected_gradient = reference.cross_entropy(logits, targets, 0.25, *settings, tokens)
    expected = reference.parts(logits[:, :tokens], targets, *settings)
    found = []
    for poison in (0.0, np.nan, np.inf, 3e38, -3e38):
        logits[:, tokens:] = poison
        parts, gradient = cross_entropy(operations, logits, targets, 0.25, *settings, tokens=tokens)
        found.append((parts.tobytes(), gradient.tobytes()))
    assert len(set(found)) == 1
    assert_close(parts.T[:, :1], expected.T[:, :1])
    assert_close(parts[1:], expected[1:], 1e-4)
    assert_close(gradient, expected_gradient)
    assert not gradient[:, tokens:].any() and not gradient[3].any()


@pytest.mark.parametrize(("width", "tokens"), [(1028, 1028), (260, 257), (4, 1)])
@pytest.mark.parametrize(
    "shift", [0.0, -50.0]
)  # with negative logits the largest is not a 0 beyond
def test_logits_in_half_precision(
    operations: Operations, width: int, tokens: int, shift: float
) -> None:
    rng = np.random.default_rng(width)
    logits = (float32_values(rng, 5, width) * 4 + shift).astype(np.float16)
    logits[:, tokens:] = 0
    targets = np.minimum([0, tokens - 1, 3, tokens, 7], tokens)  # the fourth one is ignored
    params = parameters(operations, tokens, 100.0, 0.1, 1e-3)
    tensors = [
        tensor_of(operations, "input", array) for array in (logits, targets.astype(np.uint32))
    ]
    losses = losses_of(operations, tensors[1])
    run(operations, lambda: operations.cross_entropy(tensors[0], losses, params, tokens))
    wide = logits.astype(np.float64)[:, :tokens]
    counted = targets < tokens
    parts = np.array([operations.read(part) for part in losses.parts])
    expected = reference.parts(wide[counted], targets[counted], 0.1, 1e-3)
    np.testing.assert_allclose(parts[:, counted], expected, rtol=1e-5, atol=1e-5)
    assert not parts[:, ~counted].any()
    _, gradient = reference.cross_entropy(wide[counted], targets[counted], 100.0, 0.1, 1e-3)
    found = operations.read(tensors[0]).astype(np.float64)
    np.testing.assert_allclose(found[counted, :tokens], gradient, rtol=1.01e-3, atol=1e-5)
    assert not found[~counted].any() and not found[:, tokens:].any()


@np.errstate(all="ignore")
def test_half_precision_logits_that_are_not_finite(operations: Operations) -> None:
    logits = np.zeros((3, 12), np.float16)
    logits[0, 4], logits[1, 7] = np.inf, np.nan
    tensors = [tensor_of(operations, "input", a) for a in (logits, np.zeros(3, np.uint32))]
    losses = losses_of(operations, tensors[1])
    params = parameters(operations, 12, 1.0, 0.0, 0.0)
    run(operations, lambda: operations.cross_entropy(tensors[0], losses, params, 12))
    bad = np.isnan(operations.read(losses.cross_entropy))
    assert bad.tolist() == [True, True, False]
    assert np.isnan(operations.read(tensors[0])).all(axis=1).tolist() == [True, True, False]


@pytest.mark.slow
def test_more_rows_than_a_dimension_has_workgroups(operations: Operations) -> None:
    rng = np.random.default_rng(6)
    check(operations, float32_values(rng, 65_600, 2), rng.integers(0, 3, 65_600))


def test_no_rows_are_no_work(operations: Operations) -> None:
    parts, gradient = cross_entropy(operations, np.empty((0, 5)), np.empty(0, np.int64))
    assert parts.shape == (3, 0) and gradient.shape == (0, 5)


def test_parameters_change_between_runs(operations: Operations) -> None:
    logits = float32_values(np.random.default_rng(7), 2, 9)
    tensors = [tensor_of(operations, "logits", logits), operations.tensor("t", (2,), np.uint32)]
    losses = losses_of(operations, tensors[1])
    params = parameters(operations, 9, 1.0, 0.0, 0.0)
    with operations.record("test") as program:
        operations.cross_entropy(tensors[0], losses, params, 9)
    for inv_norm, alpha, beta in ((1.0, 0.0, 0.0), (0.5, 0.1, 1e-2)):
        operations.write(params, np.array([inv_norm, alpha, beta, 1 / 9]))
        operations.write(tensors[0], logits)
        operations.run(program)  # type: ignore[arg-type]
        targets = np.zeros(2, np.int64)
        _, gradient = reference.cross_entropy(logits, targets, inv_norm, alpha, beta)
        expected = reference.parts(logits, targets, alpha, beta)
        for part, values in zip(losses.parts, expected, strict=True):
            assert_close(operations.read(part), values)
        assert_close(operations.read(tensors[0]), gradient)


@pytest.mark.parametrize("count", [0, 1, 255, 257, 70_001])
def test_sum_losses(operations: Operations, count: int) -> None:
    losses = np.abs(float32_values(np.random.default_rng(count), count))
    tensor = tensor_of(operations, "losses", losses)
    out = poisoned(operations, "sum", (1,))
    run(operations, lambda: operations.sum_losses(tensor, out))
    assert_close(operations.read(out), np.array([losses.sum()]))


@pytest.mark.parametrize("settings", SETTINGS)
def test_reference_gradient_is_a_finite_difference(settings: tuple[float, float]) -> None:
    logits = float32_values(np.random.default_rng(8), 3, 5) * 3
    targets = np.array([2, 5, 0])
    _, gradient = reference.cross_entropy(logits, targets, 0.5, *settings)
    for index in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-6
        above, below = (
            0.5 * reference.cross_entropy(logits + sign * step, targets, 0.5, *settings)[0].sum()
            for sign in (1, -1)
        )
        assert (above - below) / 2e-6 == pytest.approx(gradient[index], abs=1e-8)


def test_reference_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    logits = float32_values(np.random.default_rng(9), 7, 31)
    targets = np.array([0, 30, 5, -100, 7, 8, 9])
    inputs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(
        inputs, torch.tensor(targets), reduction="sum", label_smoothing=0.1
    )
    expected.backward()
    counted = np.where(targets < 0, 31, targets)
    losses, gradient = reference.cross_entropy(logits, counted, 1.0, 0.1, 0.0)
    assert losses.sum() == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, inputs.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize(("rows", "width", "tokens"), [(1, 64, 1), (7, 128, 70), (33, 320, 263)])
def test_argmax_is_the_first_of_the_largest(
    operations: Operations, rows: int, width: int, tokens: int
) -> None:
    """Of few different numbers, and larger ones where there are no tokens."""
    logits = np.random.default_rng(rows).integers(-9, -1, (rows, width)).astype(np.float32)
    logits[:, tokens:] = 5
    out = tensor_of(operations, "out", np.full(rows, 999, np.uint32))
    tensor = tensor_of(operations, "logits", logits)
    run(operations, lambda: operations.argmax(tensor, out, tokens))
    expected = [row.index(max(row[:tokens])) for row in logits.tolist()]
    np.testing.assert_array_equal(operations.read(out), expected)
