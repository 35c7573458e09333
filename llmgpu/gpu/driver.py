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
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from llmgpu.errors import DeviceError
from llmgpu.machine import set_blas_variables
from llmgpu.spelling import spelled

# The platform's own APIs, since OpenGL adapters lack features that kernels need.
NATIVE_BACKENDS = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}.get(sys.platform, ["Vulkan"])
MATRIX_FEATURE = "subgroup-matrix"  # products of small matrices by subgroups


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

    binding: Any  # see `Driver`

    def __init__(self, device: Any, buffer: Any, *, write: bool, nbytes: int) -> None:
        """Begin to map the first `nbytes` bytes of a buffer, a multiple of 4."""
        self._device, self._buffer, self._write, self._nbytes = device, buffer, write, nbytes
        mode = self.binding.lib.WGPUMapMode_Write if write else self.binding.lib.WGPUMapMode_Read
        begin, callback = self.binding.libf.wgpuBufferMapAsync, self._callback()
        self._future = begin(buffer._internal, mode, 0, nbytes, callback)

    @abstractmethod
    def _callback(self) -> Any:
        """Return a callback in the package's form; it runs when the mapping is finished."""

    @abstractmethod
    def wait(self) -> bool:
        """Block until all earlier submissions have finished; return whether mapping succeeded."""

    def memory(self) -> memoryview:
        """Return the mapped bytes, which are invalid after `unmap`."""
        libf, ffi = self.binding.libf, self.binding.ffi
        get = libf.wgpuBufferGetMappedRange if self._write else libf.wgpuBufferGetConstMappedRange
        pointer = ffi.cast("char *", get(self._buffer._internal, 0, self._nbytes))
        return memoryview(ffi.buffer(pointer, self._nbytes))

    def unmap(self) -> None:
        """Unmap the memory; all views become invalid."""
        self.binding.libf.wgpuBufferUnmap(self._buffer._internal)


class Driver(ABC):
    """A WebGPU implementation.

    name: the name in LLMGPU_DRIVER and in ``llmgpu info``.
    errors: the base class of the driver's errors.
    binding: the package's module of C functions: without checks in `lib`, with checks in `libf`.
    helpers: the package's module that holds its only WebGPU instance.
    map_buffer: the class of the driver's mappings.
    wgpu_names: wgpu's names of features that have another name in this driver.
    """

    name: str
    errors: type[Exception]
    binding: Any
    helpers: Any
    map_buffer: type[BufferMap]
    wgpu_names: Mapping[str, str] = MappingProxyType({})
    # Id of the process that used adapters. All drivers share the variable, because all of them use
    # the system's driver, which a forked process can't use.
    _process: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._is_used = False
        self._listing = threading.Lock()

    def is_usable(self) -> bool:
        """Whether this process can use adapters.

        A forked process can't if its parent used adapters before the fork.
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
            if self.helpers._the_instance is None:
                set_variables()
                self.make_instance()
            return self.enumerate_handles()

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

    def features(self, adapter: Any) -> frozenset[str]:
        """Return an adapter's features, by wgpu's names: "subgroup", "shader-f16" and so on."""
        return frozenset(self.wgpu_names.get(name, name) for name in adapter.features)

    def matrix_shapes(self, adapter: Any) -> tuple[MatrixShape, ...]:
        """Return the shapes of matrix products that an adapter's matrix units compute.

        The result is empty without `MATRIX_FEATURE`.
        """
        return ()

    def open(self, adapter: Any, features: frozenset[str], limits: dict[str, int]) -> Any:
        """Return a device; raises the driver's own errors."""
        return adapter.request_device_sync(
            label="llmgpu", required_features=sorted(features), required_limits=limits
        )

    @abstractmethod
    def create_shader_module(self, device: Any, code: str, label: str) -> Any:
        """Compile WGSL. `code` has no `enable` directives for subgroups; a driver adds them."""

    @abstractmethod
    def submit(self, device: Any, command_buffer: Any) -> object:
        """Submit one finished command buffer; return the submission, for `wait`."""

    @abstractmethod
    def wait(self, device: Any, submission: object) -> None:
        """Block until a submission and all earlier ones have finished; None: all submissions."""

    def timestamp_period(self, device: Any) -> float:
        """Return the nanoseconds per tick of the device's timestamp queries."""
        return 1.0
