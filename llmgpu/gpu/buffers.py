"""Device memory: a buffer, or a part of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALIGNMENT = 256  # bytes; every size is rounded up to a multiple of it, and none is 0


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory on the device, a wgpu buffer or a part of it; size and offset are aligned."""

    label: str
    nbytes: int
    handle: Any
    offset: int = 0

    def view(self, offset: int, nbytes: int) -> Buffer:
        """Return a part of this memory, its size rounded up to a multiple of `ALIGNMENT` bytes.

        Raises:
            ValueError: `offset` is not a multiple of `ALIGNMENT`, or the part is not inside.
        """
        size = aligned(nbytes)
        if offset % ALIGNMENT or not 0 <= offset <= self.nbytes - size:
            raise ValueError(f"{self.label}: no {nbytes} bytes at {offset} of {self.nbytes}")
        return Buffer(self.label, size, self.handle, self.offset + offset)


def aligned(nbytes: int) -> int:
    """Return the size of a buffer for `nbytes` bytes."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
