"""The memory of a training run, computed before the run allocates memory.

The programs of the run are recorded over tensors that have shapes but no memory. The sizes of all
tensors are added up, scratch memory included. A sum that is too large ends the recording at once,
so recording is quick for any sizes.

A process also needs memory for tokenizing the text, for temporary arrays of operations, and for
copies of weights on their way to a device or a file.
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
from llmgpu.lm.model import drawn_ahead
from llmgpu.lm.ops.attention import BLOCK_SCORES
from llmgpu.lm.ops.operations import GpuOperations, Operations
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.optimizers.adamw import PIECE
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.trainer import Trainer
from llmgpu.memory import free_memory, has_limited_address_space

SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"
LAYER_BYTES = 64 << 10  # for the Python objects of a layer: tensors and recorded operations
NUMPY_BYTES = 64 << 20  # for reading and checking tokens, and for libraries
# A checkpoint has four float32 per parameter: weight, two moments, momentum of --sync-every.
SAVED_BYTES = 16
COPIES_SHARE = 0.5  # share of the free memory that copies for a checkpoint may take
GPU_BYTES = 256 << 20  # for the driver, compiled kernels and staging memory
# Upper bounds of the number of temporary arrays at a time: copies of a weight, of the attention
# scores of a block, of the widest activation, and of the piece that an optimizer updates.
_WEIGHT_COPIES, _SCORE_COPIES, _ACTIVATION_COPIES, _OPTIMIZER_COPIES = 2, 5, 6, 8


class _Measuring(Operations):
    """Operations on tensors without memory: `nbytes` grows, but programs can't run."""

    largest = Tensor("nothing", (0,), np.dtype(np.float32), None)
    backend: Backend
    free: int | None  # free bytes on the host; None: unknown

    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        self.largest = max(self.largest, tensor, key=lambda each: each.nbytes)
        if self.backend.is_software:
            require_free(self.nbytes + tensor.nbytes, self.free, "at least ")
        elif tensor.nbytes > sys.maxsize:  # NumPy can't make an array of this size
            self.require_bindable()
        # All elements share the memory of one number.
        return replace(tensor, data=np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape))

    @contextmanager
    def record(self, name: str) -> Iterator[Program]:
        """Record a program; raise DeviceError if a tensor is too large for the device."""
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
    """Records programs without kernels, so that no kernel is compiled or bound."""

    def dispatch(self, *call: object, **bindings: object) -> None:
        pass


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> int:
    """Return the bytes of all tensors of a training run on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind; or the CPU computes, and all
            tensors together are larger than the free memory.
    """
    device, free = backend.device, free_memory()
    # Recording 100,000 layers takes 30 s, so refuse a model that is far too large before recording.
    require_layers(settings.config, is_software=backend.is_software)
    operations = _Measuring() if device is None else _MeasuringGpu(device)
    operations.backend, operations.free = backend, free
    Trainer(operations, settings.config, settings.options, slots)
    operations.require_bindable()  # includes the tensors created while programs were recorded
    return operations.nbytes


def require_layers(config: ModelConfig, *, is_software: bool) -> None:
    """Raise DeviceError if the Python objects of layers exceed the free memory.

    is_software: the host's memory also holds the weights, so count these, too.
    """
    held = 4 * config.parameters if is_software else 0
    require_free(LAYER_BYTES * config.layers + held, free_memory(), "at least ")


def host_memory(settings: RunSettings, backend: Backend, tensor_bytes: int) -> int:
    """Return an upper bound of the host memory of the process in bytes, CPU tensors included.

    tensor_bytes: result of `training_memory`.
    """
    config, options = settings.config, settings.options
    rows = options.batch_size * config.seq_len
    largest = max(weight.size for weight in config.weights())
    # Several weights are drawn at a time, but only one at a time is loaded or uploaded.
    sizes = (weight.size for weight in config.weights())
    drawn = sum(nlargest(drawn_ahead(), sizes))
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
    # Add the copies of a checkpoint's tensors, if there is room. On a software adapter, the
    # tensors and their copies on the device are also in the host's memory.
    copies = SAVED_BYTES * config.parameters
    if backend.device is not None and backend.is_software:
        copies *= 2
    free = free_memory()
    return needed + (copies if has_room_for_copies(copies, free and free - needed) else 0)


def has_room_for_copies(nbytes: int, free: int | None) -> bool:
    """Whether `nbytes` bytes of copies fit into `COPIES_SHARE` of `free` bytes (None: unknown).

    False with a limited address space, because the heap of a second thread takes too much of it.
    """
    fits = free is None or nbytes <= COPIES_SHARE * free
    return fits and not has_limited_address_space()


def require_free(needed: int, free: int | None, qualifier: str = "") -> None:
    """Raise DeviceError if a run needs more than `free` bytes; None: free memory is unknown."""
    if free is not None and needed > free:
        raise DeviceError(
            f"the run needs {qualifier}{needed:,} bytes of memory, but {free:,} are free; {SMALLER}"
        )
