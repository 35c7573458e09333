"""What llmgpu needs of wgpu-native beyond wgpu's public interface, all in one module.

The C functions used here are private to the pinned wgpu release: shader modules without forced
loop bounding (several times faster loops), submissions that can be waited for one by one, buffer
maps without a helper thread, and pass recording without Python's per-call overhead. Several C
functions end the process when misused, so `submit` and the map functions are called only from
`llmgpu.gpu.commands`, which checks what it passes on.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections import deque
from functools import cache
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.gpu.declarations import import_binding

import_binding()  # before the first import of the binding below
from wgpu.backends.wgpu_native import _api  # noqa: E402
from wgpu.backends.wgpu_native._ffi import ffi, lib  # noqa: E402
from wgpu.backends.wgpu_native.extras import set_instance_extras  # noqa: E402

libf: Any = _api.libf

_BOUNDS_CHECKS_ONLY = 1  # WGPUShaderRuntimeChecks: indices are clamped, loops are not counted
_log = logging.getLogger("llmgpu")
_instance_process: int | None = None  # which made the instance; its threads don't survive a fork


def is_usable() -> bool:
    """Whether this process can use adapters: it was not forked from one that did."""
    return _instance_process in (None, os.getpid())


def prepare_instance() -> None:
    """Configure the one WebGPU instance of this process; later calls do nothing.

    Only the platform's native APIs are enabled: an OpenGL adapter has neither subgroups nor
    16-bit floats, and would be returned silently where Vulkan is missing. The hidden validation
    of indirect dispatches is off, because kernels clamp the counts that they write.

    DeviceError if the process was forked from one that had done so; it would wait forever.
    """
    global _instance_process
    if not is_usable():
        raise DeviceError(
            "this process was forked from one that had used GPU adapters, so it can't use them: "
            "start it with multiprocessing's 'spawn' method, or use --device cpu"
        )
    if _instance_process is not None:
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # else a C library complains
    backends = {"darwin": ["Metal"], "win32": ["Vulkan", "DX12"]}.get(sys.platform, ["Vulkan"])
    set_instance_extras(backends=backends, flags=["Empty"])
    _instance_process = os.getpid()


def create_shader_module(device: Any, code: str, label: str) -> Any:
    """Create a shader module whose loops are not bounded by an injected counter."""
    if not hasattr(lib, "wgpuDeviceCreateShaderModuleTrusted"):
        _warn_of_slow_shaders()
        return device.create_shader_module(code=code, label=label)
    source = _api.new_struct_p("WGPUShaderSourceWGSL *", code=_api.to_c_string_view(code))
    source[0].chain.next = ffi.NULL
    source[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    descriptor = _api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=ffi.cast("WGPUChainedStruct *", source),
        label=_api.to_c_string_view(label),
    )
    module = libf.wgpuDeviceCreateShaderModuleTrusted(
        device._internal, descriptor, _BOUNDS_CHECKS_ONLY
    )
    return _api.GPUShaderModule(label, module, device)


@cache  # once is enough
def _warn_of_slow_shaders() -> None:
    _log.warning(
        "wgpu %s can't compile kernels without loop bounding, so kernels with loops run up to "
        "several times slower; install the wgpu release that llmgpu pins",
        wgpu.__version__,
    )


def submit(device: Any, command_buffer: Any) -> int:
    """Submit one finished command buffer; return the index to wait for."""
    command_buffers = ffi.new("WGPUCommandBuffer []", [command_buffer._internal])
    return int(libf.wgpuQueueSubmitForIndex(device.queue._internal, 1, command_buffers))


def wait(device: Any, index: int | None) -> None:
    """Block until the submission with this index, and all before it, have finished (None: all)."""
    submission = ffi.NULL if index is None else ffi.new("WGPUSubmissionIndex *", index)
    libf.wgpuDevicePoll(device._internal, True, submission)


# Seconds between two polls of a map: a short wait stays short, a long one costs little.
_FIRST_PAUSE, _PAUSE_GROWTH, _LONGEST_PAUSE = 2e-5, 1.05, 1e-3
# Callbacks still to be called, by the state that they change; and the last ones called, because
# another thread may still be returning from them. Neither refers to a map, so that a map's memory
# is freed with the map.
_pending_callbacks: dict[_MapState, Any] = {}
_called_callbacks: deque[Any] = deque(maxlen=64)


class _MapState:
    """How a map ended, and what a signal handler raised in its callback, to be raised again."""

    status: int | None = None
    interrupt: BaseException | None = None


class BufferMap:
    """A pending or finished map of a whole buffer into the host's memory."""

    def __init__(self, buffer: Any, *, write: bool, nbytes: int) -> None:
        """Ask for the map; `wait` returns once it is there."""
        self._buffer, self._nbytes = buffer, nbytes
        self._state = state = _MapState()

        def finished(status: int, message: Any, first: Any, second: Any) -> None:
            state.status = status
            _called_callbacks.append(_pending_callbacks.pop(state, None))

        def interrupted(kind: type, error: BaseException, trace: Any) -> None:
            state.interrupt = error
            _called_callbacks.append(_pending_callbacks.pop(state, None))

        callback = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
            finished,
            onerror=interrupted,
        )
        _pending_callbacks[state] = callback
        info = _api.new_struct(
            "WGPUBufferMapCallbackInfo",
            mode=lib.WGPUCallbackMode_AllowProcessEvents,
            callback=callback,
        )
        mode = lib.WGPUMapMode_Write if write else lib.WGPUMapMode_Read
        libf.wgpuBufferMapAsync(buffer._internal, mode, 0, nbytes, info)

    def wait(self, device: Any) -> bool:
        """Block until the submissions before the map are done; return whether the map succeeded.

        Polls, because waiting inside wgpu would keep other threads from submitting. Raises what a
        signal handler raised in the callback, such as KeyboardInterrupt.
        """
        pause = _FIRST_PAUSE
        state = self._state
        while state.status is None:
            if state.interrupt is not None:
                raise state.interrupt
            libf.wgpuDevicePoll(device._internal, False, ffi.NULL)
            if state.status is None:
                time.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
        return bool(state.status == lib.WGPUMapAsyncStatus_Success)

    def array(self) -> NDArray[np.uint8]:
        """Return the mapped bytes, shape (nbytes,); invalid memory after `unmap`."""
        pointer = libf.wgpuBufferGetMappedRange(self._buffer._internal, 0, self._nbytes)
        return np.frombuffer(ffi.buffer(pointer, self._nbytes), np.uint8)

    def unmap(self) -> None:
        """Give the memory back; every view of it is invalid from here on."""
        libf.wgpuBufferUnmap(self._buffer._internal)


def timestamp_period(device: Any) -> float:
    """Return nanoseconds per tick of the device's timestamp queries."""
    return float(libf.wgpuQueueGetTimestampPeriod(device.queue._internal))


class FastPass:
    """Records dispatches into a wgpu compute pass at a quarter of the public calls' cost.

    The caller keeps every object passed in alive until the commands are submitted; errors surface
    when the encoder is finished.
    """

    def __init__(self, compute_pass: wgpu.GPUComputePassEncoder) -> None:
        """Record into `compute_pass`, which remains the owner."""
        self._pass: Any = compute_pass._internal  # type: ignore[attr-defined, unused-ignore]

    def set(self, pipeline: Any, bind_group: Any) -> None:
        """Choose the pipeline and its bind group 0."""
        lib.wgpuComputePassEncoderSetPipeline(self._pass, pipeline._internal)
        lib.wgpuComputePassEncoderSetBindGroup(self._pass, 0, bind_group._internal, 0, ffi.NULL)

    def dispatch(self, x: int, y: int) -> None:
        """Dispatch x * y workgroups."""
        lib.wgpuComputePassEncoderDispatchWorkgroups(self._pass, x, y, 1)

    def dispatch_indirect(self, buffer: Any, offset: int) -> None:
        """Dispatch as many workgroups as the three u32 at a byte offset of a buffer say."""
        lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect(self._pass, buffer._internal, offset)
