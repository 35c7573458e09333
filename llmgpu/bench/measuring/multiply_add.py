"""A kernel that does nothing but multiply and add: it shows a GPU's rate, and keeps one busy."""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.tensor import Tensor

MULTIPLY_ADD = "bench/multiply_add.wgsl"
WORKGROUP_SIZE = 256
HARDWARE_THREADS, HARDWARE_ROUNDS = 1 << 20, 1024
SOFTWARE_THREADS, SOFTWARE_ROUNDS = 1 << 14, 128
OPERATIONS_A_ROUND = 128  # 64 multiply-adds of a thread
FACTORS = (0.999, 0.001)  # values stay between 0 and what they begin as


def multiply_add_kernel(operations: GpuOperations, values: Tensor, rounds: int) -> None:
    """Replace values by what the kernel's header says; float32, (N,)."""
    operations.dispatch(
        MULTIPLY_ADD,
        -(-values.size // WORKGROUP_SIZE),
        {"ROUNDS": rounds},
        values=values,
        factors=np.array([*FACTORS, 0, 0], np.float32),
    )
