"""What an engine's memory and arithmetic can do, measured: what kernels' rates are a share of.

The fastest of several runs counts, since these are meant as bounds. Each is measured once for an
engine, while its backend is open. The kernel that does nothing but multiply and add also keeps a
GPU busy, so that it does not clock down before something short is timed.
"""

from __future__ import annotations

import time
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from llmgpu.backend import Backend
from llmgpu.bench.engines import Engine
from llmgpu.bench.results import Limits
from llmgpu.bench.timing import time_program
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.backends import GpuOperations, open_operations
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.recording import dims
from llmgpu.lm.ops.tensor import Tensor

COPY, MULTIPLY_ADD = "bench/copy.wgsl", "bench/multiply_add.wgsl"
WORKGROUP_SIZE = 256
VECTORS_A_THREAD = 8
HARDWARE_COPY_BYTES = 1 << 30  # far beyond caches
CPU_COPY_BYTES = 128 << 20
SMALLEST_COPY_BYTES = 1 << 20
HARDWARE_THREADS, HARDWARE_ROUNDS = 1 << 20, 1024
SOFTWARE_THREADS, SOFTWARE_ROUNDS = 1 << 14, 128
OPERATIONS_A_ROUND = 128  # 64 multiply-adds of a thread
FACTORS = (0.999, 0.001)  # values stay between 0 and what they were
PRODUCT_SIZE = 1024  # of the square matrices that NumPy multiplies
RUNS, BUDGET = 10, 1.0
BUSY_SECONDS = 0.3
QUEUED_RUNS = 4  # so that there is no pause between two

_measured: WeakKeyDictionary[Backend, Limits] = WeakKeyDictionary()


def measure_limits(engine: Engine) -> Limits:
    """Return the bytes that a copy reads and writes a second, and the float32 operations a second.

    A multiply-add counts as two operations. On NumPy they are those of a matrix product, the only
    multiply-adds that NumPy has.

    Raises:
        DeviceError: the device has no memory even for a small copy.
    """
    if engine.backend not in _measured:
        operations = open_operations(engine.backend.device)
        raise_clocks(engine)
        bandwidth = _copy_rate(operations)
        raise_clocks(engine)
        _measured[engine.backend] = Limits(bandwidth, _arithmetic_rate(operations))
    return _measured[engine.backend]


def copy_kernel(operations: GpuOperations, source: Tensor, target: Tensor) -> None:
    """Target = source, any shape of a multiple of 16 bytes."""
    vectors = source.nbytes // 16
    groups = -(-vectors // (WORKGROUP_SIZE * VECTORS_A_THREAD))
    operations.dispatch(COPY, groups, source=source, target_vectors=target, copy_dims=dims(vectors))


def multiply_add_kernel(operations: GpuOperations, values: Tensor, rounds: int) -> None:
    """Replace values by what the kernel's header says; float32, (N,)."""
    groups, factors = -(-values.size // WORKGROUP_SIZE), np.array([*FACTORS, 0, 0], np.float32)
    operations.dispatch(MULTIPLY_ADD, groups, {"ROUNDS": rounds}, values=values, factors=factors)


def raise_clocks(engine: Engine) -> None:
    """Keep a GPU busy for a moment so that it does not clock down; do nothing on a CPU."""
    device = engine.backend.device
    if device is not None and not engine.backend.is_software:
        keep_busy(GpuOperations(device), HARDWARE_THREADS, HARDWARE_ROUNDS, BUSY_SECONDS)


def keep_busy(operations: GpuOperations, threads: int, rounds: int, seconds: float) -> None:
    """Queue runs of the arithmetic kernel until the time is over, and wait for them."""
    values = operations.tensor("busy", (threads,))
    with operations.record("keep busy") as program:
        multiply_add_kernel(operations, values, rounds)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        operations.run(program)
        operations.wait_for_runs(QUEUED_RUNS)
    operations.wait_for_runs(0)


def _copy_rate(operations: Operations) -> float:
    """Copy as much as there is memory for, and no more than it takes."""
    is_hardware = isinstance(operations, GpuOperations) and not operations.device.is_software
    wanted = HARDWARE_COPY_BYTES if is_hardware else CPU_COPY_BYTES
    nbytes = min(wanted, operations.max_tensor_bytes // 256 * 256)
    while True:
        try:
            source, target = (operations.tensor(f"copy {i}", (nbytes // 4,)) for i in range(2))
            break
        except DeviceError:
            if nbytes <= SMALLEST_COPY_BYTES:
                raise
            nbytes //= 2
    with operations.record("copy") as program:
        if isinstance(operations, GpuOperations):
            copy_kernel(operations, source, target)
        else:
            # Untouched pages are one and the same page, which a cache would hold.
            source.array[...] = target.array[...] = 1.0
            operations.append(lambda: np.copyto(target.array, source.array))
    return 2 * source.nbytes / _fastest(operations, program)


def _arithmetic_rate(operations: Operations) -> float:
    with operations.record("arithmetic") as program:
        if isinstance(operations, GpuOperations):
            threads, rounds = HARDWARE_THREADS, HARDWARE_ROUNDS
            if operations.device.is_software:
                threads, rounds = SOFTWARE_THREADS, SOFTWARE_ROUNDS
            count = threads * rounds * OPERATIONS_A_ROUND
            values = operations.tensor("multiply-add values", (threads,))
            multiply_add_kernel(operations, values, rounds)
        else:
            count = 2 * PRODUCT_SIZE**3
            left = np.full((PRODUCT_SIZE, PRODUCT_SIZE), 0.5, np.float32)
            product = np.empty_like(left)
            operations.append(partial(np.matmul, left, left, product))
    return count / _fastest(operations, program)


def _fastest(operations: Operations, program: Program) -> float:
    return min(time_program(operations, program, RUNS, BUDGET).seconds)
