"""Getting a GPU's clocks up, which fall while it has little to do.

What is timed one by one, with the host's work between, leaves a GPU idle most of the time; without
this its kernels were seen to take three times as long.
"""

from __future__ import annotations

import time
from typing import Any

from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.multiply_add import (
    HARDWARE_ROUNDS,
    HARDWARE_THREADS,
    multiply_add_kernel,
)
from llmgpu.lm.ops.backends import GpuOperations

BUSY_SECONDS = 0.3
QUEUED = 4  # runs, so that there is no pause between two


def raise_clocks(engine: Engine, seconds: float = BUSY_SECONDS) -> None:
    """Keep a GPU computing for so long; where a CPU computes do nothing."""
    device = engine.backend.device
    if device is None or engine.backend.is_software:
        return
    keep_busy(GpuOperations(device), HARDWARE_THREADS, HARDWARE_ROUNDS, seconds)


def keep_busy(operations: Any, threads: int, rounds: int, seconds: float) -> None:
    """Queue runs of the arithmetic kernel until the time is over, and wait for them."""
    values = operations.tensor("busy", (threads,))
    with operations.record("keep busy") as program:
        multiply_add_kernel(operations, values, rounds)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        operations.run(program)
        operations.wait_for_runs(QUEUED)
    operations.wait_for_runs(0)
