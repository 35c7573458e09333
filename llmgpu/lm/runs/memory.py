"""How much memory a training run takes, found before any of it is taken.

The run's programs are recorded by the backend that will run it, over tensors that have shapes but
no memory. The sizes of all tensors add up, those of the backend's scratch memory included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from llmgpu.backend import Backend
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.backends import GpuOperations, NumpyOperations
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.trainer import Trainer

if TYPE_CHECKING:
    from llmgpu.gpu import Device

SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"


@dataclass
class MemoryUse:
    """Bytes of all tensors, and the largest of them with its name."""

    total: int = 0
    largest: int = 0
    largest_name: str = ""


class _Measuring(Operations):
    """Operations on tensors without memory, which are counted; programs can't be run."""

    use: MemoryUse

    def tensor(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Tensor:
        """Count a tensor; all its elements are one and the same number."""
        tensor = Tensor(name, shape, np.dtype(dtype), np.broadcast_to(np.zeros((), dtype), shape))
        self.use.total += tensor.nbytes
        if tensor.nbytes > self.use.largest:
            self.use.largest, self.use.largest_name = tensor.nbytes, name
        return tensor

    def parameters(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32
    ) -> Tensor:
        """Count a tensor of parameters."""
        return self.tensor(name, shape, dtype)

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Write nothing."""


class _MeasuringNumpy(_Measuring, NumpyOperations):
    def __init__(self) -> None:
        super().__init__()
        self.use = MemoryUse()


class _MeasuringGpu(_Measuring, GpuOperations):
    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.use = MemoryUse()

    def dispatch(
        self,
        file: str,
        groups: int,
        constants: Mapping[str, int] | None = None,
        /,
        **bindings: Tensor | AnyArray,
    ) -> None:
        """Compile and bind nothing."""

    def dispatch_generated(self, text: str, groups: int, /, **bindings: Tensor | AnyArray) -> None:
        """Compile and bind nothing."""


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> MemoryUse:
    """Return the memory that training takes on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind; or, if the CPU computes, all of
            them take more memory than is free.
    """
    device = backend.device
    operations = _MeasuringNumpy() if device is None else _MeasuringGpu(device)
    Trainer(operations, settings.config, settings.options, slots)
    use, limit = operations.use, operations.max_tensor_bytes
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
    """Return the bytes of memory that are free on this machine, None if it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None
    except (OSError, ValueError):
        return None
