"""Tensors side by side in memory, and the operations that compute several of them as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops import optimizer
from llmgpu.lm.ops.operations import GpuOperations, Operations
from llmgpu.lm.ops.optimizer import HYPER, NORM_BUFFERS, NORMS_AT_ONCE, WeightUpdate
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import Tensor, adjacent_runs, joined
from llmgpu.lm.optimizers.adamw import ADAMW, Moments
from llmgpu.lm.optimizers.muon import MUON, Momentum
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters
from tests.lm.ops.checking import float32_values, poisoned, run, tensor_of

# Of three kinds; 7 x 9 and 5 elements do not fill their places, so the next tensor does not follow.
SHAPES = {
    "a": (8, 16),
    "b": (256,),
    "c": (8, 16),
    "d": (7, 9),
    "e": (8, 16),
    "f": (7, 9),
    "g": (256,),
    "h": (5,),
}


def filled(operations: Operations, tensors: list[Tensor], seed: int = 0) -> list[NDArray[Any]]:
    """Write other numbers into each tensor, and return them."""
    rng = np.random.default_rng(seed)
    arrays = [float32_values(rng, *tensor.shape) for tensor in tensors]
    for tensor, array in zip(tensors, arrays, strict=True):
        operations.write(tensor, array)
    return arrays


def runs_of(operations: Operations, *columns: list[Tensor]) -> list[list[int]]:
    """Return the runs that a device is expected to find, or single tensors on the CPU."""
    runs = adjacent_runs([*zip(*columns, strict=True)])
    if isinstance(operations, GpuOperations):
        return runs
    assert runs == [[k] for k in range(len(columns[0]))]
    return runs


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensors_of_one_kind_follow_each_other(operations: Operations, dtype: type) -> None:
    if dtype is np.float16 and not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    tensors = operations.adjacent_tensors(SHAPES, dtype)
    assert {each.name: each.shape for each in tensors} == SHAPES
    arrays = [array.astype(dtype) for array in filled(operations, tensors)]
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(operations.read(tensor), array)
    runs = runs_of(operations, tensors)
    if not isinstance(operations, GpuOperations):
        return
    assert runs == [[0, 2, 4], [1, 6], [3], [5], [7]]
    for members in runs:
        together = joined([tensors[k] for k in members])
        expected = np.concatenate([arrays[k].reshape(-1) for k in members])
        found = operations.read(together.reshaped(expected.size))
        np.testing.assert_array_equal(found, expected)


def test_groups_are_similar_and_no_larger_than_a_stack(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not operations.stack_elements:
        pytest.skip("the CPU has a tensor of its own for each")
    monkeypatch.setattr(operations, "stack_elements", 520)
    equal = {f"tensor {k}": (128,) for k in range(5)}
    assert runs_of(operations, operations.adjacent_tensors(equal)) == [[0, 1, 2], [3, 4]]
    # A single tensor may be larger; the kinds, not the shapes, decide.
    mixed = {"small": (128,), "large": (9, 128), "last": (2, 64)}
    tensors = operations.adjacent_tensors(mixed, kinds=[0, 0, 0])
    arrays = filled(operations, tensors)
    assert runs_of(operations, tensors) == [[0], [1], [2]]
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(operations.read(tensor), array.astype(np.float32))


def test_a_run_ends_where_any_column_does(operations: Operations) -> None:
    shapes = {f"tensor {k}": (64, 2) for k in range(4)}
    first, second = (operations.adjacent_tensors(shapes) for _ in range(2))
    turned = [second[k] for k in (0, 1, 3, 2)]
    columns = (first, turned), (turned,), (first[::-1],)
    found = [runs_of(operations, *each) for each in columns]
    if isinstance(operations, GpuOperations):
        assert found == [[[0, 1], [2], [3]], [[0, 1, 3], [2]], [[0], [1], [2], [3]]]


def test_zeros_leave_out_the_neighbours(operations: Operations) -> None:
    tensors = operations.adjacent_tensors(SHAPES)
    arrays = filled(operations, tensors)
    cleared = {0, 2, 3, 6, 7}
    run(operations, lambda: operations.fill_zeros([tensors[k] for k in sorted(cleared)]))
    for k, (tensor, array) in enumerate(zip(tensors, arrays, strict=True)):
        expected = np.zeros_like(array) if k in cleared else array
        np.testing.assert_array_equal(operations.read(tensor), expected)


@pytest.mark.usefixtures("few_partial_norms")
def test_norms_of_many_gradients_are_those_of_each(operations: Operations) -> None:
    """More runs than buffers, a run of more gradients than a dispatch has, and short ones."""
    count = NORMS_AT_ONCE + 3
    shapes: dict[str, tuple[int, ...]] = {f"equal {k}": (4, 32) for k in range(count)}
    shapes |= {f"other {k}": (k + 1, 64) for k in range(NORM_BUFFERS + 2)}
    shapes |= {"odd": (13,), "last": (4, 32)}
    gradients = operations.adjacent_tensors(shapes)
    filled(operations, gradients)
    sizes = (len(shapes), optimizer.NORM_PARTIALS)
    partials, alone = (poisoned(operations, name, sizes) for name in "ab")
    run(operations, lambda: operations.reduce_norms(gradients, partials))

    def one_by_one() -> None:
        for k, gradient in enumerate(gradients):
            operations.reduce_norm_sq(gradient, alone, k)

    run(operations, one_by_one)
    found = operations.read(partials)
    np.testing.assert_array_equal(found, operations.read(alone))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("half", [False, True], ids=["single", "copy"])
def test_steps_of_adjacent_weights_are_those_of_each(operations: Operations, half: bool) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    hyper = [operations.tensor("hyper", (), HYPER) for _ in range(2)]
    for k, tensor in enumerate(hyper):
        operations.write(tensor, hyper_parameters(TrainOptions(), 3, 0.1 * (k + 1), 1.0, 0))
    stats = tensor_of(operations, "stats", np.array([0.5, 0, 0, 0]))

    def weights() -> tuple[list[tuple[Moments, WeightUpdate]], list[Tensor]]:
        parameters, gradients = (operations.adjacent_tensors(SHAPES) for _ in range(2))
        copies: list[Any] = [None] * len(SHAPES)
        if half:
            copies = operations.adjacent_tensors(SHAPES, np.float16)
        states = Moments.make(operations, parameters)
        firsts, seconds = ([getattr(state, name) for state in states] for name in Moments.elements)
        for seed, tensors in enumerate((parameters, gradients, firsts)):
            filled(operations, tensors, seed)
        for tensor, array in zip(seconds, filled(operations, seconds, 3), strict=True):
            operations.write(tensor, abs(array))
        # Weights 2 and 4 follow one another, but differ in decay; 6 follows 1 with other numbers.
        steps = [
            (state, WeightUpdate(parameters[k], gradients[k], stats, hyper[k == 6], k != 4, copy))
            for k, (state, copy) in enumerate(zip(states, copies, strict=True))
        ]
        return steps, [*parameters, *firsts, *seconds, *(copies if half else [])]

    (together, changed), (alone, expected) = weights(), weights()

    def one_by_one() -> None:
        for state, update in alone:
            operations.update_weight(state, update)

    programs = [
        recorded_steps(operations, lambda: ADAMW.record(operations, together)),
        recorded_steps(operations, one_by_one),
    ]
    if isinstance(operations, GpuOperations):
        assert [len(program.steps) for program in programs] == [len(SHAPES) - 1, len(SHAPES)]
    for tensor, other in zip(changed, expected, strict=True):
        np.testing.assert_array_equal(operations.read(tensor), operations.read(other))


def recorded_steps(operations: Operations, record: Any) -> Program:
    with operations.record("steps") as program:
        record()
    operations.run(program)
    return program


@np.errstate(under="ignore")
@pytest.mark.parametrize("half", [False, True], ids=["single", "copy"])
def test_muons_steps_of_adjacent_weights_are_those_of_each(
    operations: Operations, half: bool
) -> None:
    if half and not operations.has_half_precision:
        pytest.skip("the device has no half precision")
    hyper = operations.tensor("hyper", (), HYPER)
    options = TrainOptions(optimizer="muon", weight_decay=0.3)
    operations.write(hyper, hyper_parameters(options, 3, 0.1, 1.0, 0))
    stats = tensor_of(operations, "stats", np.array([0.5, 0, 0, 0]))
    shapes = {f"weight {k}": (16, 16) for k in range(4)}

    def moved(*, together: bool) -> tuple[list[NDArray[Any]], int]:
        parameters, gradients = (operations.adjacent_tensors(shapes) for _ in range(2))
        copies: list[Any] = [None] * len(shapes)
        if half:
            copies = operations.adjacent_tensors(shapes, np.float16)
        states = Momentum.make(operations, parameters)
        momenta = [state.momentum for state in states]
        rng = np.random.default_rng(2)
        for tensor in (*parameters, *gradients, *momenta):
            operations.write(tensor, rng.standard_normal(tensor.shape, np.float32))
        steps = [
            (state, WeightUpdate(parameters[k], gradients[k], stats, hyper, True, copies[k]))
            for k, state in enumerate(states)
        ]
        groups = [steps] if together else [[step] for step in steps]
        made = [
            recorded_steps(operations, lambda group=group: MUON.record(operations, group))
            for group in groups
        ]
        changed = [*parameters, *momenta, *(copies if half else [])]
        return [operations.read(each) for each in changed], sum(len(p.steps) for p in made)

    (found, fewer), (expected, more) = moved(together=True), moved(together=False)
    if isinstance(operations, GpuOperations):
        assert fewer == more / len(shapes)
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-3 if half else 1e-5, atol=1e-5)
