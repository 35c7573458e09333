"""Dawn, Chrome's WebGPU, through the package ``wgpudawn``: the driver that can use matrix units.

Dawn lists half precision on NVIDIA, and subgroup matrices on any GPU, only with the toggles below.
Dawn's compiler, Tint, requires `enable` lines that wgpu's compiler does not know, and reads WGSL
more strictly.

Waiting for a future uses no callback in Python, because a signal that arrives inside such a
callback is lost. The callback is a C function without effect. The wait is divided into short turns,
and Python handles signals between the turns.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import wgpudawn
from wgpudawn.backends.dawn import _api, _helpers, extras

from llmgpu.errors import DeviceError
from llmgpu.gpu.driver import (
    MATRIX_FEATURE,
    NATIVE_BACKENDS,
    BufferMap,
    Driver,
    MatrixShape,
)

ffi: Any = _api.ffi
lib: Any = _api.lib
libf: Any = _api.libf

# Dawn's names of features. The keys are wgpu's names, or llmgpu's name if wgpu has none.
_DAWN_NAMES = {"subgroup": "subgroups", MATRIX_FEATURE: "chromium-experimental-subgroup-matrix"}
_OWN_NAMES = {dawn: own for own, dawn in _DAWN_NAMES.items()}
_ENABLED_TOGGLES = (
    "allow_unsafe_apis",  # enables experimental features
    "vulkan_enable_f16_on_nvidia",  # unsafe only for uniform buffers of f16, which no kernel has
    "disable_workgroup_init",  # kernels write workgroup memory before they read it
)
_DISABLED_TOGGLES = ("timestamp_quantization",)  # exact timestamps are a risk only on web pages
_ALWAYS = frozenset({"implicit-device-synchronization"})  # allows calls from several threads
_TURN = 50_000_000  # nanoseconds of a turn of waiting, after which Python handles signals
# A C function without arguments or effect, which can serve as a callback of any type.
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
_COMMENT = re.compile(r"//.*")
_SUBGROUPS = re.compile(r"\bsubgroup|\bsubgroups?_")
_MATRICES = "subgroup_matrix"
_WARNING = re.compile(rb"^Warning: .*\n(?: +.*\n|\n)*", re.MULTILINE)


def enable_lines(code: str) -> str:
    """Return WGSL with the `enable` directives for Tint, on the first line."""
    plain = _COMMENT.sub("", code)
    extensions = ["subgroups"] if _SUBGROUPS.search(plain) else []
    if _MATRICES in plain:
        extensions.append("chromium_experimental_subgroup_matrix")
    return f"enable {', '.join(extensions)}; {code}" if extensions else code


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drop Dawn's warnings on standard error about adapters that Dawn does not support.

    The package has no callback for warnings, so standard error is redirected. Output of other
    threads is delayed until the end of the block.
    """
    with ExitStack() as stack:
        try:
            stderr = os.dup(2)
            stack.callback(os.close, stderr)
            caught = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # standard error is closed, or no file can be created
            yield
            return
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            caught.seek(0)
            with suppress(OSError):
                os.write(2, _WARNING.sub(b"", caught.read()))


def _wait_for(future: Any) -> None:
    info = ffi.new("WGPUFutureWaitInfo *")
    info.future = future
    while not info.completed:
        status = libf.wgpuInstanceWaitAny(_helpers.get_wgpu_instance(), 1, info, _TURN)
        if status not in (lib.WGPUWaitStatus_Success, lib.WGPUWaitStatus_TimedOut):
            raise DeviceError(f"Dawn can't wait for the device (status {int(status)})")


def _callback_info(kind: str) -> Any:
    info = ffi.new(f"WGPU{kind}CallbackInfo *")
    info.mode = lib.WGPUCallbackMode_AllowProcessEvents
    info.callback = ffi.cast(f"WGPU{kind}Callback", _NOTHING)
    return info[0]


class _DawnMap(BufferMap):
    binding = _api

    def _callback(self) -> Any:
        return _callback_info("BufferMap")

    def wait(self) -> bool:
        _wait_for(self._future)
        state = lib.wgpuBufferGetMapState(self._buffer._internal)
        return bool(state == lib.WGPUBufferMapState_Mapped)


class DawnDriver(Driver):
    """wgpudawn's interface, and Dawn's C functions where the interface lacks a call.

    Dawn itself converts the ticks of timestamps to nanoseconds.
    """

    name = "dawn"
    errors = wgpudawn.GPUError
    binding, helpers = _api, _helpers
    map_buffer = _DawnMap
    wgpu_names = _OWN_NAMES

    def make_instance(self) -> None:
        toggles = {"enable_toggles": _ENABLED_TOGGLES, "disable_toggles": _DISABLED_TOGGLES}
        extras.set_instance_extras(backends=NATIVE_BACKENDS, **toggles)

    def enumerate_handles(self) -> list[Any]:
        backends = _helpers.dawn_instance_extras["backends"] or NATIVE_BACKENDS
        with _without_warnings():
            # The package's public list contains only one of several cards of the same name.
            handles: list[Any] = wgpudawn.gpu._enumerate_all_adapters()
        return [handle for handle in handles if handle.info["backend_type"] in backends]

    def matrix_shapes(self, adapter: Any) -> tuple[MatrixShape, ...]:
        if MATRIX_FEATURE not in self.features(adapter):
            return ()
        listed = extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", [])
        shapes = []
        for each in listed:
            operand, result = str(each["component_type"]), str(each["result_component_type"])
            sizes = (each["m"], each["n"], each["k"])
            shapes.append(MatrixShape(operand.lower(), result.lower(), *sizes))
        return tuple(sorted(shapes))

    def open(self, adapter: Any, features: frozenset[str], limits: dict[str, int]) -> Any:
        names = {_DAWN_NAMES.get(name, name) for name in features}
        return super().open(adapter, _ALWAYS | names, limits)

    def create_shader_module(self, device: Any, code: str, label: str) -> Any:
        return device.create_shader_module(code=enable_lines(code), label=label)

    def submit(self, device: Any, command_buffer: Any) -> object:
        # Free earlier submissions that have finished.
        libf.wgpuInstanceProcessEvents(_helpers.get_wgpu_instance())
        device.queue.submit([command_buffer])
        return self._done(device)

    def _done(self, device: Any) -> Any:
        info = _callback_info("QueueWorkDone")
        return libf.wgpuQueueOnSubmittedWorkDone(device.queue._internal, info)

    def wait(self, device: Any, submission: object) -> None:
        _wait_for(self._done(device) if submission is None else submission)


DAWN = DawnDriver()
