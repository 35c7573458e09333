"""Recorders of programs, and functions that divide work.

Calling an operation appends the operation to a program. `Recorder`, the base of
`llmgpu.lm.ops.operations.Operations`, appends functions on arrays. `GpuRecorder` appends kernels
bound to buffers instead, so a program that runs a million times compiles and binds once. Both
classes have the operations for tensors of any shape: zeros, scaling, and conversions between single
and half precision.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import cycle
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmgpu.errors import DeviceError
from llmgpu.lm.ops.products import FixedProducts
from llmgpu.lm.ops.tensor import (
    AnyArray,
    FloatArray,
    Shape,
    Shapes,
    Tensor,
    group_shapes,
    places_of,
)

if TYPE_CHECKING:
    from llmgpu.gpu.adapters import Buffer
    from llmgpu.gpu.commands import Commands, Download
    from llmgpu.gpu.device import Device
    from llmgpu.gpu.kernel import BoundKernel

WORKGROUP_SIZE = 256  # threads of a workgroup, unless a kernel sets another number
LARGEST_HALF = np.float32(65504)
BLOCK_ELEMENTS = 1 << 18  # elements of a block of rows, so that temporary arrays fit in the cache
SNAPSHOT_PART = 64 << 20  # bytes of a snapshot that are read after each step
FOUR = 4  # elements of a vector: 16 bytes, or 8 in half precision
CONVERTED_VECTORS = 2  # vectors of four elements that a thread converts to another precision
STAGED = 5  # staging buffers for uploads: the host fills one while the device reads others

P = ParamSpec("P")
T = TypeVar("T")
AnyRecorder = TypeVar("AnyRecorder", bound="Recorder")
Step = Callable[[], None]
# A function that waits for a copy of tensors. It returns the numbers, an array (n,) that must not
# be changed, and a function that gives their memory back.
Read = Callable[[], tuple[FloatArray, Callable[[], None]]]


@dataclass
class Program:
    """Recorded operations on fixed tensors, in order.

    prepared: the device's commands for the next run, if `GpuRecorder.prepare` has recorded them.
    """

    name: str
    steps: list[Step] = field(default_factory=list)
    prepared: Commands | None = None


def recorded(
    compute: Callable[Concatenate[AnyRecorder, P], None],
) -> Callable[Concatenate[AnyRecorder, P], None]:
    """Decorator that turns a function on arrays into an operation, which records the call."""

    @wraps(compute)
    def record(self: AnyRecorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.append(partial(compute, self, *args, **kwargs))

    return record


class Transfers:
    """Copies float32 tensors to and from the host, many at a time, end to end in an (n,) array.

    This class copies arrays; `GpuTransfers` copies memory of a device.
    """

    def start_reading(self, tensors: Sequence[Tensor]) -> Read:
        """Start a copy of tensors, after all programs that were run before."""
        values = np.concatenate([tensor.array.reshape(-1) for tensor in tensors])
        return lambda: (values, lambda: None)

    def start_writing(self, tensors: Sequence[Tensor]) -> tuple[FloatArray, Callable[[], None]]:
        """Return an array (n,) to fill, and a function that copies the array to the tensors.

        Programs that run after the copy see the new numbers. Reading the array may be slow. At most
        two arrays may wait to be copied: copy one before the third call of `start_writing`.
        """
        ends = np.cumsum([tensor.size for tensor in tensors])
        values = np.empty(ends[-1], np.float32)

        def write() -> None:
            for tensor, own in zip(tensors, np.split(values, ends[:-1]), strict=True):
                tensor.array[...] = own.reshape(tensor.shape)

        return values, write


class Snapshot:
    """Copies of tensors in the host's memory, all from the same moment.

    arrays: the copies by the tensors' names. This class copies arrays; `GpuSnapshot` copies memory
    of a device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Allocate the memory once, for all later copies.

        ValueError if two tensors have one name.
        """
        self.tensors = tensors
        self.arrays = {tensor.name: np.empty(tensor.shape, tensor.dtype) for tensor in tensors}
        if len(self.arrays) < len(tensors):
            raise ValueError("two tensors of a snapshot have the same name")

    def take(self) -> None:
        """Begin to copy the tensors. `arrays` is complete as soon as `advance` returns True."""
        for tensor in self.tensors:
            np.copyto(self.arrays[tensor.name], tensor.array)

    def advance(self) -> bool:
        """Read the next part; return whether all parts have been read.

        Programs may run in between.
        """
        return True


class Recorder:
    """Tensors, and programs of functions on arrays.

    nbytes: bytes of all tensors created so far.
    products: computes matrix products; None: NumPy's library computes them.
    stack_elements: best number of elements of a stack of matrices that one operation works on; 0: a
        stack should have only one matrix.
    has_half_precision: whether operations accept float16 tensors.
    is_asynchronous: whether `run` returns before the program's end.
    max_tensor_bytes: size of the largest possible tensor.
    """

    stack_elements = 0
    has_half_precision = True
    is_asynchronous = False
    max_tensor_bytes = sys.maxsize

    def __init__(self, products: FixedProducts | None = None) -> None:
        self.products = products
        self.nbytes = 0
        self._scratch: dict[tuple[str, Shape, np.dtype[Any]], Tensor] = {}
        self._program: Program | None = None

    # Memory

    def tensor(self, name: str, shape: Shape, dtype: DTypeLike = np.float32) -> Tensor:
        """Create a tensor of zeros.

        Raises:
            DeviceError: the device can't allocate or bind a tensor of this size.
        """
        tensor = self._allocate(Tensor(name, shape, np.dtype(dtype), None))
        self.nbytes += tensor.nbytes
        return tensor

    def _allocate(self, tensor: Tensor) -> Tensor:
        """Return the tensor with memory, set to zero, as its `data`."""
        return replace(tensor, data=np.zeros(tensor.shape, tensor.dtype))

    def side_by_side(self, shapes: Shapes, dtype: DTypeLike = np.float32) -> dict[str, Tensor]:
        """Create tensors in the memory of a single tensor; return them by their names.

        Raises DeviceError if the device can't allocate or bind all of them together.
        """
        first, *more = shapes
        if not more:
            return {first: self.tensor(first, shapes[first], dtype)}
        elements = sum(map(places_of, shapes.values()))
        whole = self.tensor(f"{first} to {more[-1]}", (elements,), dtype)
        start, made = 0, {}
        for name, shape in shapes.items():
            part = whole.part(start, start + math.prod(shape)).reshaped(*shape)
            made[name] = replace(part, name=name)
            start += places_of(shape)
        return made

    def adjacent_tensors(
        self, shapes: Shapes, dtype: DTypeLike = np.float32, kinds: Sequence[Hashable] = ()
    ) -> list[Tensor]:
        """Create tensors with these names and shapes, in the order of `shapes`.

        On a device, tensors of one kind lie side by side in groups, so that one kernel computes a
        group. A group has up to `stack_elements` elements, or a single tensor. The places of
        tensors in a group do not depend on `dtype`. On the CPU, each tensor has its own memory.

        kinds: the kind of each tensor; by default its shape.

        Raises DeviceError if the device has too little memory.
        """
        return [self.tensor(name, shape, dtype) for name, shape in shapes.items()]

    def scratch(self, role: str, shape: Shape, dtype: DTypeLike = np.float32) -> Tensor:
        """Return memory that an operation may use until the next operation starts.

        All operations share the memory of a role, shape and dtype; its contents are undefined. A
        block of operations may use the memory together, see `LayerOperations.late_norm_sums`.
        """
        key = role, shape, cast("np.dtype[Any]", np.dtype(dtype))
        if key not in self._scratch:
            self._scratch[key] = self.tensor(f"{role} scratch", shape, dtype)
        return self._scratch[key]

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Copy an array to a tensor of the same size; programs that run later see its numbers."""
        tensor.array[...] = np.asarray(array, tensor.dtype).reshape(tensor.shape)

    def write_computed(
        self, tensors: Sequence[Tensor], compute: Callable[[], Iterable[AnyArray]]
    ) -> None:
        """Copy the arrays that `compute` returns to the tensors.

        A recorder that only measures memory does not call `compute`.
        """
        for tensor, array in zip(tensors, compute(), strict=True):
            self.write(tensor, array)

    def begin_read(self, tensor: Tensor) -> Callable[[], AnyArray]:
        """Start a copy of a tensor, after all programs that were run before.

        Returns a function that waits for the copy and returns it as an array.
        """
        copied = tensor.array.copy()
        return lambda: copied

    def read(self, tensor: Tensor) -> AnyArray:
        """Return a copy of a tensor, after all programs that were run before."""
        return self.begin_read(tensor)()

    def open_transfers(self, numbers: int) -> Transfers:
        """Return an object that transfers up to `numbers` numbers at a time, while programs run."""
        return Transfers()

    def open_snapshot(self, tensors: Sequence[Tensor]) -> Snapshot:
        """Return a snapshot with memory for these tensors.

        CapacityError if the device has too little.
        """
        return Snapshot(tensors)

    # Programs

    @contextmanager
    def record(self, name: str) -> Iterator[Program]:
        """Yield a new program; operations called inside the block are appended to it."""
        outer, self._program = self._program, Program(name)
        try:
            yield self._program
        finally:
            self._program = outer

    def append(self, step: Step) -> None:
        """Append a step to the program being recorded.

        Raises:
            RuntimeError: no program is being recorded.
        """
        if self._program is None:
            raise RuntimeError("an operation was called outside `record`")
        self._program.steps.append(step)

    def prepare(self, program: Program) -> None:
        """Prepare the next run of a program in advance, while the device is computing."""

    def run(self, program: Program) -> None:
        """Run a program.

        On a device, `run` only starts the program and does not wait for its end.
        """
        # Like a GPU, do not warn of numbers that are tiny or not finite.
        threads = nullcontext() if self.products is None else self.products.one_blas_thread()
        with np.errstate(all="ignore"), threads:
            for step in program.steps:
                step()

    def wait_for_runs(self, ahead: int) -> None:
        """Wait until at most `ahead` of the started programs are unfinished."""

    def over_blocks(self, compute: Callable[[slice], T], rows: int, width: int) -> list[T]:
        """Call `compute` for the blocks of `row_blocks`, in the threads of `products`, if any.

        Return the results in order.
        """
        work = [partial(compute, block) for block in row_blocks(rows, width)]
        if self.products is None:
            return [each() for each in work]
        return self.products.in_threads(work)

    # Zeros and conversions

    @recorded
    def fill_zero(self, tensor: Tensor) -> None:
        """Write zeros; any shape and type."""
        tensor.array[...] = 0

    @recorded
    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        """Round to the nearest half-precision number, at most 65504 in magnitude; NaN stays NaN.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """
        saturate_to_half(source.array, target.array)

    @recorded
    def round_to_half(self, source: Tensor, target: Tensor) -> None:
        """Round to the nearest half-precision number; from 65520 on, infinity; NaN stays NaN.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """
        np.copyto(target.array, source.array, casting="same_kind")

    @recorded
    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        """Write half-precision numbers as float32, which is exact.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """
        target.array[...] = source.array

    @recorded
    def scale(self, x: Tensor, out: Tensor, factor: float) -> None:
        """Write out = factor * x, two float32 tensors of the same shape."""
        np.multiply(x.array, np.float32(factor), out=out.array)


class GpuTransfers(Transfers):
    """Copies through staging memory, which the device and the host use in turns.

    Staging memory is reused. A copy runs after all programs that were run before.
    """

    def __init__(self, device: Device, numbers: int) -> None:
        """Allocate memory for writing up to `numbers` numbers at a time."""
        from llmgpu.gpu.commands import Staging

        self._device = device
        self._nbytes = 4 * numbers
        self._idle: list[Download] = []
        self._stagings = cycle([Staging(device, self._nbytes) for _ in range(STAGED)])

    def start_reading(self, tensors: Sequence[Tensor]) -> Read:
        from llmgpu.gpu.commands import Download

        download = self._idle.pop() if self._idle else Download(self._device)
        download.reserve(self._nbytes)
        download.start(*((tensor.buffer, tensor.nbytes) for tensor in tensors))

        def read() -> tuple[FloatArray, Callable[[], None]]:
            copied, unmap = download.mapped()

            def release() -> None:
                unmap()
                self._idle.append(download)

            return copied.view(np.float32), release

        return read

    def start_writing(self, tensors: Sequence[Tensor]) -> tuple[FloatArray, Callable[[], None]]:
        staging = next(self._stagings)
        size = sum(tensor.nbytes for tensor in tensors)

        def write() -> None:
            commands = self._device.record()
            offset = 0
            for tensor in tensors:
                staging.copy_to(commands, tensor.buffer, tensor.nbytes, source_offset=offset)
                offset += tensor.nbytes
            commands.submit()

        return staging.array()[:size].view(np.float32), write


# Memory of the device, and the array that receives the bytes of the memory.
_Piece: TypeAlias = "tuple[Buffer, NDArray[np.uint8]]"


class GpuSnapshot(Snapshot):
    """Copies made on the device at once, and read in parts while the device runs programs."""

    def __init__(self, device: Device, tensors: Sequence[Tensor]) -> None:
        from llmgpu.gpu.commands import Download

        super().__init__(tensors)
        self._device = device
        self._copies = [device.create_buffer(f"copy of {t.name}", t.nbytes) for t in tensors]
        # Pieces still to be read, and the part being read: several pieces, which have up to
        # SNAPSHOT_PART bytes together.
        self._unread: deque[_Piece] = deque()
        self._part: list[_Piece] = []
        self._download = Download(device)

    def take(self) -> None:
        commands = self._device.record()
        for tensor, copy in zip(self.tensors, self._copies, strict=True):
            source, nbytes = tensor.buffer, -(-tensor.nbytes // 4) * 4
            commands.copy(source.handle, copy.handle, nbytes, source.offset)
            content = self.arrays[tensor.name].reshape(-1).view(np.uint8)
            for start in range(0, len(content), SNAPSHOT_PART):
                piece = content[start : start + SNAPSHOT_PART]
                self._unread.append((copy.view(start, len(piece)), piece))
        commands.submit()

    def advance(self) -> bool:
        # The part was copied before the program of the last step, which the device computes while
        # the host waits for the part.
        self._download.finish(*(piece for _, piece in self._part))
        self._part, room = [], SNAPSHOT_PART
        while self._unread and (room := room - len(self._unread[0][1])) >= 0:
            self._part.append(self._unread.popleft())
        self._download.start(*((buffer, len(piece)) for buffer, piece in self._part))
        return not self._part


class GpuRecorder(Recorder):
    """Tensors on a device, and programs of bound kernels."""

    stack_elements = 1 << 25  # 128 MiB, enough to keep a large device busy
    is_asynchronous = True

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.has_half_precision = "shader-f16" in device.features
        self.max_tensor_bytes = device.max_binding_bytes
        self._uniforms: dict[bytes, Buffer] = {}
        self._runs: deque[object] = deque()
        self._commands: Commands  # steps append dispatches to these commands

    def _allocate(self, tensor: Tensor) -> Tensor:
        if tensor.is_half:
            self.device.choose_halves()
        return replace(tensor, data=self.device.create_buffer(tensor.name, tensor.nbytes))

    def adjacent_tensors(
        self, shapes: Shapes, dtype: DTypeLike = np.float32, kinds: Sequence[Hashable] = ()
    ) -> list[Tensor]:
        by_kind: dict[Hashable, dict[str, Shape]] = {}
        for (name, shape), kind in zip(shapes.items(), kinds or shapes.values(), strict=True):
            by_kind.setdefault(kind, {})[name] = shape
        most = min(self.stack_elements, self.max_tensor_bytes // 4)
        made: dict[str, Tensor] = {}
        for of_kind in by_kind.values():
            for group in group_shapes(of_kind, most):
                made |= self.side_by_side(group, dtype)
        return [made[name] for name in shapes]

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        values = np.asarray(array, tensor.dtype).reshape(tensor.shape)
        self.device.write(tensor.buffer, values)

    def begin_read(self, tensor: Tensor) -> Callable[[], AnyArray]:
        finish = self.device.begin_read(tensor.buffer, tensor.size, tensor.dtype.type)
        return lambda: finish().reshape(tensor.shape)

    def open_transfers(self, numbers: int) -> Transfers:
        return GpuTransfers(self.device, numbers)

    def open_snapshot(self, tensors: Sequence[Tensor]) -> Snapshot:
        return GpuSnapshot(self.device, tensors)

    def dispatch(
        self,
        file: str,
        groups: int,
        constants: Mapping[str, int | str] | None = None,
        /,
        **bindings: Tensor | AnyArray,
    ) -> None:
        """Append `groups` workgroups of the kernel in a file of wgsl/.

        With 0 workgroups, do nothing.

        A thread compiles the kernel; an error of the kernel is raised when the program runs.

        bindings: tensors, or arrays that this call copies to uniforms.
        """
        if not groups:
            return
        buffers = {
            name: value.buffer if isinstance(value, Tensor) else self._uniform(value)
            for name, value in bindings.items()
        }
        kernel = self.device.begin_kernel(file, constants or {})
        bound: list[BoundKernel] = []

        def step() -> None:
            # Bind at the first run: while the program is recorded, the kernel is still being
            # compiled.
            if not bound:
                bound.append(kernel.result().bind(**buffers))
            self._commands.dispatch(bound[0], groups)

        self.append(step)

    def prepare(self, program: Program) -> None:
        if program.prepared is None and not self.device.timing:
            program.prepared = self._commands_of(program)

    def single(self, name: str, tensor: Tensor) -> Tensor:
        """Return a float32 tensor unchanged, or scratch memory with a copy of a float16 tensor."""
        if not tensor.is_half:
            return tensor
        copy = self.scratch(f"{name} in float32", tensor.shape)
        self.cast_f16_to_f32(tensor, copy)
        return copy

    @contextmanager
    def rounding_to(self, name: str, out: Tensor) -> Iterator[Tensor]:
        """Yield a float32 tensor for the results of kernels that the block appends.

        The tensor is `out` itself, or scratch memory that is rounded into a float16 `out` after the
        block.
        """
        single = self.scratch(f"{name} in float32", out.shape) if out.is_half else out
        yield single
        if out.is_half:
            self.round_to_half(single, out)

    def run(self, program: Program) -> None:
        commands, program.prepared = program.prepared, None
        if commands is None or self.device.timing:  # prepared commands are not timed
            commands = self._commands_of(program)
        self._runs.append(commands.submit())

    def _commands_of(self, program: Program) -> Commands:
        self._commands = commands = self.device.record()
        for step in program.steps:
            step()
        del self._commands  # the attribute would keep all bound buffers in memory
        return commands

    def wait_for_runs(self, ahead: int) -> None:
        while len(self._runs) > ahead:
            self.device.wait(self._runs.popleft())

    def fill_zero(self, tensor: Tensor) -> None:
        # The kernel writes 4 bytes at a time, and a tensor of smaller elements may end inside them.
        # `kept` is the mask of the bytes after the tensor's end, which must not change.
        words, rest = -(-tensor.nbytes // 4), tensor.nbytes % 4
        kept = 0xFFFFFFFF << 8 * rest & 0xFFFFFFFF if rest else 0
        self.dispatch(
            "lm/00_fill_zero.wgsl", workgroups(-(-words // 4)), words=tensor, dims=dims(words, kept)
        )

    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        self._convert("cast_f32_to_f16", source, target)

    def round_to_half(self, source: Tensor, target: Tensor) -> None:
        self._convert("round_to_half", source, target)

    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        self._convert("cast_f16_to_f32", source, target)

    def _convert(self, kernel: str, source: Tensor, target: Tensor) -> None:
        if not self.has_half_precision:
            raise DeviceError(
                f"{self.device.name} has no half-precision numbers (shader-f16); use float32, "
                "another adapter or --device cpu"
            )
        file, size = f"lm/08_{kernel}.wgsl", dims(source.size)
        threads = -(-source.size // (4 * CONVERTED_VECTORS))
        settings = {"vectors": CONVERTED_VECTORS}
        self.dispatch(file, workgroups(threads), settings, src=source, dst=target, n=size)

    def scale(self, x: Tensor, out: Tensor, factor: float) -> None:
        groups, size = workgroups(x.size), dims(x.size)
        params = np.array([factor, 0, 0, 0], np.float32)
        self.dispatch("lm/08_scale.wgsl", groups, x=x, out=out, n=size, params=params)

    def _uniform(self, values: AnyArray) -> Buffer:
        """Return a uniform with these contents. Equal contents share one uniform."""
        content = np.ascontiguousarray(values).tobytes()
        if content not in self._uniforms:
            self._uniforms[content] = self.device.upload("parameters", values)
        return self._uniforms[content]


def as_single(array: AnyArray) -> FloatArray:
    """Return a float32 array unchanged, or a float32 copy of another array."""
    return array.astype(np.float32, copy=False)


def single_of(array: AnyArray) -> FloatArray:
    """Return a float32 array unchanged; for another array, return new float32 memory.

    After the results have been written to the new memory, `put` rounds them into `array`.
    """
    return array if array.dtype == np.float32 else np.empty(array.shape, np.float32)


def put(values: FloatArray, array: AnyArray) -> None:
    """Round `values` into an array.

    Do nothing if `values` is `array` itself, which `single_of` returns for float32 arrays.
    """
    if values is not array:
        np.copyto(array, values, casting="same_kind")


def saturate_to_half(source: FloatArray, out: AnyArray) -> None:
    """Round to half precision, at most `LARGEST_HALF` in magnitude; NaN stays NaN."""
    # NumPy's clip keeps NaN.
    np.copyto(out, np.clip(source, -LARGEST_HALF, LARGEST_HALF), casting="same_kind")


def dims(*values: int) -> NDArray[np.uint32]:
    """Return the contents of a uniform: whole numbers, padded to a multiple of four."""
    return np.array([*values, *[0] * (-len(values) % 4)], np.uint32)


def vector_fours(*widths: int) -> int:
    """Return how many vectors of four halves a thread reads at once.

    Returns 2 if all widths are multiples of 8, else 1.
    """
    return 1 if any(width % (2 * FOUR) for width in widths) else 2


def workgroups(threads: int) -> int:
    """Return how many workgroups of `WORKGROUP_SIZE` threads have at least `threads` threads."""
    return -(-threads // WORKGROUP_SIZE)


def thread_count(items: int, least: int = 1) -> int:
    """Return a number of threads for `items` items: a power of two, `least` or more.

    It is at most `WORKGROUP_SIZE`, WebGPU's default limit.
    """
    return min(max(1 << (items - 1).bit_length(), least), WORKGROUP_SIZE)


def row_blocks(rows: int, width: int, elements: int | None = None) -> Iterator[slice]:
    """Yield slices of one row or more that cover the rows of a (rows, width) array in order.

    elements: all slices but the last have elements // width rows, but at least one; by default,
        BLOCK_ELEMENTS.
    """
    step = max((elements or BLOCK_ELEMENTS) // max(width, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
