"""Slices of a text in a pipeline through a device: read ahead, computed, taken in order.

A thread reads slices into staging memory and submits them; the caller's thread takes them in order
as they finish. So reading, computing and the caller's work on the results overlap. Once the caller
stops, that thread makes no further call of the driver: the process may end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.slices import Slice, SliceSource
from llmgpu.gpu import Staging


class SliceSlot(Protocol):
    """Memory for one slice in the pipeline."""

    staging: Staging

    def submit(self, piece: Slice) -> None:
        """Submit the work on the slice that was read into the staging memory."""
        ...


_Slot = TypeVar("_Slot", bound=SliceSlot)


def submitted_slices(
    reader: SliceSource, slots: Sequence[_Slot], slice_bytes: int, first_bytes: int | None = None
) -> Iterator[tuple[_Slot, Slice]]:
    """Yield slots with their submitted slices, in order; a slot is reused after its turn.

    An oversized slice is yielded without having been submitted; the caller computes it on the host.

    slice_bytes: longest slice. first_bytes: a shorter limit for the first slice, which doubles from
        slice to slice.

    Raises what reading or submitting a slice raised, in place of that slice.
    """
    free: queue.SimpleQueue[_Slot | None] = queue.SimpleQueue()
    submitted: queue.SimpleQueue[tuple[_Slot, Slice] | BaseException | None] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)

    driver = threading.Lock()  # held while the thread is in the driver
    has_enough = False

    def submit_all() -> None:
        size = first_bytes or slice_bytes
        try:
            while (slot := free.get()) is not None:
                with driver:
                    if has_enough:
                        break
                    buffer = slot.staging.array()[: min(size, slice_bytes)]
                piece = _read(reader, buffer)
                if piece is None:
                    break
                with driver:
                    if has_enough:
                        break
                    if not piece.oversized:
                        slot.submit(piece)
                submitted.put((slot, piece))
                size *= 2
            submitted.put(None)
        except BaseException as error:
            submitted.put(error)

    threading.Thread(target=submit_all, name="llmgpu-submit", daemon=True).start()
    try:
        while (item := submitted.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            free.put(item[0])
    finally:
        with driver:
            has_enough = True
        free.put(None)  # ends the thread, at once or when its read returns


def _read(reader: SliceSource, buffer: NDArray[np.uint8]) -> Slice | None:
    """Return the next slice that is not empty, None at the end."""
    while (piece := reader.read(buffer)) is not None:
        if piece.main_end or len(piece.document_starts):
            return piece
    return None
