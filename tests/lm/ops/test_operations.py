"""The operations of each backend, and the CPU engine's results for any threads and numbers.

The other tests in this folder compare each operation with float64.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.cpu import build
from llmgpu.cpu.library import library
from llmgpu.lm.ops import operations as operations_module
from llmgpu.lm.ops.operations import (
    NORM_ROWS,
    QUERIES,
    EngineOperations,
    GpuOperations,
    Operations,
    open_operations,
)
from llmgpu.lm.ops.products import FixedProducts
from llmgpu.lm.ops.recording import Recorder
from llmgpu.lm.ops.tensor import AttentionShape
from tests.lm.ops.all_operations import LARGE, Results, Tensors, run_all

needs_engine = pytest.mark.skipif(library() is None, reason="the CPU engine is not used")
ON_TENSORS = {"fill_zero", "cast_f32_to_f16", "round_to_half", "cast_f16_to_f32", "scale"}
# Made of other operations on every backend.
COMPOSED = {"linear", "linear_backward_input", "linear_backward_weight", "multiply"}
IN_C = {
    "activate",
    "activate_backward",
    "attention",
    "attention_backward",
    "cross_entropy",
    "multiply_matrices",
    "reduce_norm_sq",
    "rms_norm",
    "rms_norm_backward",
    "rotary",
    "update_weight",
}


def declared() -> set[str]:
    """Return the names of all operations: the public functions of all families."""
    families = set(Operations.__mro__[1:]) - set(Recorder.__mro__)
    return ON_TENSORS | {name for family in families for name in vars(family) if name[0] != "_"}


def overridden(backend: type[Operations]) -> set[str]:
    return {name for name in declared() if getattr(backend, name) is not getattr(Operations, name)}


def test_the_gpu_has_a_kernel_for_every_operation() -> None:
    assert overridden(GpuOperations) == declared() - COMPOSED


def test_the_cpu_engine_has_the_operations_of_the_table() -> None:
    assert overridden(EngineOperations) == IN_C


def test_every_operation_is_documented() -> None:
    assert not [name for name in declared() if not getattr(Operations, name).__doc__]


def results_of(operations: EngineOperations) -> Results:
    return run_all(Tensors(operations, np.random.default_rng(1)), LARGE)


def test_sizes_of_memory_are_those_of_the_engine() -> None:
    for file, name, value in (
        ("products.c", "BLOCK", QUERIES),
        ("rows.c", "NORM_ROWS", NORM_ROWS),
    ):
        assert f"#define {name} {value} " in (build.FOLDER / file).read_text()


@needs_engine
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    one, *others = (results_of(EngineOperations(FixedProducts(n))) for n in (1, 2, 5))
    for other in others:
        for name, expected in one.items():
            np.testing.assert_array_equal(other[name].view(np.uint32), expected.view(np.uint32))


@pytest.mark.slow
@needs_engine
def test_bits_do_not_depend_on_the_vectors_of_the_processor(tmp_path: Path) -> None:
    build.build(tmp_path / "plain.so", ["-DLLMGPU_PLAIN"])
    program = ["-m", "tests.lm.ops.all_operations"]
    plain, other = (
        subprocess.run(
            [sys.executable, *program, str(path)], capture_output=True, check=True
        ).stdout
        for path in (tmp_path / "plain.so", build.LIBRARY)
    )
    assert plain == other


@needs_engine
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-40])
def test_numbers_that_are_not_finite_are_where_numpy_has_them(value: float) -> None:
    def change(array: NDArray[np.float32]) -> None:
        array.flat[rng.integers(array.size, size=3)] = value

    shape, found = AttentionShape(2, 9, 2, 1, 6), []
    for operations in (open_operations(None), open_operations(None, in_c=True)):
        rng = np.random.default_rng(2)
        found.append(run_all(Tensors(operations, rng, change), shape, 11))
    for name, expected in found[0].items():
        if name in ("gq", "gk", "gv"):  # NumPy multiplies what a query does not see by 0
            assert np.isfinite(found[1][name])[np.isfinite(expected)].all(), name
            continue
        for kind in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(kind(found[1][name]), kind(expected), err_msg=name)


@needs_engine
def test_without_openblas_numpy_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "sgemm", lambda: None)
    shape = AttentionShape(2, 9, 2, 1, 6)
    found = [
        run_all(Tensors(operations, np.random.default_rng(3)), shape, 11)
        for operations in (EngineOperations(FixedProducts(2)), open_operations(None))
    ]
    for name, expected in found[1].items():
        np.testing.assert_allclose(found[0][name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
