"""What others are a share of: that the kernels do the work they are timed for, and the timing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import Backend
from llmgpu.bench import engines
from llmgpu.bench.engines import (
    FACTORS,
    MATRICES,
    MATRIX_SUBGROUPS,
    Engine,
    copy_kernel,
    multiply_add_kernel,
    multiply_matrices_kernel,
    run_program,
    runs_within,
    time_runs,
    with_times,
)
from llmgpu.bench.results import KernelTimes, Result
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import load_driver
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from llmgpu.lm.ops.matrix_units import matrix_units
from llmgpu.lm.ops.operations import GpuOperations, Operations
from tests.bench.conftest import given


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(engines, "HARDWARE_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(engines, "PRODUCT_SIZE", 64)
    for name in ("SOFTWARE_THREADS", "HARDWARE_THREADS"):
        monkeypatch.setattr(engines, name, 256)
    monkeypatch.setattr(engines, "LIMIT_RUNS", 2)


@pytest.mark.parametrize("vectors", [1, 255, 2048, 2049, 5000])
def test_copy(any_device: Device, vectors: int) -> None:
    operations = GpuOperations(any_device)
    values = np.random.default_rng(vectors).standard_normal((vectors, 4)).astype(np.float32)
    source, target = (operations.tensor(name, (vectors, 4)) for name in ("source", "target"))
    operations.write(source, values)
    with operations.record("copy") as program:
        copy_kernel(operations, source, target)
    operations.run(program)
    np.testing.assert_array_equal(operations.read(target), values)


@pytest.mark.parametrize(("count", "rounds"), [(1, 1), (300, 7), (64, 100)])
def test_multiply_add(any_device: Device, count: int, rounds: int) -> None:
    operations = GpuOperations(any_device)
    start = np.random.default_rng(count).random(count)
    values = operations.tensor("values", (count,))
    operations.write(values, start)
    with operations.record("multiply-add") as program:
        multiply_add_kernel(operations, values, rounds)
    operations.run(program)
    chains = start[:, np.newaxis] + np.arange(16)
    factor, summand = (float(np.float32(value)) for value in FACTORS)
    for _ in range(4 * rounds):
        chains = chains * factor + summand
    np.testing.assert_allclose(operations.read(values), chains.sum(axis=1), rtol=3e-5)


@pytest.mark.parametrize("unit", [(16, 16, 16), (16, 8, 16), (8, 8, 8)])
def test_tint_compiles_what_multiplies_matrices(null_device: Any, unit: Any) -> None:
    sizes = dict(zip(("unit_rows", "unit_columns", "unit_inner"), unit, strict=True))
    text = compose("bench/multiply_matrices.wgsl", sizes).text
    load_driver("dawn").create_shader_module(null_device, text, "matrices")


def test_matrices_on_units(dawn_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MATRIX_ROUNDS", 5)
    units = matrix_units(dawn_device)
    if units is None:
        pytest.skip("no matrix units")
    (rows, columns, inner), rng = units.unit, np.random.default_rng(0)
    factors = [rng.standard_normal(shape) for shape in ((rows, inner), (inner, columns))]
    operations, count = GpuOperations(dawn_device), 3 * MATRIX_SUBGROUPS * MATRICES
    left, right = (operations.tensor("factor", f.shape, np.float16) for f in factors)
    product = operations.tensor("product", (count + 1, rows, columns))
    operations.write(product, np.full(product.shape, 7.0))
    for tensor, factor in zip((left, right), factors, strict=True):
        operations.write(tensor, factor)
    with operations.record("matrices") as program:
        multiply_matrices_kernel(operations, units, left, right, product)
    operations.run(program)
    found, (a, b) = operations.read(product), (f.astype(np.float16).astype(float) for f in factors)
    np.testing.assert_allclose(found[:-1], np.tile(5 * a @ b, (count, 1, 1)), atol=1e-3)
    assert (found[-1] == 7).all()


def test_figures_of_numpy(small: None) -> None:
    found = Engine(Backend(None, "small"), 0.0).limits
    assert found.bytes_per_second > 0
    assert found.operations_per_second > 0
    assert found.matrix_operations_per_second is None


def test_figures_of_a_device_are_measured_once(any_device: Device, small: None) -> None:
    engine = Engine(Backend(any_device, "small"), 0.0)
    found = engine.limits
    assert engine.limits is found
    assert found.bytes_per_second > 0
    assert found.operations_per_second > 0
    assert found.bytes_per_second != found.operations_per_second
    has_units = matrix_units(any_device) is not None
    assert (found.matrix_operations_per_second is not None) == has_units


def test_a_copy_takes_what_memory_there_is(
    device: Device, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SMALLEST_COPY_BYTES", 1 << 18)
    create, made = device.create_buffer, []

    def create_few(label: str, nbytes: int) -> Any:
        if nbytes > 1 << 18:
            raise DeviceError("no memory")
        if label.startswith("copy"):  # not what raises the clocks of a GPU
            made.append(nbytes)
        return create(label, nbytes)

    monkeypatch.setattr(device, "create_buffer", create_few)
    found = Engine(Backend(device, "little memory"), 0.0).limits
    assert found.bytes_per_second > 0
    assert made == [1 << 18, 1 << 18]
    monkeypatch.setattr(engines, "SMALLEST_COPY_BYTES", 1 << 19)
    with pytest.raises(DeviceError, match="no memory"):
        _ = Engine(Backend(device, "less memory"), 0.0).limits


def test_times_of_a_program(any_device: Device) -> None:
    operations = GpuOperations(any_device)
    tensor = operations.tensor("zeros", (1000,))
    with operations.record("zeros") as program:
        operations.fill_zero(tensor)
        operations.fill_zero(tensor)
    runs = time_runs(partial(run_program, operations, program), runs=3, budget=float("inf"))
    result = with_times(Result("kernels", any_device.name), runs)
    assert given(result.seconds).runs == tuple(run.total for run in runs)
    assert len(runs) == 3
    assert not any_device.timing
    timestamps = "timestamp-query" in any_device.features
    assert result.clock == ("gpu" if timestamps else "host")
    by_kernel = [{"fill_zero": run.total} if timestamps else {} for run in runs]
    assert [run.seconds for run in runs] == by_kernel
    median = {"fill_zero": result.median}
    assert result.kernels == (KernelTimes(median, result.median) if timestamps else None)


def test_one_run_at_least_and_none_beyond_the_budget() -> None:
    calls: list[int] = []
    assert [*runs_within(runs=5, budget=-1)] == [0]
    operations = Operations()
    with operations.record("nothing") as program:
        operations.append(lambda: calls.append(2))
    (run,) = time_runs(partial(run_program, operations, program), runs=5, budget=-1)
    assert (with_times(Result("kernels", "NumPy"), [run]).clock, run.seconds) == ("host", {})
    assert calls.count(2) > 1  # the warm-up's
