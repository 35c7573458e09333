"""Scaling of the loss: when the scale changes, and what happens in a step that overflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from llmgpu.lm import updates
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.trainer import StepResult, Trainer
from llmgpu.lm.updates import FIRST_SCALE, GROWTH_STEPS, LARGEST_SCALE, LossScaling
from tests.lm.samples import read_weights
from tests.lm.test_trainer import SMALL, random_batch

pytestmark = pytest.mark.usefixtures("few_partial_norms")

OPTIONS = TrainOptions(batch_size=4, steps=20, precision="f16", learning_rate=1e-2)


def scaling(operations: Operations | None = None) -> LossScaling:
    return LossScaling(operations or open_operations(None))


def test_an_overflow_halves_the_scale() -> None:
    made = scaling()
    made.good_steps = 5
    assert made.end_step(overflowed=True)
    assert (made.scale, made.good_steps, made.skipped) == (FIRST_SCALE / 2, 0, 1)


def test_workers_take_the_lowest_scale() -> None:
    operations = open_operations(None)
    first, second = scaling(operations), scaling(operations)
    for made in (first, second):
        made.end_step(overflowed=False)
    second.end_step(overflowed=True)
    read = [operations.read(made.tensor) for made in (first, second)]
    first.take_lowest(read)
    assert (first.scale, first.good_steps, first.skipped) == (FIRST_SCALE / 2, 0, 1)
    np.testing.assert_array_equal(operations.read(first.tensor), read[1])


def test_the_scale_doubles_after_many_good_steps() -> None:
    made = scaling()
    for _ in range(GROWTH_STEPS):
        assert made.scale == FIRST_SCALE
        assert made.end_step(overflowed=False)
    assert (made.scale, made.good_steps, made.skipped) == (2 * FIRST_SCALE, 0, 0)
    made.scale, made.good_steps = LARGEST_SCALE, GROWTH_STEPS - 1
    made.end_step(overflowed=False)
    assert made.scale == LARGEST_SCALE


def test_no_scale_below_one_is_tried() -> None:
    made = scaling()
    made.scale = 1.0
    assert not made.end_step(overflowed=True)
    assert (made.scale, made.skipped) == (1.0, 0)


def test_the_tensor_has_all_that_is_resumed() -> None:
    made, resumed = scaling(), scaling()
    made.end_step(overflowed=True)
    made.end_step(overflowed=False)
    resumed.restore(made.tensor.array)
    assert (resumed.scale, resumed.good_steps, resumed.skipped) == (FIRST_SCALE / 2, 1, 1)


def half_trainer(operations: Operations, grad_accum: int = 1) -> Trainer:
    if not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    trainer = Trainer(operations, SMALL, replace(OPTIONS, grad_accum=grad_accum), slots=8)
    trainer.model.initialise(3)
    return trainer


def take(trainer: Trainer, steps: int) -> None:
    for step in range(trainer.step, trainer.step + steps):
        trainer.take_step([random_batch(SMALL, 4, step)], 1e-2)


@np.errstate(all="ignore")
def test_an_overflowing_step_changes_nothing_and_training_recovers(operations: Operations) -> None:
    trainer = half_trainer(operations)
    assert trainer.updates.loss_scaling is not None
    trainer.updates.loss_scaling.scale = 2.0**30
    before = read_weights(trainer.model)
    take(trainer, 1)
    for name, values in read_weights(trainer.model).items():
        np.testing.assert_array_equal(values, before[name])
    (result,) = trainer.results(1)
    assert result.is_skipped and not result.is_bad and np.isfinite(result.loss)
    take(trainer, 19)
    assert trainer.updates.loss_scaling.skipped < 20
    last = trainer.results(1)[0]
    assert not last.is_skipped and not last.is_bad
    assert last.loss < result.loss


@np.errstate(all="ignore")
def test_steps_that_begin_before_an_overflow_is_known_are_taken_again(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "GROWTH_STEPS", 1)
    taken = []
    for waits in (True, False):
        trainer = half_trainer(operations, grad_accum=2)
        assert trainer.updates.loss_scaling is not None
        trainer.updates.loss_scaling.scale = 2.0**21
        for step in range(0, 10, 2):
            batches = [random_batch(SMALL, 4, step), random_batch(SMALL, 4, step + 1)]
            trainer.take_step(batches, 1e-2)
            if waits:  # the next step knows whether this step has overflowed
                trainer.results(1)
        state = {each.name: trainer.reader(None)(each.name) for each in trainer.state_tensors()}
        taken.append((trainer.results(5), read_weights(trainer.model) | state))
    (results, expected), (again, found) = taken
    skipped = [result.is_skipped for result in results]
    assert skipped[0] and not all(skipped) and True in skipped[skipped.index(False) :]
    assert str(again) == str(results)  # NaN differs from itself
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@np.errstate(all="ignore")
def test_results_are_the_same_if_the_next_step_starts_before_they_are_read(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "GROWTH_STEPS", 1)
    at_once, late = half_trainer(operations), half_trainer(operations)
    expected, found = [], []
    for trainer in (at_once, late):
        assert trainer.updates.loss_scaling is not None
        trainer.updates.loss_scaling.scale = 2.0**21
    read: Callable[[], list[StepResult]] = list
    for _ in range(8):
        take(at_once, 1)
        expected += at_once.results(1)
        take(late, 1)
        found += read()
        read = late.begin_results(1)
    found += read()
    skipped = [result.is_skipped for result in expected]
    assert skipped[0] and not all(skipped)
    assert str(found) == str(expected)  # NaN differs from itself


@np.errstate(all="ignore")
def test_the_scale_does_not_change_the_gradient_norm(operations: Operations) -> None:
    norms = []
    for scale in (2.0**10, 2.0**16):
        trainer = half_trainer(operations)
        assert trainer.updates.loss_scaling is not None
        trainer.updates.loss_scaling.scale = scale
        take(trainer, 1)
        norms.append(trainer.results(1)[0].grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.slow
@np.errstate(all="ignore")
def test_a_resumed_trainer_takes_the_same_steps(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "GROWTH_STEPS", 3)
    whole, first, second = (half_trainer(operations) for _ in range(3))
    for trainer in (whole, first):
        assert trainer.updates.loss_scaling is not None
        trainer.updates.loss_scaling.scale = 2.0**30
    take(whole, 16)
    take(first, 10)
    second.model.load(read_weights(first.model).__getitem__)
    state = {each.name: first.reader(None)(each.name) for each in first.updates.state_tensors()}
    second.write_state(state)
    second.step = first.step
    take(second, 6)
    expected = read_weights(whole.model)
    for name, values in read_weights(second.model).items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)
    assert second.updates.scale == whole.updates.scale
