"""Recording of dispatches and copies, which are submitted together; transfers of large arrays.

Dispatches of one pass run in order, and each sees the writes of all earlier dispatches. With timing
on, each dispatch runs in a separate pass with a timestamp at either end.

An error at submission would end the process instead of raising an exception. So all submissions go
through `Commands.submit`, which refuses mapped buffers and a second submission of the same
commands.

Large arrays pass through mapped staging memory, to or from which several threads copy. The queue
would allocate a new staging buffer for each write, and make an extra copy for each read; persistent
mapped buffers are several times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import call, library
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import Buffer, OpenedAdapter, aligned
from llmgpu.gpu.driver import BufferMap
from llmgpu.gpu.kernel import BoundKernel
from llmgpu.machine import usable_processors

MAX_GROUPS = 65_535  # most workgroups in one dimension of a dispatch
MAX_TIMED = 2_000  # most dispatches that one query set times


def split_groups(groups: int) -> tuple[int, int]:
    """Return (x, y) with x * y >= groups, both within the limit of a dimension.

    A kernel numbers workgroups as ``workgroup_id.y * num_workgroups.x + workgroup_id.x``; surplus
    workgroups do nothing.
    """
    if groups <= MAX_GROUPS:
        return groups, 1
    return MAX_GROUPS, -(-groups // MAX_GROUPS)


class Commands:
    """A list of commands being recorded. `Device.record` begins the list, `submit` ends it.

    times: receives the seconds of each kernel, by label; None turns timing off.
    """

    def __init__(self, opened: OpenedAdapter, times: dict[str, float] | None = None) -> None:
        self._opened = opened
        self._times = times if "timestamp-query" in opened.features else None
        self._submitted = False
        self._encoder: Any = opened.handle.create_command_encoder(label="llmgpu")
        self._pass: Any = None
        self._kept: list[object] = []  # objects that must stay alive until the submission
        # Functions that return whether staging memory is mapped.
        self.still_mapped: list[Callable[[], bool]] = []
        self.downloads: list[Download] = []  # those to which the commands copy
        self._timed_labels: list[str] = []
        self._queries: list[Any] = []  # a query set for each MAX_TIMED dispatches

    def dispatch(self, kernel: BoundKernel, groups: int) -> None:
        """Run `groups` workgroups of a kernel, in two dimensions if one is too short."""
        self._set(kernel)
        functions, open_pass = self._opened.webgpu.binding.lib, self._pass._internal
        functions.wgpuComputePassEncoderDispatchWorkgroups(open_pass, *split_groups(groups), 1)

    def dispatch_indirect(self, kernel: BoundKernel, counts: Buffer, offset: int) -> None:
        """Run a kernel with as many workgroups as the 3 u32 (x, y, z) at byte `offset` of `counts`.

        Raises ValueError if the kernel itself binds `counts`.
        """
        if counts in kernel.buffers:
            raise ValueError(f"{kernel.label} binds the buffer of its own workgroup counts")
        self._set(kernel)
        functions, place = self._opened.webgpu.binding.lib, (counts.handle._internal, offset)
        functions.wgpuComputePassEncoderDispatchWorkgroupsIndirect(self._pass._internal, *place)
        self._kept.append(counts)

    def copy(
        self, source: Any, target: Any, nbytes: int, source_offset: int = 0, target_offset: int = 0
    ) -> None:
        """Copy `nbytes` between the handles of two buffers; size and offsets are multiples of 4."""
        self._end_pass()
        self._encoder.copy_buffer_to_buffer(source, source_offset, target, target_offset, nbytes)
        self._kept += (source, target)

    def clear(self, buffer: Buffer) -> None:
        """Fill a buffer with zeros."""
        self._end_pass()
        self._encoder.clear_buffer(buffer.handle, buffer.offset, buffer.nbytes)
        self._kept.append(buffer)

    def submit(self) -> object:
        """Submit the commands to the device; return the submission, for `Device.wait`.

        Does not wait for the device, unless commands are timed: then the timestamps are read.

        Raises RuntimeError if staging memory is mapped, or if these commands were submitted before;
        in both cases the driver would end the process.
        """
        if self._submitted:
            raise RuntimeError("these commands were already submitted; record new ones")
        if any(is_mapped() for is_mapped in self.still_mapped):
            raise RuntimeError("staging memory is still mapped")
        self._end_pass()
        timestamps = self._copy_timestamps() if self._timed_labels else None
        finished = self._opened.call(self._encoder.finish)
        submission = self._opened.webgpu.submit(self._opened.handle, finished)
        self._submitted = True
        for download in self.downloads:
            download.begin()
        if timestamps is not None:
            self._collect_times(timestamps)
        return submission

    def _set(self, kernel: BoundKernel) -> None:
        """Open a pass if none is open, and choose the kernel of the pass's next dispatch.

        The driver's C functions take a quarter of the time of the package's methods. Their
        arguments must stay alive until the submission. Errors are raised by `_encoder.finish`.
        """
        writes = None
        if self._times is not None:
            self._end_pass()
            place = len(self._timed_labels) % MAX_TIMED
            if place == 0:
                create = self._opened.handle.create_query_set
                self._queries += [self._opened.call(create, type="timestamp", count=2 * MAX_TIMED)]
            names = ("beginning_of_pass_write_index", "end_of_pass_write_index")
            writes = {name: 2 * place + k for k, name in enumerate(names)}
            writes["query_set"] = self._queries[-1]
            self._timed_labels.append(kernel.label)
        if self._pass is None:
            begin = self._encoder.begin_compute_pass
            self._pass = begin(label="llmgpu", timestamp_writes=writes)
        binding, group = self._opened.webgpu.binding, kernel.bind_group._internal
        lib, open_pass = binding.lib, self._pass._internal
        lib.wgpuComputePassEncoderSetPipeline(open_pass, kernel.pipeline._internal)
        lib.wgpuComputePassEncoderSetBindGroup(open_pass, 0, group, 0, binding.ffi.NULL)
        self._kept.append(kernel)

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._kept.append(self._pass)
            self._pass = None

    def _copy_timestamps(self) -> Download:
        """Record the copy of the timestamps to the host."""
        count = 2 * len(self._timed_labels)
        ticks = self._opened.create_handle("ticks", 8 * count, "QUERY_RESOLVE | COPY_SRC")
        for first, queries in zip(range(0, count, 2 * MAX_TIMED), self._queries, strict=True):
            resolved = min(count - first, 2 * MAX_TIMED)
            self._encoder.resolve_query_set(queries, 0, resolved, ticks, 8 * first)
        download = Download(self._opened)
        download.record(self, (Buffer("ticks", 8 * count, ticks), 8 * count))
        return download

    def _collect_times(self, timestamps: Download) -> None:
        ticks = np.empty(2 * len(self._timed_labels), np.uint64)
        timestamps.finish(ticks.view(np.uint8))
        period = self._opened.webgpu.timestamp_period(self._opened.handle)
        spans = (ticks[1::2] - ticks[::2]).astype(np.float64) * period
        times = self._times if self._times is not None else {}
        for label, span in zip(self._timed_labels, spans.tolist(), strict=True):
            times[label] = times.get(label, 0.0) + span * 1e-9


FEW_BYTES = 1 << 20  # size up to which one thread copies as fast as several threads
# More than 12 threads are no faster, because the bandwidth of memory is the limit.
COPY_THREADS = min(12, usable_processors())


def parallel_copy(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Copy bytes between contiguous arrays of equal length; with the CPU engine, in threads."""
    if len(source) > FEW_BYTES and library() is not None:
        call("copy", target, source, len(source), COPY_THREADS)
    else:
        target[:] = source


class Staging:
    """Host memory from which the device copies. It can be written only while it is mapped."""

    def __init__(self, opened: OpenedAdapter, nbytes: int) -> None:
        """Allocate `nbytes` bytes, rounded up; the memory is not mapped yet."""
        self.nbytes = aligned(nbytes)
        self._opened = opened
        self._buffer = opened.create_handle("staging", self.nbytes, "MAP_WRITE | COPY_SRC")
        self._map: BufferMap | None = None

    def is_mapped(self) -> bool:
        """Whether the memory is mapped. Commands that copy from mapped memory are refused."""
        return self._map is not None

    def array(self) -> NDArray[np.uint8]:
        """Wait for the last copy from the memory; return the mapped memory: uint8 (nbytes,).

        The array is invalid after `copy_to`. Raises DeviceError if mapping fails.
        """
        if self._map is None:
            self._map = self._opened.map_buffer(self._buffer, write=True, nbytes=self.nbytes)
            if not self._map.wait():
                raise DeviceError(f"{self._opened.name} can't map {self.nbytes} bytes for writing")
        return np.frombuffer(self._map.memory(), np.uint8)

    def copy_to(
        self,
        commands: Commands,
        target: Buffer,
        nbytes: int,
        source_offset: int = 0,
        target_offset: int = 0,
    ) -> None:
        """Unmap the memory, and record the copy of `nbytes` bytes of it into `target`."""
        if self._map is not None:
            self._opened.call(self._map.unmap)
            self._map = None
        commands.still_mapped.append(self.is_mapped)
        size = -(-nbytes // 4) * 4
        offset = target.offset + target_offset
        commands.copy(self._buffer, target.handle, size, source_offset, offset)


class Download:
    """Host memory into which the device copies. It is reused, and enlarged if needed.

    A download of 0 bytes is allowed, and does nothing.
    """

    def __init__(self, opened: OpenedAdapter) -> None:
        self._opened = opened
        self._buffer: object = None
        self._capacity = 0
        self._size = 0  # bytes of the running copy
        self._pending: BufferMap | None = None

    def start(self, *pieces: tuple[Buffer, int]) -> None:
        """Submit copies of the first bytes of buffers to this memory, end to end.

        pieces: (buffer, number of bytes) for each copy.
        """
        commands = Commands(self._opened)
        self.record(commands, *pieces)
        commands.submit()

    def record(self, commands: Commands, *pieces: tuple[Buffer, int]) -> None:
        """Record the copies of `start` among other commands."""
        if self._pending is not None:
            raise RuntimeError("a download is under way in this memory")
        sizes = [-(-nbytes // 4) * 4 for _, nbytes in pieces]
        self._size = sum(sizes)
        self.reserve(self._size)
        offset = 0
        for (source, _), size in zip(pieces, sizes, strict=True):
            if size:
                commands.copy(source.handle, self._buffer, size, source.offset, offset)
            offset += size
        commands.downloads.append(self)

    def begin(self) -> None:
        """Begin to map the memory. `Commands.submit` calls this."""
        if self._size:
            self._pending = self._opened.map_buffer(self._buffer, write=False, nbytes=self._size)

    def finish(self, *outs: NDArray[np.uint8]) -> None:
        """Wait for the running copy; copy the bytes of the k-th buffer copied into `outs[k]`."""
        size = sum(-(-len(out) // 4) * 4 for out in outs)
        if size > self._size or (self._size and self._pending is None):
            raise RuntimeError(f"no download of {size} bytes is under way in this memory")

        def copy(copied: NDArray[np.uint8]) -> None:
            offset = 0
            for out in outs:
                parallel_copy(out, copied[offset : offset + len(out)])
                offset += -(-len(out) // 4) * 4

        self.take(copy)

    def cancel(self) -> None:
        """Wait for the running copy, if any, and discard its bytes."""
        self.take(lambda copied: None)

    def take(self, use: Callable[[NDArray[np.uint8]], None]) -> None:
        """Wait for the running copy, if any, and call `use` with its bytes.

        The bytes are valid only during the call. Raises the errors of `mapped`.
        """
        if self._pending is not None:
            copied, unmap = self.mapped()
            use(copied)
            unmap()

    def mapped(self) -> tuple[NDArray[np.uint8], Callable[[], None]]:
        """Wait for the running copy; return its bytes, and a function that makes them invalid.

        The array is up to 3 bytes longer than requested. Call the function before the next copy
        starts.
        Raises DeviceError if mapping fails.
        """
        mapped, self._pending = self._pending, None
        if mapped is None:
            raise RuntimeError("no download is under way in this memory")
        if not mapped.wait():
            raise DeviceError(f"{self._opened.name} can't map {self._size} bytes for reading")
        return np.frombuffer(mapped.memory(), np.uint8), partial(self._opened.call, mapped.unmap)

    def reserve(self, nbytes: int) -> None:
        """Allocate memory for `nbytes` bytes in advance, because allocation is slow."""
        if nbytes > self._capacity:
            self._buffer = None
            self._capacity = aligned(max(nbytes, int(self._capacity * 1.5)))
            create = self._opened.create_handle
            self._buffer = create("download", self._capacity, "MAP_READ | COPY_DST")
