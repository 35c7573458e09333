"""Recording: many dispatches and copies in one encoder, submitted together.

Dispatches of one pass run in order and each sees what those before it wrote. With timing on, each
dispatch gets a pass to itself with a timestamp at either end.

Errors at submission end the process instead of raising, so `Commands.submit` is the only way to
submit: it checks that no buffer is mapped and that no commands are submitted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import wgpu

from llmgpu.errors import DeviceError
from llmgpu.gpu import native
from llmgpu.gpu.adapters import Buffer, OpenedAdapter
from llmgpu.gpu.kernel import BoundKernel

MAX_GROUPS = 65_535  # workgroups in one dimension of a dispatch
MAX_TIMED = 2_000  # dispatches that one query set times


def split_groups(groups: int) -> tuple[int, int]:
    """Return (x, y) with x * y >= groups and neither above the limit of a dimension.

    A kernel numbers its workgroup as ``workgroup_id.y * num_workgroups.x + workgroup_id.x`` and
    ignores the few above the number it needs.
    """
    if groups <= MAX_GROUPS:
        return groups, 1
    return MAX_GROUPS, -(-groups // MAX_GROUPS)


class Commands:
    """A list of commands being recorded. Made by `Device.record`, used up by `submit`.

    times: gets the seconds that each kernel took, by label; None turns timing off. A query set
        times only `MAX_TIMED` dispatches, so timed commands are submitted in several parts.
    """

    def __init__(self, opened: OpenedAdapter, times: dict[str, float] | None = None) -> None:
        """Begin recording."""
        self._opened = opened
        self._times = times if "timestamp-query" in opened.features else None
        self._submitted = False
        self._begin_part()

    def _begin_part(self) -> None:
        handle = self._opened.handle
        self._encoder: Any = handle.create_command_encoder(label="llmgpu")
        self._pass: Any = None
        self._fast: native.FastPass | None = None
        self._kept: list[object] = []  # alive until the submission
        self.still_mapped: list[Callable[[], bool]] = []  # asks whether the host has the memory
        self._timed_labels: list[str] = []
        if self._times is not None:
            self._queries = handle.create_query_set(type="timestamp", count=2 * MAX_TIMED)

    def dispatch(self, kernel: BoundKernel, groups: int) -> None:
        """Run `groups` workgroups of a kernel, split over two dimensions where needed."""
        recorder = self._begin(kernel.label)
        recorder.set(kernel.pipeline, kernel.bind_group)
        recorder.dispatch(*split_groups(groups))
        self._kept.append(kernel)

    def dispatch_indirect(self, kernel: BoundKernel, counts: Buffer, offset: int) -> None:
        """Run as many workgroups as the 3 u32 at byte `offset` of `counts` say.

        Raises:
            ValueError: the kernel itself binds `counts`.
        """
        if counts in kernel.buffers:
            raise ValueError(f"{kernel.label} binds the buffer of its own workgroup counts")
        recorder = self._begin(kernel.label)
        recorder.set(kernel.pipeline, kernel.bind_group)
        recorder.dispatch_indirect(counts.handle, offset)
        self._kept += (kernel, counts)

    def copy(
        self, source: Any, target: Any, nbytes: int, source_offset: int = 0, target_offset: int = 0
    ) -> None:
        """Copy `nbytes` between two buffers' handles; size and offsets are multiples of 4."""
        self._end_pass()
        self._encoder.copy_buffer_to_buffer(source, source_offset, target, target_offset, nbytes)
        self._kept += (source, target)

    def clear(self, buffer: Buffer) -> None:
        """Fill a buffer with zeros."""
        self._end_pass()
        self._encoder.clear_buffer(buffer.handle, buffer.offset, buffer.nbytes)
        self._kept.append(buffer)

    def submit(self) -> int:
        """Hand the commands to the device without waiting; return their number in its queue.

        Timed commands are waited for, because their timestamps are read.

        Raises:
            RuntimeError: staging memory is mapped, or these commands were submitted before; both
                would end the process.
        """
        if self._submitted:
            raise RuntimeError("these commands were submitted before; record new ones")
        submission = self._submit_part()
        self._submitted = True
        return submission

    def _submit_part(self) -> int:
        if any(is_mapped() for is_mapped in self.still_mapped):
            raise RuntimeError("staging memory is still mapped")
        self._end_pass()
        timestamps = self._resolve_timestamps() if self._timed_labels else None
        handle = self._opened.handle
        submission = native.submit(handle, self._encoder.finish())
        if timestamps is not None:
            self._collect_times(timestamps)
        return submission

    def _begin(self, label: str) -> native.FastPass:
        if self._times is None:
            return self._fast or self._open_pass()
        if len(self._timed_labels) == MAX_TIMED:
            self._submit_part()
            self._begin_part()
        self._end_pass()
        first = 2 * len(self._timed_labels)
        self._timed_labels.append(label)
        return self._open_pass(
            timestamp_writes={
                "query_set": self._queries,
                "beginning_of_pass_write_index": first,
                "end_of_pass_write_index": first + 1,
            }
        )

    def _open_pass(self, **options: Any) -> native.FastPass:
        self._pass = self._encoder.begin_compute_pass(label="llmgpu", **options)
        self._fast = native.FastPass(self._pass)
        return self._fast

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._kept.append(self._pass)
            self._pass = self._fast = None

    def _resolve_timestamps(self) -> Any:
        """Record moving the timestamps to memory that the host maps; return its handle."""
        count = 2 * len(self._timed_labels)
        usage, create = wgpu.BufferUsage, self._opened.create_handle
        ticks = create("ticks", 8 * count, usage.QUERY_RESOLVE | usage.COPY_SRC)
        mapped = create("timestamps", 8 * count, usage.MAP_READ | usage.COPY_DST)
        self._encoder.resolve_query_set(self._queries, 0, count, ticks, 0)
        self.copy(ticks, mapped, 8 * count)
        return mapped

    def _collect_times(self, timestamps: Any) -> None:
        handle, count = self._opened.handle, 2 * len(self._timed_labels)
        pending = native.BufferMap(timestamps, write=False, nbytes=8 * count)
        if not pending.wait(handle):
            raise DeviceError(f"{self._opened.name} can't map its timestamps for reading")
        ticks = pending.array().view(np.uint64).copy()
        pending.unmap()
        spans = (ticks[1::2] - ticks[::2]).astype(np.float64) * native.timestamp_period(handle)
        times = self._times if self._times is not None else {}
        for label, span in zip(self._timed_labels, spans.tolist(), strict=True):
            times[label] = times.get(label, 0.0) + span * 1e-9
