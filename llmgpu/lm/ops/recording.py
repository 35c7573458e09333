"""Recording programs: what both sides of all operations stand on.

`Recorder` holds tensors and the program being recorded. `NumpyRecorder` appends functions to it,
`GpuRecorder` kernels bound to buffers, so that a program that runs a million times compiles and
binds once.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.tensor import Tensor

if TYPE_CHECKING:
    from llmgpu.gpu import BoundKernel, Buffer, Device, Kernel
    from llmgpu.gpu.device import Submission

Step = TypeVar("Step")


@dataclass
class Program(Generic[Step]):
    """Operations on fixed tensors, in order."""

    name: str
    steps: list[Step] = field(default_factory=list)


class Recorder(Generic[Step]):
    """Tensors by name, and the program that operations are appended to."""

    def __init__(self) -> None:
        """Begin without tensors; nothing is being recorded."""
        self.nbytes = 0  # of all tensors made
        self._scratch: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._program: Program[Step] | None = None

    @contextmanager
    def record(self, name: str) -> Iterator[Program[Step]]:
        """Append the operations called in the block to a new program, which is given to it."""
        outer, self._program = self._program, Program(name)
        try:
            yield self._program
        finally:
            self._program = outer

    def append(self, step: Step) -> None:
        """Append a step to the program being recorded.

        Raises:
            RuntimeError: none is.
        """
        if self._program is None:
            raise RuntimeError("an operation was called outside `record`")
        self._program.steps.append(step)

    def scratch(self, role: str, shape: tuple[int, ...]) -> Tensor:
        """Return float32 memory that an operation may use until the next one begins.

        It is shared by all operations that ask for the same role and shape; contents are undefined.
        """
        key = (role, shape)
        if key not in self._scratch:
            self._scratch[key] = self.tensor(f"{role} scratch", shape)
        return self._scratch[key]

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Make a tensor, zeros at first."""
        raise NotImplementedError


class NumpyRecorder(Recorder[Callable[[], None]]):
    """Programs are functions on arrays."""

    has_half_precision = True
    max_tensor_bytes = sys.maxsize

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Make a tensor, zeros at first."""
        tensor = Tensor(name, shape, np.dtype(dtype), np.zeros(shape, dtype))
        self.nbytes += tensor.nbytes
        return tensor

    def parameters(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Make a small tensor of numbers that the host writes between runs."""
        return self.tensor(name, shape, dtype)

    def write(self, tensor: Tensor, array: NDArray[Any]) -> None:
        """Copy an array of the tensor's size into it, before anything that runs later."""
        tensor.array[...] = np.asarray(array, tensor.dtype).reshape(tensor.shape)

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor after all that ran."""
        return tensor.array.copy()

    def run(self, program: Program[Callable[[], None]]) -> None:
        """Carry out a program; numbers that are not finite or tiny give no warning."""
        with np.errstate(all="ignore"):
            for step in program.steps:
                step()

    def wait_for_runs(self, ahead: int) -> None:
        """Return once at most `ahead` of the programs that were run are unfinished."""


class GpuRecorder(Recorder["tuple[BoundKernel, int]"]):
    """Programs are bound kernels with their numbers of workgroups."""

    def __init__(self, device: Device) -> None:
        """Begin without tensors on an open device."""
        super().__init__()
        self.device = device
        self._uniforms: dict[bytes, Buffer] = {}
        self._runs: deque[Submission] = deque()

    @property
    def has_half_precision(self) -> bool:
        """Whether kernels may read and write half-precision numbers."""
        return "shader-f16" in self.device.features

    @property
    def max_tensor_bytes(self) -> int:
        """Largest tensor that can be made."""
        return self.device.max_binding_bytes

    def tensor(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Make a tensor, zeros at first.

        Raises:
            DeviceError: the device can't hold or bind that much.
        """
        tensor = Tensor(name, shape, np.dtype(dtype), None)
        self.nbytes += tensor.nbytes
        buffer = self.device.create_buffer(name, tensor.nbytes)
        return Tensor(name, shape, np.dtype(dtype), buffer)

    def parameters(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Tensor:
        """Make a small tensor of numbers that the host writes between runs, bound as a uniform."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return Tensor(name, shape, np.dtype(dtype), self.device.create_uniform(name, size))

    def write(self, tensor: Tensor, array: NDArray[Any]) -> None:
        """Copy an array of the tensor's size into it, before anything that runs later."""
        values = np.asarray(array, tensor.dtype).reshape(tensor.shape)
        self.device.write(tensor.buffer, values)

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor after all that ran."""
        values = self.device.read(tensor.buffer, tensor.size, tensor.dtype.type)
        return values.reshape(tensor.shape)

    def dispatch(
        self,
        kernel: str | Kernel,
        groups: int,
        constants: Mapping[str, int] | None = None,
        **bindings: Tensor | NDArray[Any],
    ) -> None:
        """Append `groups` workgroups of a kernel, unless there are none.

        kernel: as `Device.kernel` takes it, ``lm/FILE.wgsl:KERNEL``; or a compiled one.
        constants: of a kernel that is named.
        bindings: a tensor, or an array that is written to a uniform now and never changes.
        """
        if not groups:
            return
        buffers = {
            name: value.buffer if isinstance(value, Tensor) else self._uniform(value)
            for name, value in bindings.items()
        }
        if isinstance(kernel, str):
            kernel = self.device.kernel(kernel, **(constants or {}))
        self.append((kernel.bind(**buffers), groups))

    def run(self, program: Program[tuple[BoundKernel, int]]) -> None:
        """Start a program and return without waiting for it."""
        commands = self.device.record()
        for kernel, groups in program.steps:
            commands.dispatch(kernel, groups)
        self._runs.append(self.device.submit(commands))

    def wait_for_runs(self, ahead: int) -> None:
        """Return once at most `ahead` of the programs that were run are unfinished."""
        while len(self._runs) > ahead:
            self.device.wait(self._runs.popleft())

    def _uniform(self, values: NDArray[Any]) -> Buffer:
        content = np.ascontiguousarray(values).tobytes()
        if content not in self._uniforms:
            self._uniforms[content] = self.device.create_uniform("parameters", len(content))
            self.device.write(self._uniforms[content], values)
        return self._uniforms[content]


def dims(*values: int) -> NDArray[np.uint32]:
    """Return whole numbers as a kernel's uniform takes them, padded to a multiple of four."""
    return np.array([*values, *[0] * (-len(values) % 4)], np.uint32)
