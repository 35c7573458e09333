"""What an engine's memory and arithmetic can do, measured: what kernels' figures are a share of.

The fastest of several runs counts, since these are meant as bounds. Each is measured once for an
engine while its backend is open.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend
from llmgpu.bench.measuring.clocks import raise_clocks
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import time_program
from llmgpu.bench.measuring.multiply_add import (
    HARDWARE_ROUNDS,
    HARDWARE_THREADS,
    OPERATIONS_A_ROUND,
    SOFTWARE_ROUNDS,
    SOFTWARE_THREADS,
    multiply_add_kernel,
)
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.backends import GpuOperations, NumpyOperations, open_operations
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.recording import dims
from llmgpu.lm.ops.tensor import Tensor

COPY = "bench/copy.wgsl"
HARDWARE_COPY_BYTES = 1 << 30  # far beyond caches
CPU_COPY_BYTES = 128 << 20
SMALLEST_COPY_BYTES = 1 << 20
PRODUCT_SIZE = 1024  # of the square matrices that NumPy multiplies
WORKGROUP_SIZE = 256
VECTORS_A_THREAD = 8
RUNS = 10
BUDGET = 1.0

_measured: WeakKeyDictionary[Backend, dict[str, float]] = WeakKeyDictionary()


def measured_bandwidth(engine: Engine) -> float:
    """Return the bytes a second, read and written, that a copy reaches on an engine.

    Raises:
        DeviceError: the device has not even the memory for a small one.
    """
    return _once(engine, "bandwidth", lambda: _copy_rate(open_operations(engine.backend.device)))


def measured_rate(engine: Engine) -> float:
    """Return the float32 operations a second that an engine reaches, a multiply-add being two.

    On NumPy it is a matrix product's, the only multiply-adds that NumPy has.
    """
    return _once(engine, "rate", lambda: _arithmetic_rate(engine))


def copy_kernel(operations: GpuOperations, source: Tensor, target: Tensor) -> None:
    """Target = source, any shape of a multiple of 16 bytes."""
    vectors = source.nbytes // 16
    operations.dispatch(
        COPY,
        -(-vectors // (WORKGROUP_SIZE * VECTORS_A_THREAD)),
        source=source,
        target_vectors=target,
        copy_dims=dims(vectors),
    )


def _once(engine: Engine, what: str, measure: Callable[[], float]) -> float:
    figures = _measured.setdefault(engine.backend, {})
    if what not in figures:
        raise_clocks(engine)
        figures[what] = measure()
    return figures[what]


def _copy_rate(operations: Operations) -> float:
    """Copy as much as there is memory for, and no more than it takes."""
    nbytes = _copy_bytes(operations)
    while True:
        try:
            source, target = (_float_tensor(operations, name, nbytes) for name in ("from", "to"))
            break
        except DeviceError:
            if nbytes <= SMALLEST_COPY_BYTES:
                raise
            nbytes //= 2
    with operations.record("copy") as program:
        if isinstance(operations, GpuOperations):
            copy_kernel(operations, source, target)
        else:
            operations.append(lambda: np.copyto(target.array, source.array))
    return 2 * source.nbytes / _fastest(operations, program)


def _copy_bytes(operations: Operations) -> int:
    on_cpu = not isinstance(operations, GpuOperations) or operations.device.is_software
    wanted = CPU_COPY_BYTES if on_cpu else HARDWARE_COPY_BYTES
    return min(wanted, operations.max_tensor_bytes // 256 * 256)


def _float_tensor(operations: Operations, name: str, nbytes: int) -> Tensor:
    tensor = operations.tensor(f"copy {name}", (nbytes // 4,))
    if isinstance(operations, NumpyOperations):
        tensor.array[...] = 1.0  # pages of untouched memory are one and the same page
    return tensor


def _arithmetic_rate(engine: Engine) -> float:
    operations = open_operations(engine.backend.device)
    if not isinstance(operations, GpuOperations):
        return _product_rate(operations)
    software = engine.is_software_adapter
    threads = SOFTWARE_THREADS if software else HARDWARE_THREADS
    rounds = SOFTWARE_ROUNDS if software else HARDWARE_ROUNDS
    values = operations.tensor("multiply-add values", (threads,))
    with operations.record("multiply-add") as program:
        multiply_add_kernel(operations, values, rounds)
    return threads * rounds * OPERATIONS_A_ROUND / _fastest(operations, program)


def _product_rate(operations: Operations) -> float:
    left = np.full((PRODUCT_SIZE, PRODUCT_SIZE), 0.5, np.float32)
    out: NDArray[np.float32] = np.empty_like(left)

    def multiply() -> None:
        np.matmul(left, left, out=out)

    with operations.record("matrix product") as program:
        operations.append(multiply)
    return 2 * PRODUCT_SIZE**3 / _fastest(operations, program)


def _fastest(operations: Operations, program: Program) -> float:
    return min(time_program(operations, program, RUNS, BUDGET).seconds)
