"""Listing adapters, and selecting one by what the user asks for.

Hardware comes before software; OpenGL is never used. A name that matches nothing is an error that
lists the adapters: the choice never falls back silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import wgpu

from llmgpu.errors import DeviceError
from llmgpu.gpu import native

_KINDS = {
    "DiscreteGPU": "discrete GPU",
    "IntegratedGPU": "integrated GPU",
    "CPU": "software adapter",
    "Unknown": "unknown kind of GPU",
}
NO_ADAPTER = (
    "no GPU adapter found; install a Vulkan driver (on Debian, mesa-vulkan-drivers includes a "
    "software one), or use --device cpu"
)


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter as the driver describes it.

    kind: "discrete GPU", "integrated GPU", "software adapter" or "unknown kind of GPU".
    limits: name -> number, as WebGPU names them.
    handle: wgpu's adapter object.
    """

    name: str
    driver: str
    backend: str
    kind: str
    features: frozenset[str]
    limits: dict[str, int]
    handle: Any

    @property
    def is_software(self) -> bool:
        """Whether the adapter computes on the CPU."""
        return self.kind == _KINDS["CPU"]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.backend})"


def list_adapters() -> list[AdapterInfo]:
    """Return all adapters, best first; empty where no driver is installed."""
    native.prepare_instance()
    handles = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    infos = [_describe(handle) for handle in handles]
    return sorted(infos, key=lambda info: list(_KINDS.values()).index(info.kind))


def _describe(handle: Any) -> AdapterInfo:
    info = handle.info
    return AdapterInfo(
        name=info["device"],
        driver=info["description"],
        backend=info["backend_type"],
        kind=_KINDS.get(info["adapter_type"], _KINDS["Unknown"]),
        features=frozenset(handle.features),
        limits=dict(handle.limits),
        handle=handle,
    )


def select_adapter(wanted: str = "gpu") -> AdapterInfo:
    """Return the best adapter, or the best whose name contains `wanted`, ignoring case.

    DeviceError if there is no adapter, or none of that name (the message lists all).
    """
    adapters = list_adapters()
    if not adapters:
        raise DeviceError(NO_ADAPTER)
    if wanted == "gpu":
        return adapters[0]
    for info in adapters:
        if wanted.lower() in info.name.lower():
            return info
    names = ", ".join(repr(info.name) for info in adapters)
    raise DeviceError(f"no adapter's name contains {wanted!r}; use one of {names}, or cpu")
