"""RMS normalisation against float64, and float64 against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.device import Device
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.tensor import Norm
from tests.lm.ops.checking import (
    assert_close,
    assert_rounded,
    float32_values,
    poisoned,
    poisoned_halves,
    run,
    tensor_of,
)
from tests.reference.lm import norm as reference

EPSILON = 1e-5
# One element; odd widths; threads without a row; partial sums of several blocks; the widest rows.
SHAPES = [(1, 1), (7, 1), (3, 7), (33, 64), (19, 129), (300, 257), (9001, 8), (2, 8192), (3, 8191)]

Array = NDArray[np.float64]


def inputs(shape: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Return x, weight and grad_out; rows of x differ in size."""
    rng = np.random.default_rng(sum(shape))
    sizes = np.exp(rng.uniform(-3, 3, (shape[0], 1))).astype(np.float32)
    x = float32_values(rng, *shape) * sizes
    return x.astype(np.float32).astype(np.float64), *(
        float32_values(rng, *size) for size in (shape[1:], shape)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(operations: Operations, shape: tuple[int, int]) -> None:
    x, weight, _ = inputs(shape)
    check_forward(operations, x, weight)


def test_rms_norm_of_extreme_rows(operations: Operations) -> None:
    x = np.outer([0.0, 1e-20, 1e-3, 1e4, 1e17], np.linspace(-1, 2, 37)).astype(np.float32)
    check_forward(operations, x.astype(np.float64), np.linspace(-3, 3, 37, dtype=np.float32))


def check_forward(operations: Operations, x: Array, weight: Array | NDArray[np.float32]) -> None:
    out = poisoned(operations, "out", x.shape)
    inverse_rms = poisoned(operations, "inverse_rms", (len(x),))
    tensors = [tensor_of(operations, "input", array) for array in (x, weight)]
    run(operations, lambda: operations.rms_norm(Norm(*tensors, out, inverse_rms), EPSILON))
    expected, expected_rms = reference.rms_norm(x, weight.astype(np.float64), EPSILON)
    assert_close(operations.read(out), expected)
    assert_close(operations.read(inverse_rms)[:, None], expected_rms[:, None])


@pytest.mark.parametrize("shape", [(7, 33), (19, 132), (3, 8192)])
def test_rms_norm_in_half_precision(operations: Operations, shape: tuple[int, int]) -> None:
    x, weight, _ = inputs(shape)
    out = poisoned_halves(operations, "out", shape)
    inverse_rms = poisoned(operations, "inverse_rms", (len(x),))
    tensors = [tensor_of(operations, "input", array) for array in (x, weight)]
    run(operations, lambda: operations.rms_norm(Norm(*tensors, out, inverse_rms), EPSILON))
    expected, expected_rms = reference.rms_norm(x, weight, EPSILON)
    assert_rounded(operations.read(out), expected)
    assert_close(operations.read(inverse_rms)[:, None], expected_rms[:, None])


def begun(shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return what grad_x and grad_weight hold before.

    grad_x is as large as the two terms that are added to it, which cancel in rows of one element.
    """
    x, weight, grad_out = inputs(shape)
    _, inverse_rms = reference.rms_norm(x, weight, EPSILON)
    grad_x = grad_out[::-1] * weight * inverse_rms[:, None]
    return grad_x.astype(np.float32).astype(np.float64), weight


def backward(operations: Operations, shape: tuple[int, int]) -> tuple[NDArray[np.float32], ...]:
    """Return (grad_x, grad_weight) added to what they held, with the oracle's r."""
    x, weight, grad_out = inputs(shape)
    _, inverse_rms = reference.rms_norm(x, weight, EPSILON)
    arrays = (x, weight, np.zeros(shape), inverse_rms, grad_out)
    *tensors, grad = (tensor_of(operations, "input", array) for array in arrays)
    gradients = [tensor_of(operations, "gradient", array) for array in begun(shape)]
    run(operations, lambda: operations.rms_norm_backward(Norm(*tensors), grad, *gradients))
    return operations.read(gradients[0]), operations.read(gradients[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_backward_adds(operations: Operations, shape: tuple[int, int]) -> None:
    x, weight, grad_out = inputs(shape)
    expected = reference.rms_norm_backward(x, weight, EPSILON, grad_out)
    for actual, before, added in zip(
        backward(operations, shape), begun(shape), expected, strict=True
    ):
        assert_close(actual, before + added)


# A workgroup takes one row of 8192 elements at a time, and 32 rows of 8, the last of them twice.
@pytest.mark.parametrize("shape", [(1, 4), (19, 132), (1031, 768), (16_500, 8), (3, 8192), (7, 33)])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@np.errstate(all="ignore")
def test_gradients_and_their_rounding(
    operations: Operations, shape: tuple[int, int], kind: type[np.floating[Any]]
) -> None:
    if kind is np.float16 and shape[1] % 4:
        pytest.skip("a kernel loads four numbers of half precision at once")
    x, weight, grad_out = inputs(shape)
    grad_out = grad_out.astype(kind).astype(np.float64)
    _, inverse_rms = reference.rms_norm(x, weight, EPSILON)
    half = poisoned_halves(operations, "half", shape)
    arrays = (x, weight, np.zeros(shape), inverse_rms, grad_out.astype(kind))
    *tensors, grad = (tensor_of(operations, "input", array) for array in arrays)
    grad_x, grad_weight = (tensor_of(operations, "gradient", array) for array in begun(shape))

    def record() -> None:
        norm = Norm(*tensors)
        operations.rms_norm_backward_to_half(norm, grad, grad_x, grad_weight, half)

    run(operations, record)
    expected = reference.rms_norm_backward(x, weight, EPSILON, grad_out)
    for actual, before, added in zip((grad_x, grad_weight), begun(shape), expected, strict=True):
        assert_close(operations.read(actual), before + added)
    assert_rounded(operations.read(half), operations.read(grad_x).astype(np.float64))


def test_half_precision_leaves_the_rows_after_the_last(operations: Operations) -> None:
    """The memory of 5 rows ends with other rows, which a device binds, too."""
    x, weight, grad_out = inputs((16, 8))
    given = [tensor_of(operations, "input", array) for array in (x, weight, grad_out)]
    out, half = (poisoned_halves(operations, name, x.shape) for name in ("out", "half"))
    inverse_rms = poisoned(operations, "inverse_rms", (len(x),))
    grad_x = tensor_of(operations, "grad_x", np.full(x.shape, 7.0))
    grad_weight = operations.tensor("grad_weight", weight.shape)
    rows = [t.rows(0, 5) for t in (given[0], out, inverse_rms, given[2], grad_x, half)]
    norm = Norm(rows[0], given[1], rows[1], rows[2])

    def record() -> None:
        operations.rms_norm(norm, EPSILON)
        operations.rms_norm_backward_to_half(norm, rows[3], rows[4], grad_weight, rows[5])

    run(operations, record)
    for tensor in (out, inverse_rms, half):
        found = np.isnan(operations.read(tensor).reshape(16, -1)).all(axis=1)
        np.testing.assert_array_equal(found, np.arange(16) >= 5)
    assert (operations.read(grad_x)[5:] == 7).all()
    expected = reference.rms_norm_backward(x[:5], weight, EPSILON, grad_out[:5])[1]
    assert_close(operations.read(grad_weight)[None], expected[None])


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("width", [132, 33])
@np.errstate(all="ignore")
def test_late_sums_have_the_same_bits(operations: Operations, width: int, most: int) -> None:
    """Of the gradients of three norms, in both precisions; one is added to twice."""
    shape = (300, width)
    x, weight, grad_out = inputs(shape)
    _, inverse_rms = reference.rms_norm(x, weight, EPSILON)
    given = [tensor_of(operations, "input", array) for array in (x, weight, inverse_rms, grad_out)]
    names = [f"{place} of norm {norm}" for norm in range(3) for place in range(3)]
    adjacent = operations.adjacent_tensors(dict.fromkeys(names, (width,)))
    others = [operations.tensor("in another buffer", (width,)) for _ in range(3)]
    outs = [operations.tensor("out", shape, kind) for kind in (np.float32, np.float32, np.float16)]
    makes_half = operations.has_half_precision or width % 4 == 0

    def record() -> None:
        for target in range(4):
            for norm, out in enumerate(outs):
                first, _, last = adjacent[3 * norm : 3 * norm + 3]
                gradient = (last, first, last, others[norm])[target]
                both = given[3], operations.tensor("grad_x", shape), gradient
                tensors = Norm(*given[:2], out, given[2])
                if norm == 0:
                    operations.rms_norm_backward(tensors, *both)
                elif makes_half:
                    operations.rms_norm_backward_to_half(tensors, *both, outs[2])

    def record_late() -> None:
        with operations.late_norm_sums(most):
            record()

    found = []
    for each in (record, record_late):
        for tensor in (*adjacent, *others):
            operations.write(tensor, np.full(width, 0.25, np.float32))
        run(operations, each)
        found.append([operations.read(tensor) for tensor in (*adjacent, *others)])
    assert all((sums == 0.25).all() for sums in found[0][1:9:3])  # no norm's gradients
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("targets", "dispatches"), [("abc", 1), ("aba", 2), ("abcd", 2)])
def test_late_sums_of_different_gradients_are_one_dispatch(
    device: Device, targets: str, dispatches: int
) -> None:
    operations = open_operations(device)
    shape = (8, 64)
    made = operations.adjacent_tensors(dict.fromkeys("abcd", (64,)))
    gradients = dict(zip("abcd", made, strict=True))
    tensors = [operations.tensor("tensor", size) for size in (shape, (64,), shape, (8,))]
    with operations.record("late sums") as program, operations.late_norm_sums(3):
        for target in targets:
            both = operations.tensor("grad_x", shape), gradients[target]
            operations.rms_norm_backward(Norm(*tensors), tensors[0], *both)
    assert len(program.steps) == len(targets) + dispatches


def test_gradients_repeat_bit_for_bit(operations: Operations) -> None:
    first, second = (backward(operations, (1031, 65)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)


def test_no_rows_are_no_work(operations: Operations) -> None:
    for actual, before in zip(backward(operations, (0, 5)), begun((0, 5)), strict=True):
        assert np.array_equal(actual, before)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5)])
def test_reference_gradients_are_finite_differences(shape: tuple[int, int]) -> None:
    x, weight, grad_out = inputs(shape)
    grad_x, grad_weight = reference.rms_norm_backward(x, weight, EPSILON, grad_out)

    def loss() -> float:
        return float(np.sum(grad_out * reference.rms_norm(x, weight, EPSILON)[0]))

    for array, gradient in ((x, grad_x), (weight, grad_weight)):
        for index in np.ndindex(array.shape):
            kept = array[index]
            step = 1e-6 * max(1.0, abs(kept))
            values = []
            for array[index] in (kept + step, kept - step):
                values.append(loss())
            array[index] = kept
            slope = (values[0] - values[1]) / (2 * step)
            assert slope == pytest.approx(gradient[index], rel=1e-6, abs=1e-7)
