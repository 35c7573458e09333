"""The memory of a training run, computed before any of it is allocated.

The backend of the run records the run's programs over tensors that have shapes but no memory, and
adds up the sizes of all tensors, scratch memory included. A sum that is too large ends the
recording at once, so recording is quick for any sizes.

Beside tensors, a process needs memory for tokenizing the text, for temporary arrays of operations,
and for copies of weights on their way to a device or a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest

import numpy as np

from llmgpu.backend import Backend
from llmgpu.errors import DeviceError
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import DRAWN_AHEAD
from llmgpu.lm.ops.attention import BLOCK_SCORES
from llmgpu.lm.ops.operations import GpuOperations, Operations
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.optimizers.adamw import PIECE
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.trainer import Trainer
from llmgpu.memory import free_memory
from llmgpu.processors import usable_processors

SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"
LAYER_BYTES = 64 << 10  # Python objects of a layer: its tensors and recorded operations
NUMPY_BYTES = 64 << 20  # for reading and checking tokens, and for the libraries at work
SAVED_BYTES = 16  # of each weight in a checkpoint: itself, two moments, a momentum of rounds
COPIES_SHARE = 0.5  # the share of the free memory that copies for a checkpoint may take
GPU_BYTES = 256 << 20  # for the driver, compiled kernels and staging memory
# Upper bounds of temporary arrays that exist at the same time: copies of a weight, of the attention
# scores of a block, of the widest activation, and of a piece of an optimizer's weight.
_WEIGHT_COPIES, _SCORE_COPIES, _ACTIVATION_COPIES, _OPTIMIZER_COPIES = 2, 5, 6, 8


class _Measuring(Operations):
    """Operations on tensors without memory; adds up their sizes and can't run programs."""

    largest = Tensor("nothing", (0,), np.dtype(np.float32), None)
    backend: Backend
    free: int | None  # bytes on the host

    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        self.largest = max(self.largest, tensor, key=lambda each: each.nbytes)
        if self.backend.is_software:
            require_free(self.nbytes + tensor.nbytes, self.free, "at least ")
        elif tensor.nbytes > sys.maxsize:  # NumPy has no arrays of so many bytes
            self.require_bindable()
        # All elements share the memory of one number.
        return replace(tensor, data=np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape))

    @contextmanager
    def record(self, name: str) -> Iterator[Program]:
        """Record a program; DeviceError if a tensor is already too large for the device."""
        self.require_bindable()
        with super().record(name) as program:
            yield program

    def require_bindable(self) -> None:
        """Raise DeviceError if the device can't bind the largest tensor."""
        largest, limit = self.largest, self.max_tensor_bytes
        if largest.nbytes > limit:
            raise DeviceError(
                f"the model does not fit: {largest.name} takes {largest.nbytes:,} bytes, but "
                f"{self.backend.description} binds at most {limit:,}; {SMALLER}, or --device cpu"
            )

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Write nothing."""

    def write_computed(self, *call: object) -> None:
        """Compute nothing."""


class _MeasuringGpu(_Measuring, GpuOperations):
    """Records programs without kernels, so none is compiled or bound."""

    def dispatch(self, *call: object, **bindings: object) -> None:
        pass


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> int:
    """Return the bytes of all tensors of a training run on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind; or, if the CPU computes, all of
            them take more memory than is free.
    """
    device, free = backend.device, free_memory()
    # Recording 100,000 layers takes 30 s, so a model that is far too large is refused before that.
    require_layers(settings.config, is_software=backend.is_software)
    operations = _Measuring() if device is None else _MeasuringGpu(device)
    operations.backend, operations.free = backend, free
    Trainer(operations, settings.config, settings.options, slots)
    operations.require_bindable()  # also tensors made while programs were recorded
    return operations.nbytes


def require_layers(config: ModelConfig, *, is_software: bool) -> None:
    """Raise DeviceError if the layers' objects alone, or with the weights, take too much memory.

    is_software: the weights are in the memory of the host.
    """
    held = 4 * config.parameters if is_software else 0
    require_free(LAYER_BYTES * config.layers + held, free_memory(), "at least ")


def host_memory(settings: RunSettings, backend: Backend, tensor_bytes: int) -> int:
    """Return an upper bound of the host memory of the process in bytes, CPU tensors included.

    tensor_bytes: what `training_memory` returned.
    """
    config, options = settings.config, settings.options
    rows = options.batch_size * config.seq_len
    largest = max(weight.size for weight in config.weights())
    # Several weights are drawn at a time. They are loaded and uploaded one after the other.
    sizes = (weight.size for weight in config.weights())
    drawn = sum(nlargest(min(DRAWN_AHEAD, usable_processors()), sizes))
    temporary = 4 * max(_WEIGHT_COPIES * largest, largest + drawn)
    if backend.device is None:
        row_scores = options.batch_size * config.heads * config.seq_len
        scores = min(max(BLOCK_SCORES, row_scores), row_scores * config.seq_len)
        activations = rows * max(config.dim, config.ffn_dim)
        temporary = max(
            temporary,
            _SCORE_COPIES * 4 * scores,
            _ACTIVATION_COPIES * 4 * activations,
            _OPTIMIZER_COPIES * 4 * min(PIECE, largest),
        )
        needed = NUMPY_BYTES + temporary + tensor_bytes
    else:
        needed = GPU_BYTES + temporary + (tensor_bytes if backend.is_software else 0)
    # Copies of a checkpoint's tensors, if there is room for them.
    copies = SAVED_BYTES * config.parameters
    free = free_memory()
    return needed + (copies if has_room_for_copies(copies, free and free - needed) else 0)


def has_room_for_copies(nbytes: int, free: int | None) -> bool:
    """Whether `free` bytes are enough to copy a checkpoint of `nbytes` and train on meanwhile."""
    return free is None or nbytes <= COPIES_SHARE * free


def require_free(needed: int, free: int | None, qualifier: str = "") -> None:
    """Raise DeviceError if a run needs more than `free` bytes; None: free memory is unknown."""
    if free is not None and needed > free:
        raise DeviceError(
            f"the run needs {qualifier}{needed:,} bytes of memory, but {free:,} are free; {SMALLER}"
        )
