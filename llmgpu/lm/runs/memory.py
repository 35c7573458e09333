"""How much memory a training run takes, found before any of it is taken.

The programs are recorded over tensors that have shapes but no memory; their sizes add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import Backend
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.operations import NumpyOperations
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.trainer import Trainer

SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"


@dataclass
class MemoryUse:
    """Bytes of all tensors, and the largest of them with its name."""

    total: int = 0
    largest: int = 0
    largest_name: str = ""


class MeasuringOperations(NumpyOperations):
    """Operations on tensors without memory: what is recorded can't be run."""

    def __init__(self, max_tensor_bytes: int) -> None:
        """Measure for a device whose tensors have at most `max_tensor_bytes` bytes."""
        super().__init__()
        self.max_tensor_bytes = max_tensor_bytes
        self.use = MemoryUse()

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Take note of a tensor."""
        tensor = Tensor(name, shape, np.dtype(dtype), np.broadcast_to(np.zeros((), dtype), shape))
        self.use.total += tensor.nbytes
        if tensor.nbytes > self.use.largest:
            self.use.largest, self.use.largest_name = tensor.nbytes, name
        return tensor

    def write(self, tensor: Tensor, array: NDArray[Any]) -> None:
        """Write nothing."""


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> MemoryUse:
    """Return what training takes on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind, or, where the CPU computes, all of
            them are more than the memory that is free.
    """
    device = backend.device
    limit = NumpyOperations.max_tensor_bytes if device is None else device.max_binding_bytes
    operations = MeasuringOperations(limit)
    Trainer(operations, settings.config, settings.options, slots)
    use = operations.use
    if use.largest > limit:
        raise DeviceError(
            f"the model does not fit: {use.largest_name} takes {use.largest:,} bytes, "
            f"{backend.description} binds at most {limit:,}; {SMALLER}, or --device cpu"
        )
    free = free_memory()
    if backend.is_software and free is not None and use.total > free:
        raise DeviceError(
            f"the run needs {use.total:,} bytes of memory, {free:,} are free; {SMALLER}"
        )
    return use


def free_memory() -> int | None:
    """Return the bytes of memory that are free on this machine; None where it can't be told."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None
    except (OSError, ValueError):
        return None
