"""Recording: many dispatches and copies in one encoder, submitted together.

Dispatches of one pass run in order and each sees what those before it wrote. With timing on, each
dispatch gets a pass of its own with a timestamp at either end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wgpu

from llmgpu.gpu import native
from llmgpu.gpu.buffers import Buffer
from llmgpu.gpu.kernel import BoundKernel

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

MAX_GROUPS = 65_535  # workgroups in one dimension of a dispatch
MAX_TIMED = 2_000  # dispatches timed in one submission


def split_groups(groups: int) -> tuple[int, int]:
    """Return (x, y) with x * y >= groups and neither above the limit of a dimension.

    A kernel numbers its workgroup as ``workgroup_id.y * num_workgroups.x + workgroup_id.x`` and
    ignores the few beyond the number it needs.
    """
    if groups <= MAX_GROUPS:
        return groups, 1
    return MAX_GROUPS, -(-groups // MAX_GROUPS)


class Commands:
    """A list of commands being recorded. Made by `Device.record`, used up by `Device.submit`."""

    def __init__(self, device: Device, *, timed: bool) -> None:
        """Begin recording."""
        self._device = device
        self._encoder: Any = device.handle.create_command_encoder(label="llmgpu")
        self._pass: Any = None
        self._fast: native.FastPass | None = None
        self._kept: list[object] = []  # alive until the submission
        self._finished = False
        self.staging: list[Any] = []  # mapped buffers must not be submitted
        self.timed_labels: list[str] = []
        self._queries: Any = None
        if timed and "timestamp-query" in device.features:
            self._queries = device.handle.create_query_set(type="timestamp", count=2 * MAX_TIMED)

    def dispatch(self, kernel: BoundKernel, groups: int) -> None:
        """Run `groups` workgroups of a kernel, split over two dimensions where needed."""
        recorder = self._begin(kernel.label)
        recorder.set(kernel.pipeline, kernel.bind_group)
        recorder.dispatch(*split_groups(groups))
        self._kept.append(kernel)

    def dispatch_indirect(self, kernel: BoundKernel, counts: Buffer, offset: int) -> None:
        """Run as many workgroups as the 3 u32 at byte `offset` of `counts` say.

        `counts` must not be bound to the kernel itself.
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

    def finish(self) -> Any:
        """End recording and return wgpu's command buffer; submitting one twice would abort.

        Raises:
            RuntimeError: these commands were submitted before.
        """
        if self._finished:
            raise RuntimeError("these commands were submitted before; record new ones")
        self._finished = True
        self._end_pass()
        if self.timed_labels:
            self._resolve_timestamps()
        return self._encoder.finish()

    def _begin(self, label: str) -> native.FastPass:
        if self._queries is not None and len(self.timed_labels) < MAX_TIMED:
            self._end_pass()
            first = 2 * len(self.timed_labels)
            self.timed_labels.append(label)
            return self._open_pass(
                timestamp_writes={
                    "query_set": self._queries,
                    "beginning_of_pass_write_index": first,
                    "end_of_pass_write_index": first + 1,
                }
            )
        return self._fast or self._open_pass()

    def _open_pass(self, **options: Any) -> native.FastPass:
        self._pass = self._encoder.begin_compute_pass(label="llmgpu", **options)
        self._fast = native.FastPass(self._pass)
        return self._fast

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._kept.append(self._pass)
            self._pass = self._fast = None

    def _resolve_timestamps(self) -> None:
        count = 2 * len(self.timed_labels)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self.timestamps = self._device.handle.create_buffer(size=8 * count, usage=usage)
        self._encoder.resolve_query_set(self._queries, 0, count, self.timestamps, 0)
