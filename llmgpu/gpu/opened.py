"""An opened adapter: the lowest module of the package, which all others take.

It imports no other module of the package but `adapters` and `native`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wgpu

from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import AdapterInfo

WEBGPU_DEFAULT_LIMITS: Mapping[str, int] = {
    "max-buffer-size": 268_435_456,
    "max-storage-buffer-binding-size": 134_217_728,
    "max-storage-buffers-per-shader-stage": 8,
    "max-compute-workgroup-storage-size": 16_384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
}


class OpenedAdapter:
    """An adapter that memory and kernels can be made on.

    handle: wgpu's device. name: as the driver gives it. limits: those it was opened with.
    features: the optional ones it has.
    """

    def __init__(
        self, adapter: AdapterInfo, features: frozenset[str], limits: Mapping[str, int] | None
    ) -> None:
        """Open `adapter` with those of `features` that it has; see `Device`."""
        self.adapter = adapter
        self.name = adapter.name
        self.features = features & adapter.features
        self.limits = {name: adapter.limits[name] for name in WEBGPU_DEFAULT_LIMITS}
        self.limits.update(limits or {})
        try:
            self.handle: Any = adapter.handle.request_device_sync(
                label="llmgpu",
                required_features=sorted(self.features),
                required_limits=self.limits,
            )
        except (RuntimeError, wgpu.GPUError) as error:
            raise DeviceError(f"can't open {self.name}: {error}") from error

    @property
    def is_software(self) -> bool:
        """Whether the adapter computes on the CPU."""
        return self.adapter.is_software

    @property
    def max_binding_bytes(self) -> int:
        """Largest buffer that can be made and bound whole, in bytes."""
        size = min(self.limits["max-buffer-size"], self.limits["max-storage-buffer-binding-size"])
        return size // 256 * 256

    def create_handle(self, label: str, nbytes: int, usage: int) -> Any:
        """Make a wgpu buffer.

        Raises:
            DeviceError: the device is out of memory.
        """
        try:
            return self.handle.create_buffer(label=label, size=nbytes, usage=usage)
        except wgpu.GPUError as error:
            raise DeviceError(
                f"{self.name} can't allocate {nbytes} bytes for {label}: {error}"
            ) from error
