"""Helpers for tests of an operation: inputs, poisoned outputs, one run, comparison with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import Tensor

FLOAT32_TOLERANCE = 1e-5
HALF_WEIGHTS_TOLERANCE = 2e-3
HALF_MAX = 65519  # the largest number that is rounded to a finite one, but for fractions


def tensor_of(operations: Operations, name: str, array: NDArray[Any]) -> Tensor:
    """Return a tensor with the array's shape, type (float64 becomes float32) and content."""
    dtype = np.float32 if array.dtype == np.float64 else array.dtype
    tensor = operations.tensor(name, array.shape, dtype)
    operations.write(tensor, array)
    return tensor


def poisoned(operations: Operations, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a float32 tensor full of NaN, so that an element left unwritten shows."""
    return tensor_of(operations, name, np.full(shape, np.nan))


def poisoned_halves(operations: Operations, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a float16 tensor full of NaN; skip the test where there is no half precision."""
    if not operations.has_half_precision:
        pytest.skip("the adapter has no half-precision numbers")
    return tensor_of(operations, name, np.full(shape, np.nan, np.float16))


def assert_rounded(actual: NDArray[Any], reference: NDArray[np.float64]) -> None:
    """Check half-precision results up to a rounding; numbers beyond the range must be infinite."""
    expected = reference.astype(np.float32)
    expected[abs(expected) > HALF_MAX] *= np.inf
    np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=1.01e-3, atol=6e-8)


def run(operations: Operations, record: Callable[[], None]) -> None:
    """Record operations and run them once."""
    with operations.record("test") as program:
        record()
    operations.run(program)


def assert_close(
    actual: NDArray[Any], reference: NDArray[np.float64], tolerance: float = FLOAT32_TOLERANCE
) -> None:
    """Check |error| <= tolerance * (|reference| + RMS of the reference's row), element by element.

    The message has the first bad index, both values and how many are bad.
    """
    assert actual.shape == reference.shape
    rms = np.sqrt(np.mean(np.square(reference), axis=-1, keepdims=True))
    allowed = tolerance * (np.abs(reference) + rms)
    bad = ~(np.abs(actual.astype(np.float64) - reference) <= allowed)
    if bad.any():
        index = tuple(int(k) for k in np.argwhere(bad)[0])
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} differ, the first at {index}: "
            f"{actual[index]!r} instead of {reference[index]!r} +- {allowed[index]:.3g}"
        )


def float32_values(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return normal random numbers that float32 holds exactly, as float64."""
    return rng.standard_normal(shape).astype(np.float32).astype(np.float64)
