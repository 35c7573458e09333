"""A device whose buffers are followed by guard words, which no kernel may change.

Kernels bind each buffer with its guard words, so that the adapter does not keep them from writing
there. The padding of a buffer, up to a multiple of `ALIGNMENT` bytes, is guarded as well; the host
may clear or copy it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmgpu.gpu.adapters import ALIGNMENT, Buffer, OpenedAdapter, aligned
from llmgpu.gpu.device import Device
from llmgpu.gpu.kernel import BoundKernel, Kernel

GUARD = 0xA5A5A5A5  # as a float32 -2.9e-16, so that reading it changes no result by much
GUARD_BYTES = ALIGNMENT
MOST_UNCHECKED = 256  # buffers kept alive until they are checked
# Bindings from whose size kernels take the number of elements.
SIZED = {"pairs", "old_table", "values"}
# Labels of buffers whose padding is used: as room for more, or as elements of a binding above.
PADDING_IN_USE = {
    *("documents", "values", "busy", "multiply-add values"),
    *("pairs", "pair counts", "position list"),
}


class GuardedBuffer(Buffer):
    """Memory with guard words after it."""

    def view(self, offset: int, nbytes: int) -> Buffer:
        part = super().view(offset, nbytes)
        return GuardedBuffer(part.label, part.nbytes, part.handle, part.offset)


class GuardedKernel(Kernel):
    """A kernel that binds guard words, too."""

    def bind(self, **buffers: Buffer) -> BoundKernel:
        longer = {
            name: replace(buffer, nbytes=buffer.nbytes + GUARD_BYTES)
            if isinstance(buffer, GuardedBuffer) and name not in SIZED
            else buffer
            for name, buffer in buffers.items()
        }
        bound = super().bind(**longer)
        ordered = tuple(buffers[binding.name] for binding in self.bindings)
        return replace(bound, buffers=ordered)


class GuardedDevice(Device):
    """A device whose buffers have guard words."""

    _make_kernel = GuardedKernel

    def __init__(self, opened: OpenedAdapter) -> None:
        self._unchecked: list[tuple[Buffer, int]] = []  # and the bytes asked for
        super().__init__(opened)

    def create_buffer(self, label: str, nbytes: int) -> Buffer:
        if nbytes + 2 * GUARD_BYTES > self.max_binding_bytes:
            return super().create_buffer(label, nbytes)
        if len(self._unchecked) >= MOST_UNCHECKED:
            self.check_guards()
        asked = max(4, -(-nbytes // 4) * 4)
        whole = super().create_buffer(label, aligned(nbytes) + GUARD_BYTES)
        guards = np.full((whole.nbytes - asked) // 4, GUARD, np.uint32)
        self.handle.queue.write_buffer(whole.handle, asked, guards)
        buffer = GuardedBuffer(label, whole.nbytes - GUARD_BYTES, whole.handle)
        self._unchecked.append((buffer, asked))
        return buffer

    def check_guards(self) -> None:
        """Raise an AssertionError if a kernel wrote after a buffer; forget the buffers."""
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:
            return
        size = 2 * GUARD_BYTES  # of a buffer's padding and guard words, at most
        found = super().create_buffer("guard words", size * len(unchecked))
        commands = self.record()
        for number, (buffer, asked) in enumerate(unchecked):
            length = buffer.nbytes + GUARD_BYTES - asked
            commands.copy(buffer.handle, found.handle, length, asked, number * size)
        commands.submit()
        words = self.read(found, size // 4 * len(unchecked), np.uint32)
        for (buffer, asked), row in zip(unchecked, words.reshape(len(unchecked), -1), strict=True):
            padding = row[: (buffer.nbytes - asked) // 4]
            guards = row[len(padding) :][: GUARD_BYTES // 4]
            bad = np.flatnonzero(guards != GUARD) * 4 + len(padding) * 4
            if buffer.label not in PADDING_IN_USE and padding.any():  # else the host cleared it
                bad = np.concatenate([np.flatnonzero(padding != GUARD) * 4, bad])
            assert not len(bad), (
                f"a kernel wrote {bad[0]} bytes after {buffer.label}: {asked} bytes"
            )
