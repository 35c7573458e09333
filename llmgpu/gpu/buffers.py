"""Device memory: single buffers, and a pool that keeps them for the next call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

ALIGNMENT = 256  # bytes; every size is rounded up to it, and none is 0
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on the device, a wgpu buffer or a part of it; size and offset are aligned."""

    label: str
    nbytes: int
    handle: Any
    offset: int = 0

    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return a part of this memory, rounded up to `ALIGNMENT` bytes where there is room.

        Raises:
            ValueError: it begins between two multiples of `ALIGNMENT`, or ends beyond the buffer.
        """
        size = aligned(nbytes)
        if offset % ALIGNMENT or not 0 <= offset <= self.nbytes - size:
            raise ValueError(f"{self.label}: no {nbytes} bytes at {offset} of {self.nbytes}")
        return Buffer(self.label, size, self.handle, self.offset + offset)


def aligned(nbytes: int) -> int:
    """Return the size that a buffer for `nbytes` bytes has."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class BufferPool:
    """Storage buffers by role, made at first use and kept.

    A request that fits returns the buffer that is there; one that doesn't makes it anew, half as
    large again as before at least, so that growing requests cost amortised constant time.
    """

    def __init__(self, device: Device) -> None:
        """Start with no buffers."""
        self._device = device
        self._buffers: dict[str, Buffer] = {}
        self.allocations = 0

    def get(self, role: str, nbytes: int) -> Buffer:
        """Return the buffer for `role` with room for `nbytes` bytes; its contents are undefined.

        Raises:
            DeviceError: the adapter can't hold or bind that much.
        """
        held = self._buffers.get(role)
        if held is not None and held.nbytes >= nbytes:
            return held
        wanted = nbytes if held is None else max(nbytes, int(held.nbytes * GROWTH))
        # Growth beyond what is needed must not be what hits the adapter's limit.
        wanted = max(nbytes, min(wanted, self._device.max_binding_bytes))
        self._buffers.pop(role, None)
        buffer = self._device.create_buffer(role, wanted)
        self.allocations += 1
        self._buffers[role] = buffer
        return buffer

    def clear(self) -> None:
        """Forget all buffers; memory is freed once nothing else uses it."""
        self._buffers.clear()
