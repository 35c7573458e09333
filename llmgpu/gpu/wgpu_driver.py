"""wgpu-native, Firefox's WebGPU, through the package ``wgpu``: the driver installed with llmgpu.

This module calls C functions that are private to the pinned wgpu release. They compile shader
modules without forced loop bounding (loops run several times faster), wait for single submissions,
map buffers without a helper thread, and record passes without Python's cost of each call. Several C
functions end the process when misused, so `submit` and the map functions are called only from
`llmgpu.gpu.commands`, with checked arguments.
"""

from __future__ import annotations

import time
from itertools import count
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
# The results of finished mappings, by the mappings' numbers: a status, or an exception that a
# signal handler raised in the callback.
_results: dict[int, int | BaseException] = {}
_numbers = count()


def _interrupted(kind: type, error: BaseException, trace: Any) -> None:
    _results[int(ffi.cast("uintptr_t", trace.tb_frame.f_locals["number"]))] = error


def _finished(status: int, message: Any, number: Any, second: Any) -> None:
    _results[int(ffi.cast("uintptr_t", number))] = status


_callback: Any = ffi.callback(
    "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", _finished, onerror=_interrupted
)


class _WgpuMap(BufferMap):
    binding = _api

    def _callback(self) -> Any:
        self._number = next(_numbers)
        return _api.new_struct(
            "WGPUBufferMapCallbackInfo",
            mode=lib.WGPUCallbackMode_AllowProcessEvents,
            callback=_callback,
            userdata1=ffi.cast("void *", self._number),
        )

    def wait(self) -> bool:
        """Block until all earlier submissions have finished; return whether mapping succeeded.

        Polls, because waiting inside wgpu would keep other threads from submitting. Reraises an
        exception that a signal handler raised in the callback, such as KeyboardInterrupt.
        """
        pause = _FIRST_PAUSE
        while (result := _results.pop(self._number, None)) is None:
            libf.wgpuDevicePoll(self._device._internal, False, ffi.NULL)
            if self._number not in _results:
                time.sleep(pause)
                pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
        if isinstance(result, BaseException):
            raise result
        return bool(result == lib.WGPUMapAsyncStatus_Success)


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
        listed = libf.wgpuInstanceEnumerateAdapters(instance, native, ffi.NULL)
        found = _api.new_array("WGPUAdapter[]", listed)
        libf.wgpuInstanceEnumerateAdapters(instance, native, found)
        return [wgpu.gpu._create_adapter(handle) for handle in found]

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
