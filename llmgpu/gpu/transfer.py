"""Bulk transfers through mapped staging memory, copied by several threads.

Writing through the queue allocates a fresh staging buffer each time, and reading through it makes
an extra copy; persistent mapped buffers are several times faster.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import wgpu
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.gpu import native
from llmgpu.gpu.adapters import Buffer, OpenedAdapter, aligned
from llmgpu.gpu.commands import Commands
from llmgpu.processors import usable_processors

COPY_PIECE = 4 << 20  # bytes that one thread copies at a time
COPY_THREADS = min(12, usable_processors())  # beyond 12, memory is the limit
_copiers = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="llmgpu-copy")


def parallel_copy(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Copy bytes between arrays of one length with several threads."""
    pieces = range(0, len(source), COPY_PIECE)
    if len(pieces) == 1:
        target[:] = source
        return

    def copy(start: int) -> None:
        target[start : start + COPY_PIECE] = source[start : start + COPY_PIECE]

    for _ in _copiers.map(copy, pieces):
        pass


class Staging:
    """Host memory that the device copies from: written while mapped, submitted while not."""

    def __init__(self, opened: OpenedAdapter, nbytes: int) -> None:
        """Allocate room for `nbytes`, not mapped yet."""
        self.nbytes = aligned(nbytes)
        self._opened = opened
        usage = wgpu.BufferUsage.MAP_WRITE | wgpu.BufferUsage.COPY_SRC
        self._buffer = opened.create_handle("staging", self.nbytes, usage)
        self._map: native.BufferMap | None = None

    def is_mapped(self) -> bool:
        """Whether the host has the memory, so that it must not be submitted."""
        return self._map is not None

    def array(self) -> NDArray[np.uint8]:
        """Wait for the last copy from the memory; return it to be written, shape (nbytes,).

        The view is invalid after `copy_to`.
        """
        if self._map is None:
            self._map = native.BufferMap(self._buffer, write=True, nbytes=self.nbytes)
            if not self._map.wait(self._opened.handle):
                raise DeviceError(f"{self._opened.name} can't map {self.nbytes} bytes for writing")
        return self._map.array()

    def copy_to(
        self, commands: Commands, target: Buffer, nbytes: int, target_offset: int = 0
    ) -> None:
        """Unmap, and record the copy of the first `nbytes` bytes to an offset of `target`."""
        if self._map is not None:
            self._map.unmap()
            self._map = None
        commands.still_mapped.append(self.is_mapped)
        size = -(-nbytes // 4) * 4
        offset = target.offset + target_offset
        commands.copy(self._buffer, target.handle, size, target_offset=offset)


class Download:
    """Host memory that the device copies into, kept and grown between uses.

    A download of 0 bytes is allowed, and does nothing.
    """

    def __init__(self, opened: OpenedAdapter) -> None:
        """Allocate nothing yet."""
        self._opened = opened
        self._buffer: object = None
        self._capacity = 0
        self._size = 0  # bytes of the copy under way
        self._pending: native.BufferMap | None = None

    def start(self, source: Buffer, nbytes: int) -> None:
        """Submit the copy of the first `nbytes` bytes of `source`."""
        commands = Commands(self._opened)
        self.record(commands, source, nbytes)
        commands.submit()
        self.begin()

    def record(self, commands: Commands, source: Buffer, nbytes: int) -> None:
        """Record the copy among other commands; call `begin` when they are submitted."""
        if self._pending is not None:
            raise RuntimeError("a download is under way in this memory")
        self._size = -(-nbytes // 4) * 4
        if nbytes:
            self.reserve(self._size)
            commands.copy(source.handle, self._buffer, self._size, source_offset=source.offset)

    def begin(self) -> None:
        """Ask for the memory; call it after the commands with the copy were submitted."""
        if self._size:
            self._pending = native.BufferMap(self._buffer, write=False, nbytes=self._size)

    def finish(self, out: NDArray[np.uint8]) -> None:
        """Wait for the copy and move the first len(out) bytes into `out`."""
        if len(out) > self._size or (self._size and self._pending is None):
            raise RuntimeError(f"no download of {len(out)} bytes is under way in this memory")
        self._take(out)

    def cancel(self) -> None:
        """Discard the copy under way, if there is one."""
        self._take(np.empty(0, np.uint8))

    def _take(self, out: NDArray[np.uint8]) -> None:
        mapped, self._pending = self._pending, None
        if mapped is None:
            return
        if not mapped.wait(self._opened.handle):
            raise DeviceError(f"{self._opened.name} can't map {self._size} bytes for reading")
        parallel_copy(out, mapped.array()[: len(out)])
        mapped.unmap()

    def reserve(self, nbytes: int) -> None:
        """Make room for `nbytes` bytes ahead of time, since allocating takes a while."""
        if nbytes > self._capacity:
            self._buffer = None
            self._capacity = aligned(max(nbytes, int(self._capacity * 1.5)))
            usage = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
            self._buffer = self._opened.create_handle("download", self._capacity, usage)
