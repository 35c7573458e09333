"""wgpu-native, Firefox's WebGPU, through the package ``wgpu``: the driver installed with llmgpu.

This module calls C functions that are private to the pinned wgpu release. They compile shader
modules without forced loop bounding (loops run several times faster), wait for single submissions,
map buffers without a helper thread, and record passes without Python's cost of each call. Several C
functions end the process when misused, so `submit` and the map functions are called only from
`llmgpu.gpu.commands`, with checked arguments.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import wgpu

from llmgpu.gpu.declarations import import_binding
from llmgpu.gpu.driver import NATIVE_BACKENDS, BufferMap, Driver

import_binding()  # before the first import of the binding below
from wgpu.backends.wgpu_native import _api, _helpers  # noqa: E402
from wgpu.backends.wgpu_native._ffi import ffi, lib  # noqa: E402
from wgpu.backends.wgpu_native.extras import set_instance_extras  # noqa: E402

libf: Any = _api.libf

_NATIVE_APIS = 1 << 0 | 1 << 2 | 1 << 3  # WGPUInstanceBackend: Vulkan, Metal, DX12
_BOUNDS_CHECKS_ONLY = 1  # WGPUShaderRuntimeChecks: indices are clamped, loops are not counted
# Seconds between two polls of a mapping: a short wait stays short, a long one costs little.
_FIRST_PAUSE, _PAUSE_GROWTH, _LONGEST_PAUSE = 2e-5, 1.05, 1e-3
# Pending callbacks, by the state that each callback changes. Callbacks that were called recently
# are kept, too: the thread that called one may still be returning from its code. Neither table
# refers to a mapping, so the memory of a mapping is freed as soon as its object is.
_pending_callbacks: dict[_MapState, Any] = {}
_called_callbacks: deque[Any] = deque(maxlen=64)


class _MapState:
    """The status of a mapping, and an exception that a signal handler raised in its callback."""

    status: int | None = None
    interrupt: BaseException | None = None


class _WgpuMap(BufferMap):
    binding = _api

    def _callback(self) -> Any:
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
        return _api.new_struct(
            "WGPUBufferMapCallbackInfo",
            mode=lib.WGPUCallbackMode_AllowProcessEvents,
            callback=callback,
        )

    def wait(self) -> bool:
        """Block until all earlier submissions have finished; return whether mapping succeeded.

        Polls, because waiting inside wgpu would keep other threads from submitting. Reraises an
        exception that a signal handler raised in the callback, such as KeyboardInterrupt.
        """
        pause = _FIRST_PAUSE
        state = self._state
        while state.status is None:
            if state.interrupt is not None:
                raise state.interrupt
            libf.wgpuDevicePoll(self._device._internal, False, ffi.NULL)
            if state.status is None:
                time.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
        return bool(state.status == lib.WGPUMapAsyncStatus_Success)


class WgpuDriver(Driver):
    """wgpu's public interface, and C functions where the interface is slow or wrong.

    wgpu-native can't enable matrix units.
    """

    name = "wgpu"
    errors = wgpu.GPUError
    binding, helpers = _api, _helpers
    map_buffer = _WgpuMap

    def make_instance(self) -> None:
        """Create an instance with only the platform's native APIs.

        An OpenGL adapter has neither subgroups nor 16-bit floats, and wgpu would silently list it
        if Vulkan is missing. The hidden validation of indirect dispatches is off, since kernels
        clamp the workgroup counts that they write.
        """
        set_instance_extras(backends=NATIVE_BACKENDS, flags=["Empty"])

    def enumerate_handles(self) -> list[Any]:
        # Omit OpenGL: listing its adapters in two threads, one after the other, ends the process.
        instance = _helpers.get_wgpu_instance()
        native = _api.new_struct_p("WGPUInstanceEnumerateAdapterOptions *", backends=_NATIVE_APIS)
        count = libf.wgpuInstanceEnumerateAdapters(instance, native, ffi.NULL)
        found = _api.new_array("WGPUAdapter[]", count)
        libf.wgpuInstanceEnumerateAdapters(instance, native, found)
        return [wgpu.gpu._create_adapter(handle) for handle in found]

    def open(self, adapter: Any, features: frozenset[str], limits: dict[str, int]) -> Any:
        return adapter.request_device_sync(
            label="llmgpu", required_features=sorted(features), required_limits=limits
        )

    def create_shader_module(self, device: Any, code: str, label: str) -> Any:
        """Create a shader module whose loops are not bounded by an injected counter."""
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

    def submit(self, device: Any, command_buffer: Any) -> object:
        command_buffers = ffi.new("WGPUCommandBuffer []", [command_buffer._internal])
        return libf.wgpuQueueSubmitForIndex(device.queue._internal, 1, command_buffers)

    def wait(self, device: Any, submission: object) -> None:
        index = ffi.NULL if submission is None else ffi.new("WGPUSubmissionIndex *", submission)
        libf.wgpuDevicePoll(device._internal, True, index)

    def timestamp_period(self, device: Any) -> float:
        return float(libf.wgpuQueueGetTimestampPeriod(device.queue._internal))


WGPU = WgpuDriver()
