"""Adapters: listing, selecting by the name in --device, and opening; the memory of a device.

Hardware is listed before software; OpenGL is never used. A name without a match is an error whose
message lists the adapters: no other adapter is opened silently.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from llmgpu.errors import CapacityError, DeviceError
from llmgpu.gpu.driver import MATRIX_FEATURE, BufferMap, Driver, MatrixShape
from llmgpu.input_files import quote
from llmgpu.spelling import spelled

Result = TypeVar("Result")

DRIVERS = ("wgpu", "dawn")
DRIVER_VARIABLE = "LLMGPU_DRIVER"
LOST = "device is lost"  # part of a driver's message about a lost device

_DISCRETE, _SOFTWARE = "discrete GPU", "software adapter"
_KINDS = {
    "DiscreteGPU": _DISCRETE,
    "IntegratedGPU": "integrated GPU",
    "CPU": _SOFTWARE,
    "Unknown": "unknown kind of GPU",
}


def chosen_driver() -> str | None:
    """Return the driver's name in LLMGPU_DRIVER; None if the variable is empty.

    Raises:
        DeviceError: the name is unknown, or the driver's package is not installed.
    """
    name = os.environ.get(DRIVER_VARIABLE) or None
    if name is not None and name not in DRIVERS:
        raise DeviceError(f"{DRIVER_VARIABLE} is {quote(name)}; use one of {', '.join(DRIVERS)}")
    if name == "dawn" and not has_dawn():
        raise DeviceError(
            f"{DRIVER_VARIABLE} is dawn, and the package wgpudawn is not installed; run "
            "pip install 'llmgpu[dawn]', or unset the variable"
        )
    return name


def has_dawn() -> bool:
    """Whether the package of Dawn is installed."""
    return importlib.util.find_spec("wgpudawn") is not None


def load_driver(name: str) -> Driver:
    """Return the driver of a name in `DRIVERS`; raises the error of the driver's import."""
    if name == "dawn":
        from llmgpu.gpu.dawn_driver import DAWN

        return DAWN
    from llmgpu.gpu.wgpu_driver import WGPU

    return WGPU


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter as the driver describes it.

    kind: "discrete GPU", "integrated GPU", "software adapter" or "unknown kind of GPU".
    limits: numbers by WebGPU's names.
    matrix_shapes: the shapes and number types of the products that the adapter's matrix units
        compute; empty if the driver can't use matrix units.
    name: the driver's name for the adapter; if several adapters share a name, ":0", ":1" and so on
        are appended.
    webgpu: the driver that listed the adapter. handle: the driver's adapter object.
    """

    name: str
    driver: str
    backend: str
    kind: str
    features: frozenset[str]
    limits: dict[str, int]
    matrix_shapes: tuple[MatrixShape, ...]
    webgpu: Driver
    handle: Any

    @property
    def is_software(self) -> bool:
        """Whether the adapter computes on the CPU."""
        return self.kind == _SOFTWARE

    @property
    def is_discrete(self) -> bool:
        """Whether the adapter is a GPU with memory of its own."""
        return self.kind == _DISCRETE

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend})"


def list_adapters(driver: Driver | None = None) -> list[AdapterInfo]:
    """Return all adapters of a WebGPU driver, best first; empty if the system has no driver.

    driver: by default the driver that LLMGPU_DRIVER names, or wgpu if the variable is empty.
    """
    driver = driver or load_driver(chosen_driver() or "wgpu")
    infos = [_describe(driver, handle) for handle in driver.list_handles()]
    infos.sort(key=lambda info: list(_KINDS.values()).index(info.kind))
    names = [info.name for info in infos]
    return [
        replace(info, name=f"{info.name}:{names[:place].count(info.name)}")
        if names.count(info.name) > 1
        else info
        for place, info in enumerate(infos)
    ]


def _describe(driver: Driver, handle: Any) -> AdapterInfo:
    info = handle.info
    kind = _KINDS.get(info["adapter_type"], _KINDS["Unknown"])
    return AdapterInfo(
        name=info["device"],
        driver=info["description"],
        backend=info["backend_type"],
        kind=kind,
        features=driver.features(handle),
        limits=dict(handle.limits),
        # Report no matrix shapes for a software adapter: it has no matrix units, and might take
        # minutes to compile kernels for them.
        matrix_shapes=() if kind == _SOFTWARE else driver.matrix_shapes(handle),
        webgpu=driver,
        handle=handle,
    )


def select_adapter(wanted: str = "gpu", driver: Driver | None = None) -> AdapterInfo:
    """Return the best adapter whose name contains `wanted`, ignoring case.

    wanted: "gpu" matches any name. ":1" at the end of `wanted` selects the second best adapter,
        ":2" the third, and so on.
    driver: the WebGPU driver whose adapters are searched, see `list_adapters`.

    Raises DeviceError if there is no adapter, or if no adapter matches (the message lists all).
    """
    adapters = list_adapters(driver)
    if not adapters:
        raise DeviceError(
            "no GPU adapter found; install a Vulkan driver (on Debian, mesa-vulkan-drivers "
            f"includes a software one), or use {spelled('--device cpu')}"
        )
    found = _named(adapters, wanted)
    reason = f"no adapter's name contains {quote(wanted)}"
    numbered = re.fullmatch(r"(.*):([0-9]{1,4})", wanted, re.DOTALL)
    if not found and numbered and (several := _named(adapters, numbered[1])):
        found = several[int(numbered[2]) :]
        last = f"{numbered[1]}:{len(several) - 1}"
        reason = f"there is no adapter {quote(wanted)}, the last is {quote(last)}"
    if found:
        return found[0]
    names = ", ".join(repr(info.name) for info in adapters)
    raise DeviceError(
        f"{reason}: use gpu for the best one, cpu for none, or part of a name, with :0, :1 and so "
        f"on to choose among several: {names}"
    )


def _named(adapters: Sequence[AdapterInfo], name: str) -> list[AdapterInfo]:
    part = name.lower()
    return [info for info in adapters if name == "gpu" or (part and part in info.name.lower())]


OPTIONAL_FEATURES = frozenset({"subgroup", "timestamp-query", "shader-f16", MATRIX_FEATURE})
ALIGNMENT = 256  # in bytes; sizes of buffers are multiples of ALIGNMENT, and not 0
WEBGPU_DEFAULT_LIMITS: Mapping[str, int] = {
    "max-buffer-size": 268_435_456,
    "max-storage-buffer-binding-size": 134_217_728,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16_384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
}


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on the device: a driver's buffer or a view of it, with aligned size and offset."""

    label: str
    nbytes: int
    handle: Any
    offset: int = 0

    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return a view of this memory that starts at byte `offset`.

        The size is `nbytes`, rounded up to a multiple of `ALIGNMENT`. Raises ValueError if `offset`
        is not a multiple of `ALIGNMENT`, or if the view exceeds the memory.
        """
        size = aligned(nbytes)
        if offset % ALIGNMENT or not 0 <= offset <= self.nbytes - size:
            raise ValueError(f"{self.label}: no {nbytes} bytes at {offset} of {self.nbytes}")
        return Buffer(self.label, size, self.handle, self.offset + offset)

    def until(self, last: Buffer) -> Buffer:
        """Return the memory from the start of this view to the end of `last`, a later view."""
        return replace(self, nbytes=last.offset + last.nbytes - self.offset)


def aligned(nbytes: int) -> int:
    """Return the size of a buffer for `nbytes` bytes: a multiple of `ALIGNMENT`, not 0."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class OpenedAdapter:
    """An opened adapter, which allocates buffers; `Device` adds kernels and transfers.

    webgpu: the WebGPU driver. handle: the driver's device object.
    name: the adapter's name.
    limits: the limits requested at opening. features: the enabled optional features.
    matrix_shapes: the products of matrix units; empty without `MATRIX_FEATURE`.
    """

    def __init__(
        self,
        adapter: AdapterInfo,
        features: frozenset[str] = OPTIONAL_FEATURES,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """Open `adapter` with the `features` that it supports.

        limits: WebGPU limits to request, by default the adapter's.

        Raises DeviceError if opening fails.
        """
        self.adapter = adapter
        self.webgpu = adapter.webgpu
        self.name = adapter.name
        self.features = features & adapter.features
        self.matrix_shapes = adapter.matrix_shapes if MATRIX_FEATURE in self.features else ()
        self.limits = {name: adapter.limits[name] for name in WEBGPU_DEFAULT_LIMITS}
        self.limits.update(limits or {})
        try:
            self.handle: Any = self.webgpu.open(adapter.handle, self.features, self.limits)
        except (RuntimeError, self.webgpu.errors) as error:
            raise DeviceError(f"can't open {self.name}: {error}") from error

    @property
    def is_software(self) -> bool:
        """Whether the adapter computes on the CPU."""
        return self.adapter.is_software

    @property
    def max_binding_bytes(self) -> int:
        """Bytes of the largest buffer that can be both allocated and bound as a whole."""
        size = min(self.limits["max-buffer-size"], self.limits["max-storage-buffer-binding-size"])
        return size // ALIGNMENT * ALIGNMENT

    def create_handle(self, label: str, nbytes: int, usage: str) -> Any:
        """Allocate a buffer of the driver; CapacityError if the device is out of memory.

        usage: names of WebGPU's buffer usages, such as "MAP_READ | COPY_DST".
        """
        try:
            return self.handle.create_buffer(label=label, size=nbytes, usage=usage)
        except self.webgpu.errors as error:
            reason = " ".join(str(error).split())
            raise self.lost(error) or CapacityError(
                f"{self.name} can't allocate {nbytes} bytes for {label}: {reason}"
            ) from error

    def map_buffer(self, handle: Any, *, write: bool, nbytes: int) -> BufferMap:
        """Begin to map the first `nbytes` bytes of a buffer into the host's memory."""
        return self.call(self.webgpu.map_buffer, self.handle, handle, write=write, nbytes=nbytes)

    def call(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Call a function of the driver.

        Raises DeviceError if the device is lost; other errors of the driver are raised unchanged.
        """
        try:
            return function(*arguments, **named)
        except self.webgpu.errors as error:
            if (lost := self.lost(error)) is None:
                raise
            raise lost from error

    def lost(self, error: Exception) -> DeviceError | None:
        """Return the error for the loss of the device if an error of the driver reports it."""
        if LOST not in str(error):
            return None
        return DeviceError(
            f"{self.name} was lost while it worked: run the command again, with "
            f"{spelled('--resume')} if it has that option, or use {spelled('--device cpu')}"
        )
