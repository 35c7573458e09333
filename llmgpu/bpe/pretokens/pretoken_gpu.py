"""Slices of a text on a device: their pipeline, and the marking of the starts of pre-tokens.

One thread reads and submits slices. The caller's thread consumes the finished slices in order. So
reading, computing and the caller's work on the results overlap. Once the caller stops, the reading
thread never calls the driver again. The process can then end safely, even if the thread is still
reading.

The kernels in wgsl/pretoken, one for each family of patterns, mark the starts of pre-tokens.
Whether a pre-token starts may depend on a long run of characters. A kernel looks only `reach` bytes
back and ahead, so it may leave a segment of SEGMENT_BYTES bytes undecided. The kernels list these
segments in `undecided`. The host then processes the slice, or marks its starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.custom_regex import HostPattern
from llmgpu.bpe.pretokens.neighbours import NeighboursPattern
from llmgpu.bpe.pretokens.pattern import as_pattern
from llmgpu.bpe.pretokens.slices import Slice, SliceSource
from llmgpu.bpe.pretokens.unicode_classes import code_point_classes
from llmgpu.gpu.commands import Commands, Staging
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose, constant, struct_dtype
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


PARAMS = struct_dtype("pretoken/params.wgsl", "PretokenParams")
SEGMENT_BYTES = 32  # bytes of text that one thread marks
# Bytes that a thread looks back and ahead, see walk.wgsl. The number is low on a software adapter,
# because the host marks undecided segments faster than such an adapter walks.
REACH, SOFTWARE_REACH = constant("pretoken/walk.wgsl", "REACH"), 256
# The table of classes has two levels. An entry of the first level is for this many code points; a
# u32 of the second level has the classes of 8 code points.
BLOCK = 8 * constant("pretoken/unicode.wgsl", "BLOCK_WORDS")


class GpuPretokenizer:
    """Marks the pre-token starts of slices under one pattern on one device.

    text: buffer on the device for the text of a slice, and at least 8 more bytes.
    start_bits: buffer on the device with a bit for each byte of the slice recorded last, lowest bit
        first.
    reach: bytes that the kernel looks back and ahead.
    undecided: buffer of u32 on the device: the number of undecided segments of this slice, then the
        indices of these segments. Their bits in `start_bits` are not valid. If there are any, call
        `mark_on_host`.
    """

    def __init__(
        self,
        device: Device,
        pattern: str | Pattern,
        capacity: int,
        *,
        reach: int | None = None,
    ) -> None:
        """Compile the pattern's kernel and allocate the buffers.

        capacity: bytes of the largest slice.
        reach: bytes that the kernel looks back and ahead; None: REACH, or SOFTWARE_REACH on a
            software adapter.
        """
        found = as_pattern(pattern)
        self._device, self._pattern = device, found
        self._by_host = isinstance(found, HostPattern)
        # Only kernels that include walk.wgsl have a reach.
        self.reach = reach or (SOFTWARE_REACH if device.is_software else REACH)
        file = f"pretoken/{found.kernel}_starts.wgsl"
        walks = "REACH" in compose(file, device.source_choices).settings
        walking = {"REACH": self.reach} if walks else {}
        self._kernel = device.kernel(file, **found.constants, **walking)
        size = -(-capacity // SEGMENT_BYTES) * 4
        self.text = device.create_buffer("text", capacity + 8)
        self.start_bits = device.create_buffer("start bits", size)
        self._document_bits = device.create_buffer("document bits", size)
        self.undecided = device.create_buffer("undecided", 4 + size)
        self._params = device.create_buffer("pretoken params", PARAMS.itemsize)
        buffers = {
            "text": self.text,
            "params": self._params,
            "document_bits": self._document_bits,
            "start_bits": self.start_bits,
            "undecided": self.undecided,
        }
        # Only some kernels list undecided segments, read character classes, or read pairs.
        if found.unicode is not None:
            packed = pack_classes(found.unicode)
            buffers["unicode_classes"] = device.upload("Unicode classes", packed)
        if isinstance(found, NeighboursPattern):
            buffers["neighbours"] = device.upload("neighbours", found.bits.view(np.uint32))
        self._bound = self._kernel.bind_from(buffers)

    def record(self, commands: Commands, piece: Slice) -> None:
        """Upload a slice's parameters and document starts; record commands that mark its starts.

        Bits near the slice's end are not final unless a document ends there, see
        `Pattern.start_mask`.
        """
        inner = piece.starts[(piece.starts > 0) & (piece.starts < piece.length)]
        params = np.zeros(1, PARAMS)
        params["length"] = piece.length
        params["has_documents"] = len(inner) > 0
        params["continues"] = piece.continues
        self._device.write(self._params, params)
        if len(inner):
            starts = np.zeros(piece.length, np.bool_)
            starts[inner] = True
            self._device.write(self._document_bits, _pack_bits(starts))
        self._device.write(self.undecided, np.full(1, self._by_host, np.uint32))
        groups = -(-piece.length // (SEGMENT_BYTES * self._kernel.workgroup_size))
        commands.dispatch(self._bound, groups)

    def read_back(self, piece: Slice) -> Slice:
        """Return the slice recorded last with its text, which is read back from the device."""
        buffer = np.zeros(piece.length + PADDING, np.uint8)
        buffer[: piece.length] = self._device.read(self.text, piece.length, np.uint8)
        return replace(piece, buffer=buffer, text=buffer[: piece.length])

    def mark_on_host(self, piece: Slice) -> None:
        """Mark all starts of the slice recorded last, which has its text, on the host."""
        mask = self._pattern.start_mask(piece.text, piece.starts)
        self._device.write(self.start_bits, _pack_bits(mask))
        self._device.write(self.undecided, np.zeros(1, np.uint32))


def _pack_bits(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a bit for each flag, lowest bit of a byte first, padded to whole segments."""
    padded = np.zeros(-(-len(flags) // SEGMENT_BYTES) * SEGMENT_BYTES, np.bool_)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little")


@cache
def pack_classes(unicode: str) -> NDArray[np.uint32]:
    """Return the table for wgsl/pretoken/unicode.wgsl: first level, then second level, as uint32.

    The first level has the index of a block for every BLOCK code points. The second level has the
    blocks, with the classes of BLOCK code points each, 4 bits a class.

    unicode: the version of the classes.
    """
    halves = code_point_classes(unicode).reshape(-1, BLOCK // 2, 2)
    numbers: dict[bytes, int] = {}
    packed = (block.tobytes() for block in halves[..., 0] | halves[..., 1] << 4)
    by_block = np.array([numbers.setdefault(block, len(numbers)) for block in packed], "<u4")
    return np.concatenate([by_block, np.frombuffer(b"".join(numbers), "<u4")])
