"""AdamW on listed rows against float64 and torch's SparseAdam; all other rows stay."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import WeightUpdate
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.optimizers.adamw import PIECE, RowMoments
from llmgpu.lm.options import TrainOptions
from tests.lm.ops.adamw_steps import (
    LEARNING_RATE,
    Steps,
    half_copy_of,
    half_of,
    require_half_precision,
)
from tests.lm.ops.checking import assert_close, float32_values, run, tensor_of
from tests.reference.lm import optimizer as reference

SHAPES = [(1, 1), (9, 5), (300, 3), (40, 96)]
OPTIONS = TrainOptions(beta2=0.999, weight_decay=0.1)
UNUSED = 0xFFFFFFFF


def some_rows(rng: np.random.Generator, height: int) -> NDArray[np.uint32]:
    """About half of the rows, in any order, between entries not in use."""
    rows = np.full(height + 3, UNUSED, np.uint32)
    places = rng.choice(len(rows), -(-height // 2), replace=False)
    rows[places] = rng.choice(height, len(places), replace=False)
    return rows


def update(
    operations: Operations,
    steps: Steps,
    rows: NDArray[np.uint32],
    *,
    decay: bool = True,
    half_copy: Tensor | None = None,
) -> None:
    listed = tensor_of(operations, "rows", rows)
    run(
        operations,
        lambda: operations.update_weight(
            RowMoments(steps.first, steps.second, listed),
            steps.update(decay=decay, half_copy=half_copy),
        ),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decay", [False, True])
def test_rows(operations: Operations, shape: tuple[int, int], decay: bool) -> None:
    rng = np.random.default_rng(shape[0])
    state = (float32_values(rng, *shape), np.zeros(shape), np.zeros(shape))
    steps = Steps(operations, state[0], shape[0] + 3)
    operations.write(steps.stats, np.array([0.25, 0, 0, 0]))
    for step in range(20):
        rows, gradient = some_rows(rng, shape[0]), float32_values(rng, shape[0] + 3, shape[1])
        gradient[rows == UNUSED] = 1e30
        steps.begin(OPTIONS, step, gradient)
        update(operations, steps, rows, decay=decay)
        state = reference.adamw_rows(
            state, 0.25 * gradient, rows, OPTIONS, step, LEARNING_RATE, decay=decay
        )
    for actual, expected in zip(steps.read(), state, strict=True):
        assert_close(actual, expected)


def test_rows_are_those_of_torch(operations: Operations) -> None:
    torch = pytest.importorskip("torch")
    # SparseAdam adds epsilon before the bias correction, so a tiny one is compared.
    options = TrainOptions(beta2=0.999, epsilon=1e-12)
    rng = np.random.default_rng(4)
    parameter = float32_values(rng, 23, 6)
    theirs = torch.nn.Parameter(torch.tensor(parameter))
    peer = torch.optim.SparseAdam([theirs], lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-12)
    steps = Steps(operations, parameter, 26)
    torch.sparse.check_sparse_tensor_invariants.enable()  # or newer versions warn
    for step in range(20):
        rows, gradient = some_rows(rng, 23), float32_values(rng, 26, 6)
        steps.begin(options, step, gradient)
        update(operations, steps, rows, decay=False)
        listed = torch.tensor(rows[rows != UNUSED].astype(np.int64))
        values = torch.tensor(gradient[rows != UNUSED])
        theirs.grad = torch.sparse_coo_tensor(listed[None], values, parameter.shape)
        peer.step()
    assert_close(steps.read()[0], theirs.detach().numpy())


def test_more_rows_than_numpy_works_on_at_a_time() -> None:
    rng = np.random.default_rng(1)
    parameter, gradient = float32_values(rng, 2, 3, PIECE // 2)
    rows = np.array([2, 0, 1], np.uint32)
    steps = Steps(Operations(), parameter)
    steps.begin(OPTIONS, 0, gradient[rows])
    update(steps.operations, steps, rows)
    state = (parameter, np.zeros(parameter.shape), np.zeros(parameter.shape))
    expected = reference.adamw(state, gradient, OPTIONS, 0, LEARNING_RATE, decay=True)
    for actual, exact in zip(steps.read(), expected, strict=True):
        assert_close(actual, exact)


@pytest.mark.parametrize("with_half_copy", [False, True])
def test_nothing_else_changes(operations: Operations, with_half_copy: bool) -> None:
    if with_half_copy:
        require_half_precision(operations)
    parameter = float32_values(np.random.default_rng(1), 9, 7)
    steps = Steps(operations, parameter)
    half_copy = half_copy_of(operations, parameter) if with_half_copy else None
    steps.begin(OPTIONS, 0, np.ones((9, 7)))
    before = steps.read()
    update(operations, steps, np.full(4, UNUSED, np.uint32), half_copy=half_copy)
    assert all(np.array_equal(*pair) for pair in zip(steps.read(), before, strict=True))
    update(operations, steps, np.array([8, 3, UNUSED], np.uint32), half_copy=half_copy)
    changed = [np.any(now != then, axis=1) for now, then in zip(steps.read(), before, strict=True)]
    assert np.array_equal(np.nonzero(changed)[1], [3, 8] * 3)
    if half_copy is not None:
        assert np.array_equal(operations.read(half_copy), half_of(steps.read()[0]))


def test_rows_after_the_table_stay(operations: Operations) -> None:
    steps = Steps(operations, np.ones((5, 7)))
    steps.begin(OPTIONS, 0, np.ones((5, 7)))
    before = steps.read()
    rows = tensor_of(operations, "rows", np.array([4, UNUSED], np.uint32))
    state = [tensor.rows(0, 4) for tensor in steps.state]

    def record() -> None:
        update = WeightUpdate(*state[:2], steps.stats, steps.hyper, decays=True)
        operations.update_weight(RowMoments(*state[2:], rows), update)

    run(operations, record)
    assert all(np.array_equal(*pair) for pair in zip(steps.read(), before, strict=True))


def test_rows_stay_in_a_bad_step(operations: Operations) -> None:
    steps = Steps(operations, np.ones((4, 3)))
    operations.write(steps.stats, np.array([0.0, np.nan, 1, 1]))
    steps.begin(OPTIONS, 0, np.full((4, 3), np.nan))
    update(operations, steps, np.arange(4, dtype=np.uint32))
    parameter, first, second = steps.read()
    assert np.all(parameter == 1)
    assert not np.any([first, second])


def test_the_half_copy_of_rows(operations: Operations) -> None:
    require_half_precision(operations)
    rng = np.random.default_rng(2)
    parameter = float32_values(rng, 31, 5)
    steps = Steps(operations, parameter, 34)
    half_copy = half_copy_of(operations, parameter)
    for step in range(4):
        steps.begin(OPTIONS, step, float32_values(rng, 34, 5))
        update(operations, steps, some_rows(rng, 31), half_copy=half_copy)
        assert np.array_equal(operations.read(half_copy), half_of(steps.read()[0]))
