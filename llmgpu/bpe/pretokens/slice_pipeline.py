"""Slices of a text in a pipeline through a device: read ahead, computed, consumed in order.

One thread reads and submits slices. The caller's thread consumes the finished slices in order. So
reading, computing and the caller's work on the results overlap. Once the caller stops, the reading
thread never calls the driver again. The process can then end safely, even if the thread is still
reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import numpy as np

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.slices import Slice, SliceSource
from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.commands import Staging
from llmgpu.gpu.device import Device
from llmgpu.pipeline import in_order


class SliceSlot(Protocol):
    """Memory for one slice in the pipeline."""

    staging: Staging

    def submit(self, piece: Slice) -> None:
        """Submit the work on the slice that was read into the staging memory."""


SLOTS = 3  # slices in flight: one is read, one is computed, one is fetched
_Slot = TypeVar("_Slot", bound=SliceSlot)


def begin_slots(
    device: Device, threads: Executor, make_slot: Callable[[], _Slot]
) -> list[Future[_Slot]]:
    """Allocate all slots of a pipeline in `threads`, because allocation takes long.

    A software adapter allocates fast, so only one slot is allocated in advance.
    """
    return [threads.submit(make_slot) for _ in range(1 if device.is_software else SLOTS)]


def made_slots(slots: Sequence[Future[_Slot]]) -> list[_Slot]:
    """Wait for the slots of `begin_slots`; return all slots for which there was memory.

    A short text needs only the first slot, so only the error of the first slot is raised.
    """
    others = [slot.result() for slot in slots[1:] if slot.exception() is None]
    return [slots[0].result(), *others]


def submitted_slices(
    reader: SliceSource,
    slots: list[_Slot],
    make_slot: Callable[[], _Slot],
    slice_bytes: int,
    first_bytes: int | None = None,
    is_for_host: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[_Slot, Slice]]:
    """Yield slots with their submitted slices, in order.

    When the caller asks for the next slice, the slot of the previous slice is used again.

    slots: slots of earlier texts, to be reused. When all are in use, a slot from `make_slot` is
        added, up to SLOTS. Slots are added only when needed, because allocation takes long.
    slice_bytes: largest size of a slice. first_bytes: largest size of the first slice, if smaller;
        the limit then doubles from slice to slice, up to `slice_bytes`.

    is_for_host: tells before a slice is read whether the host processes it.

    A slice that is `apart` is yielded but not submitted; the caller must process it on the host.

    If reading or submitting a slice fails, the error is raised in place of the slice.
    """
    submitter = _Submitter(reader, slots, make_slot, is_for_host)
    taken = submitter.slices(min(first_bytes or slice_bytes, slice_bytes), slice_bytes)
    submitted = in_order(taken, lambda each: each, SLOTS, threads=0, reader_thread=True)
    try:
        for slot, piece in submitted:
            yield slot, piece
            submitter.free.put(slot)
    finally:
        submitter.stop()
        submitted.close()


class _Submitter(Generic[_Slot]):
    """Reads slices into free slots and submits them, in one thread.

    free: queue of slots to read into. A None in the queue ends the iterator that `slices` returns.
    `_make_slot` creates a slot; `stop` sets it to None.
    """

    def __init__(
        self,
        reader: SliceSource,
        slots: list[_Slot],
        make_slot: Callable[[], _Slot],
        is_for_host: Callable[[], bool],
    ) -> None:
        self._reader, self._slots, self._is_for_host = reader, slots, is_for_host
        self._make_slot: Callable[[], _Slot] | None = make_slot
        self.free: SimpleQueue[_Slot | None] = SimpleQueue()
        self._driver = threading.Lock()  # held while the thread calls the driver
        for slot in slots:
            self.free.put(slot)

    def slices(self, size: int, slice_bytes: int) -> Iterator[tuple[_Slot, Slice]]:
        """Yield slots with submitted slices; size: limit for the first slice, in bytes."""
        while (slot := self._next_slot()) is not None:
            piece = self._submit_next(slot, min(size, slice_bytes))
            if piece is None:
                return
            yield slot, piece
            if piece.end:
                return
            size *= 2

    def _next_slot(self) -> _Slot | None:
        if len(self._slots) < SLOTS and self.free.empty():
            with self._driver:
                if self._make_slot is not None:
                    self._slots.append(self._make_slot())
                    return self._slots[-1]
        return self.free.get()

    def _submit_next(self, slot: _Slot, size: int) -> Slice | None:
        """Read and submit the next slice; return None at the end of the text."""
        with self._driver:
            if self._make_slot is None:
                return None
            is_for_host = self._is_for_host()
            buffer = np.empty(size, np.uint8) if is_for_host else slot.staging.array()[:size]
        # Skip slices without text and documents.
        while (piece := self._reader.read(buffer)) is not None:
            if piece.main_end or len(piece.document_starts):
                break
        if piece is not None and is_for_host:
            piece = replace(piece, apart=True)
        with self._driver:
            if piece is None or self._make_slot is None:
                return None
            if not piece.apart:
                slot.submit(piece)
        return piece

    def stop(self) -> None:
        """Wait until the thread has left the driver, and let it make no further call."""
        with self._driver:
            self._make_slot = None  # lets the caller free the object that owns `make_slot`
        self.free.put(None)


def read_back(device: Device, text: Buffer, piece: Slice) -> Slice:
    """Return a submitted slice with its text, which is read back from a buffer of the device."""
    buffer = np.zeros(piece.length + PADDING, np.uint8)
    buffer[: piece.length] = device.read(text, piece.length, np.uint8)
    return replace(piece, buffer=buffer, text=buffer[: piece.length])
