"""Recording programs on either backend, and how work is divided there.

`NumpyRecorder` appends functions on arrays to a program; `GpuRecorder` kernels bound to buffers, so
that a program that runs a million times compiles and binds once. Both have the operations on any
tensor: zeros, and conversions between single and half precision. The modules beside this one add
the others, one kind of operation a module; `backends` puts the kinds together.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.products import FixedProducts
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor
from llmgpu.lm.ops.transfers import GpuTransfers, NumpyTransfers, Transfers

if TYPE_CHECKING:
    from llmgpu.gpu import BoundKernel, Buffer, Commands, Device, Kernel

WORKGROUP_SIZE = 256  # threads of a workgroup where a kernel is not given another number
LARGEST_HALF = np.float32(65504)
BLOCK_ELEMENTS = 1 << 18  # of a block of rows: temporary arrays stay small, and in the cache

P = ParamSpec("P")
T = TypeVar("T")
Recorder = TypeVar("Recorder", bound="NumpyRecorder")


def recorded(
    compute: Callable[Concatenate[Recorder, P], None],
) -> Callable[Concatenate[Recorder, P], None]:
    """Make a function that computes on arrays an operation, which records the call instead."""

    @wraps(compute)
    def record(self: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.append(partial(compute, self, *args, **kwargs))

    return record


class NumpyRecorder(Operations):
    """Programs of functions on arrays."""

    stack_elements = 0
    has_half_precision = True
    is_asynchronous = False
    max_tensor_bytes = sys.maxsize

    def __init__(self, products: FixedProducts | None = None) -> None:
        """Start without tensors; products: None leaves matrix products to NumPy's library."""
        super().__init__()
        self.products = products

    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        return replace(tensor, data=np.zeros(tensor.shape, tensor.dtype))

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        tensor.array[...] = np.asarray(array, tensor.dtype).reshape(tensor.shape)

    def begin_read(self, tensor: Tensor) -> Callable[[], AnyArray]:
        copied = tensor.array.copy()
        return lambda: copied

    def open_transfers(self, numbers: int) -> Transfers:
        return NumpyTransfers()

    def run(self, program: Program) -> None:
        # Numbers that are tiny or not finite go through without a warning, as on a GPU.
        threads = nullcontext() if self.products is None else self.products.one_blas_thread()
        with np.errstate(all="ignore"), threads:
            for step in program.steps:
                step()

    def over_rows(
        self, rows: int, elements: int, compute: Callable[[slice], T], step: int = 1
    ) -> list[T]:
        """Compute rows in threads, if there are any; see `FixedProducts.over_rows`."""
        if self.products is None:
            return [compute(slice(0, rows))]
        return self.products.over_rows(rows, elements, compute, step)

    def over_blocks(self, compute: Callable[[slice], T], rows: int, width: int) -> list[T]:
        """Compute the blocks of `row_blocks` in threads; return what each gives, in their order."""

        def compute_part(part: slice) -> list[T]:
            return [
                compute(slice(part.start + block.start, min(part.start + block.stop, part.stop)))
                for block in row_blocks(part.stop - part.start, width)
            ]

        parts = self.over_rows(rows, rows * width, compute_part, block_rows(width))
        return [found for part in parts for found in part]

    def prepare(self, program: Program) -> None:
        """Do nothing: `run` carries out its program by itself."""

    def wait_for_runs(self, ahead: int) -> None:
        """Return at once: `run` has carried out its program."""

    @recorded
    def fill_zero(self, tensor: Tensor) -> None:
        tensor.array[...] = 0

    @recorded
    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        saturate_to_half(source.array, target.array)

    @recorded
    def round_to_half(self, source: Tensor, target: Tensor) -> None:
        np.copyto(target.array, source.array, casting="same_kind")

    @recorded
    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        target.array[...] = source.array

    @recorded
    def scale(self, x: Tensor, out: Tensor, factor: float) -> None:
        np.multiply(x.array, np.float32(factor), out=out.array)


class GpuRecorder(Operations):
    """Programs of bound kernels with their numbers of workgroups."""

    is_asynchronous = True

    stack_elements = 1 << 25  # 128 MiB: enough to keep a large device busy

    def __init__(self, device: Device) -> None:
        """Start without tensors on an open device."""
        super().__init__()
        self.device = device
        self._uniforms: dict[bytes, Buffer] = {}
        self._runs: deque[object] = deque()
        self._commands: Commands  # being recorded
        self._prepared: dict[int, tuple[Program, Commands]] = {}  # by the programs' identities

    @property
    def has_half_precision(self) -> bool:
        return "shader-f16" in self.device.features

    @property
    def max_tensor_bytes(self) -> int:
        return self.device.max_binding_bytes

    def _allocate(self, tensor: Tensor, *, uniform: bool) -> Tensor:
        create = self.device.create_uniform if uniform else self.device.create_buffer
        return replace(tensor, data=create(tensor.name, tensor.nbytes))

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        values = np.asarray(array, tensor.dtype).reshape(tensor.shape)
        self.device.write(tensor.buffer, values)

    def begin_read(self, tensor: Tensor) -> Callable[[], AnyArray]:
        finish = self.device.begin_read(tensor.buffer, tensor.size, tensor.dtype.type)
        return lambda: finish().reshape(tensor.shape)

    def open_transfers(self, numbers: int) -> Transfers:
        return GpuTransfers(self.device, numbers)

    def dispatch(
        self,
        file: str,
        groups: int,
        constants: Mapping[str, int] | None = None,
        /,
        **bindings: Tensor | AnyArray,
    ) -> None:
        """Append `groups` workgroups of the kernel in a file below wgsl/, unless there are none.

        bindings: a tensor, or an array that is written to a uniform now and never changes.
        """
        self._append_kernel(lambda: self.device.kernel(file, **(constants or {})), groups, bindings)

    def dispatch_generated(self, text: str, groups: int, /, **bindings: Tensor | AnyArray) -> None:
        """Append workgroups of a kernel whose text a generator wrote."""
        self._append_kernel(lambda: self.device.generated(text), groups, bindings)

    def prepare(self, program: Program) -> None:
        # Timed commands are submitted part by part as they are recorded.
        if not self.device.timing and id(program) not in self._prepared:
            self._prepared[id(program)] = program, self._commands_of(program)

    def through_single(self, outs: Mapping[str, Tensor], record: Callable[..., None]) -> None:
        """Record what writes float32 tensors, by name; half precision by way of scratch memory."""
        singles = {
            name: self.scratch(f"{name} in float32", out.shape) if out.is_half else out
            for name, out in outs.items()
        }
        record(**singles)
        for name, out in outs.items():
            if out.is_half:
                self.round_to_half(singles[name], out)

    def single(self, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor in float32: itself, or a copy in scratch memory, which is recorded."""
        if not tensor.is_half:
            return tensor
        copy = self.scratch(f"{name} in float32", tensor.shape)
        self.cast_f16_to_f32(tensor, copy)
        return copy

    def run(self, program: Program) -> None:
        prepared = self._prepared.pop(id(program), None)
        commands = self._commands_of(program) if prepared is None else prepared[1]
        self._runs.append(commands.submit())

    def _commands_of(self, program: Program) -> Commands:
        self._commands = commands = self.device.record()
        for step in program.steps:
            step()
        del self._commands  # it keeps all that it names in memory
        return commands

    def wait_for_runs(self, ahead: int) -> None:
        while len(self._runs) > ahead:
            self.device.wait(self._runs.popleft())

    def fill_zero(self, tensor: Tensor) -> None:
        # A tensor of small elements may end inside a 4-byte word, whose rest is kept.
        words, rest = -(-tensor.nbytes // 4), tensor.nbytes % 4
        kept = 0xFFFFFFFF << 8 * rest & 0xFFFFFFFF if rest else 0
        self.dispatch(
            "lm/00_fill_zero.wgsl", workgroups(-(-words // 4)), words=tensor, dims=dims(words, kept)
        )

    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        self._require_half_precision()
        self.dispatch(
            "lm/08_cast_f32_to_f16.wgsl",
            workgroups(source.size),
            src=source,
            dst=target,
            n=dims(source.size),
        )

    def round_to_half(self, source: Tensor, target: Tensor) -> None:
        self._require_half_precision()
        self.dispatch(
            "lm/08_round_to_half.wgsl",
            workgroups(-(-source.size // 4)),
            singles=source,
            words=target,
            n=dims(source.size),
        )

    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        self._require_half_precision()
        self.dispatch(
            "lm/08_cast_f16_to_f32.wgsl",
            workgroups(source.size),
            halves=source,
            singles=target,
            n=dims(source.size),
        )

    def scale(self, x: Tensor, out: Tensor, factor: float) -> None:
        self.dispatch(
            "lm/08_scale.wgsl",
            workgroups(x.size),
            x=x,
            out=out,
            n=dims(x.size),
            params=np.array([factor, 0, 0, 0], np.float32),
        )

    def _require_half_precision(self) -> None:
        if not self.has_half_precision:
            raise DeviceError(
                f"{self.device.name} has no half-precision numbers (shader-f16); use float32, "
                "another adapter or --device cpu"
            )

    def _append_kernel(
        self, compiled: Callable[[], Kernel], groups: int, bindings: Mapping[str, Tensor | AnyArray]
    ) -> None:
        if not groups:
            return
        buffers = {
            name: value.buffer if isinstance(value, Tensor) else self._uniform(value)
            for name, value in bindings.items()
        }
        self.append(partial(self._dispatch, compiled().bind(**buffers), groups))

    def _dispatch(self, kernel: BoundKernel, groups: int) -> None:
        self._commands.dispatch(kernel, groups)

    def _uniform(self, values: AnyArray) -> Buffer:
        """Return a uniform with these contents, the same for all that ask for equal ones."""
        content = np.ascontiguousarray(values).tobytes()
        if content not in self._uniforms:
            self._uniforms[content] = self.device.create_uniform("parameters", len(content))
            self.device.write(self._uniforms[content], values)
        return self._uniforms[content]


def as_single(array: AnyArray) -> FloatArray:
    """Return an array in float32: itself, or a copy."""
    return array.astype(np.float32, copy=False)


def single_of(array: AnyArray) -> FloatArray:
    """Return float32 memory for what is to be put in an array: the array itself, or another."""
    return array if array.dtype == np.float32 else np.empty(array.shape, np.float32)


def put(values: FloatArray, array: AnyArray) -> None:
    """Round what `single_of` returned to the array's type, if it is another."""
    if values is not array:
        np.copyto(array, values, casting="same_kind")


def saturate_to_half(source: FloatArray, out: AnyArray) -> None:
    """Write the nearest half-precision numbers of up to `LARGEST_HALF` in size; NaN stays NaN."""
    # NumPy's clip keeps NaN.
    np.copyto(out, np.clip(source, -LARGEST_HALF, LARGEST_HALF), casting="same_kind")


def dims(*values: int) -> NDArray[np.uint32]:
    """Return whole numbers as a kernel's uniform takes them, padded to a multiple of four."""
    return np.array([*values, *[0] * (-len(values) % 4)], np.uint32)


def workgroups(threads: int) -> int:
    """Return how many workgroups of `WORKGROUP_SIZE` threads have this many threads."""
    return -(-threads // WORKGROUP_SIZE)


def thread_count(items: int, least: int = 1) -> int:
    """Return a number of threads for `items` items: a power of two, `least` or more.

    The largest is `WORKGROUP_SIZE`, WebGPU's default limit.
    """
    return min(max(1 << (items - 1).bit_length(), least), WORKGROUP_SIZE)


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of one row or more that together are all rows of a (rows, width) array."""
    step = block_rows(width)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def block_rows(width: int) -> int:
    """Return how many rows of `width` elements a block has."""
    return max(BLOCK_ELEMENTS // max(width, 1), 1)
