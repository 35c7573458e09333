"""The interface of a WebGPU driver, which hides all differences between wgpu and Dawn.

Both packages follow one Python API for adapters, buffers, bind groups, pipelines and encoders, so
the other modules use the handles of a driver directly.

This module and the drivers import no NumPy, so an adapter is opened while another thread imports
NumPy.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, ClassVar

from llmgpu.errors import DeviceError
from llmgpu.processors import set_blas_variables
from llmgpu.spelling import spelled

# The platform's own APIs, since OpenGL adapters lack features that kernels need.
NATIVE_BACKENDS = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}.get(sys.platform, ["Vulkan"])
SHADER_STAGE_COMPUTE = 4
MATRIX_FEATURE = "subgroup-matrix"  # products of small matrices by subgroups


class BufferUsage(IntFlag):
    """Uses of a buffer, with the numbers of WebGPU's specification."""

    MAP_READ = 1
    MAP_WRITE = 2
    COPY_SRC = 4
    COPY_DST = 8
    UNIFORM = 64
    STORAGE = 128
    INDIRECT = 256
    QUERY_RESOLVE = 512


@dataclass(frozen=True, order=True)
class MatrixShape:
    """A product of matrix units: (rows, inner) @ (inner, columns).

    operand, sum: types of the factors and of the product, such as f16 and f32.
    """

    operand: str
    sum: str
    rows: int
    columns: int
    inner: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.inner} {self.operand} to {self.sum}"


def set_variables() -> None:
    """Set the environment variables for drivers, and the variables that NumPy's import sets.

    Call `set_variables` before starting a thread that opens a device: a driver that reads the
    environment while another thread sets a variable reads freed memory and may end the process.
    """
    # A C library prints a warning if the variable is not set.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    set_blas_variables()


class BufferMap(ABC):
    """A pending or finished mapping of the start of a buffer into the host's memory."""

    @abstractmethod
    def wait(self) -> bool:
        """Block until all earlier submissions have finished; return whether mapping succeeded."""

    @abstractmethod
    def memory(self) -> memoryview:
        """Return the mapped bytes, which are invalid after `unmap`."""

    @abstractmethod
    def unmap(self) -> None:
        """Unmap the memory; all views become invalid."""


class FastPass:
    """Records dispatches into a compute pass in a quarter of the time of the public calls.

    The caller keeps every argument alive until the commands are submitted. Errors are raised when
    the encoder is finished.
    """

    def __init__(self, compute_pass: Any, lib: Any, ffi: Any) -> None:
        """Record into `compute_pass` with a driver's C functions. The caller owns the pass."""
        self._pass = compute_pass._internal
        self._lib = lib
        self._no_offsets = ffi.NULL

    def set(self, pipeline: Any, bind_group: Any) -> None:
        """Choose the pipeline and its bind group 0."""
        lib, group = self._lib, bind_group._internal
        lib.wgpuComputePassEncoderSetPipeline(self._pass, pipeline._internal)
        lib.wgpuComputePassEncoderSetBindGroup(self._pass, 0, group, 0, self._no_offsets)

    def dispatch(self, x: int, y: int) -> None:
        """Dispatch x * y workgroups."""
        self._lib.wgpuComputePassEncoderDispatchWorkgroups(self._pass, x, y, 1)

    def dispatch_indirect(self, buffer: Any, offset: int) -> None:
        """Dispatch; the three u32 at a byte offset of a buffer are the workgroups by dimension."""
        self._lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect(
            self._pass, buffer._internal, offset
        )


class Driver(ABC):
    """A WebGPU implementation.

    name: the name in LLMGPU_DRIVER and in ``llmgpu info``. errors: the base class of the driver's
    errors. binding: the package's module with C functions: without checks in `lib`, with checks in
    `libf`.
    """

    name: str
    errors: type[Exception]
    binding: Any
    # Id of the process that used adapters. All drivers share the variable, because all of them use
    # the system's driver, which a forked process can't use.
    _process: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._is_used = False
        self._listing = threading.Lock()

    def is_usable(self) -> bool:
        """Whether this process can use adapters.

        It can't if its parent used adapters before the fork.
        """
        return self._process in (None, os.getpid())

    def list_handles(self) -> list[Any]:
        """Return the driver's objects of all adapters but OpenGL's, in any order.

        Any thread may call this. If the program has created the package's instance itself, the
        driver uses that instance as it is.

        Raises:
            DeviceError: the process was forked from a process that had used adapters.
        """
        if not self.is_usable():
            raise DeviceError(
                "this process was forked from one that had used GPU adapters, so it can't use "
                "them: start it with multiprocessing's 'spawn' method, or use "
                f"{spelled('--device cpu')}"
            )
        if not self._is_used and sys.platform != "win32":
            os.register_at_fork(after_in_child=self.release_nothing)
        self._is_used = True
        # Set before the lock is taken. If another thread forks while this thread holds the lock,
        # the lock stays locked in the child; but `is_usable` is false there, so the child does not
        # wait for the lock.
        Driver._process = os.getpid()
        with self._listing:  # two threads that list adapters at the same time may miss some
            if not self.has_instance():
                set_variables()
                self.make_instance()
            return self.enumerate_handles()

    @abstractmethod
    def has_instance(self) -> bool:
        """Whether the package has created its only instance."""

    @abstractmethod
    def make_instance(self) -> None:
        """Create the package's instance, with the features that kernels need."""

    @abstractmethod
    def enumerate_handles(self) -> list[Any]:
        """Return all adapters of the existing instance but OpenGL's."""

    def release_nothing(self) -> None:
        """Keep a forked process from releasing the devices of its parent when objects are freed.

        A release would wait for threads that exist only in the parent.
        """
        self.binding.libf = None  # as the packages do when Python ends

    @abstractmethod
    def features(self, adapter: Any) -> frozenset[str]:
        """Return an adapter's features, by wgpu's names: "subgroup", "shader-f16" and so on."""

    @abstractmethod
    def matrix_shapes(self, adapter: Any) -> tuple[MatrixShape, ...]:
        """Return the products of an adapter's matrix units; empty without `MATRIX_FEATURE`."""

    @abstractmethod
    def open(self, adapter: Any, features: frozenset[str], limits: dict[str, int]) -> Any:
        """Return a device; raises the driver's own errors."""

    @abstractmethod
    def create_shader_module(self, device: Any, code: str, label: str) -> Any:
        """Compile WGSL; `code` has no `enable` lines for subgroups and their matrices."""

    @abstractmethod
    def submit(self, device: Any, command_buffer: Any) -> object:
        """Submit one finished command buffer; return the submission, for `wait`."""

    @abstractmethod
    def wait(self, device: Any, submission: object) -> None:
        """Block until a submission and all earlier ones have finished; None: all submissions."""

    @abstractmethod
    def map_buffer(self, device: Any, buffer: Any, *, write: bool, nbytes: int) -> BufferMap:
        """Begin to map the first `nbytes` bytes of a buffer, a multiple of 4."""

    @abstractmethod
    def timestamp_period(self, device: Any) -> float:
        """Return the nanoseconds per tick of the device's timestamp queries."""

    def fast_pass(self, compute_pass: Any) -> FastPass:
        """Return a recorder of dispatches into a compute pass."""
        return FastPass(compute_pass, self.binding.lib, self.binding.ffi)
