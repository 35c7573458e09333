"""How much memory a training run takes, found before any of it is taken.

The run's programs are recorded by the backend that will run it, over tensors that have shapes but
no memory. The sizes of all tensors add up, those of the backend's scratch memory included.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmgpu.backend import Backend
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.backends import GpuOperations, NumpyOperations
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.trainer import Trainer

SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"


class _Measuring(Operations):
    """Operations on tensors without memory, which are counted; programs can't be run."""

    largest = Tensor("nothing", (0,), np.dtype(np.float32), None)

    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        self.largest = max(self.largest, tensor, key=lambda each: each.nbytes)
        # All elements are one and the same number.
        return replace(tensor, data=np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape))

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Write nothing."""


class _MeasuringNumpy(_Measuring, NumpyOperations):
    """Programs of functions, which are never called."""


class _MeasuringGpu(_Measuring, GpuOperations):
    """Programs without kernels: none is compiled or bound."""

    def _append_kernel(self, *call: object) -> None:
        pass


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> int:
    """Return the bytes of memory that training takes on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind; or, if the CPU computes, all of
            them take more memory than is free.
    """
    device = backend.device
    operations = _MeasuringNumpy() if device is None else _MeasuringGpu(device)
    Trainer(operations, settings.config, settings.options, slots)
    largest, limit = operations.largest, operations.max_tensor_bytes
    if largest.nbytes > limit:
        raise DeviceError(
            f"the model does not fit: {largest.name} takes {largest.nbytes:,} bytes, "
            f"{backend.description} binds at most {limit:,}; {SMALLER}, or --device cpu"
        )
    free = free_memory()
    if backend.is_software and free is not None and operations.nbytes > free:
        raise DeviceError(
            f"the run needs {operations.nbytes:,} bytes of memory, {free:,} are free; {SMALLER}"
        )
    return operations.nbytes


def free_memory() -> int | None:
    """Return the bytes of memory that are free on this machine, None if it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None
    except (OSError, ValueError):
        return None
