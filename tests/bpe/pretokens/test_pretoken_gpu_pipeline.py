"""The thread that reads slices ahead: what it must not do when nobody wants more of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial

import pytest

from llmgpu.bpe.pretokens.pretoken_gpu import SLOTS, made_slots, submitted_slices
from llmgpu.bpe.pretokens.slices import Slice, SliceReader
from llmgpu.errors import CapacityError
from llmgpu.gpu.commands import Staging
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes


class SlowSlot:
    """A slot that takes its time to submit, and computes nothing."""

    def __init__(self, device: Device) -> None:
        self.staging = Staging(device, 4096)
        self.texts: list[bytes] = []
        self.is_submitting = False

    def submit(self, piece: Slice) -> None:
        self.is_submitting = True
        time.sleep(0.01)
        self.texts.append(piece.buffer[: piece.main_end].tobytes())
        self.is_submitting = False


def test_slices_come_in_order(device: Device) -> None:
    text = b"one two three " * 2000
    reader = SliceReader(corpus_from_bytes(text), "class")
    slots: list[SlowSlot] = []
    make_slot = partial(SlowSlot, device)
    found = [slot.texts[-1] for slot, _ in submitted_slices(reader, slots, make_slot, 4096, 256)]
    assert b"".join(found) == text
    assert len(found) > 6
    assert 1 <= len(slots) <= SLOTS


def test_a_short_text_takes_one_slot(device: Device) -> None:
    reader = SliceReader(corpus_from_bytes(b"one two three"), "class")
    slots: list[SlowSlot] = []
    assert len(list(submitted_slices(reader, slots, partial(SlowSlot, device), 4096))) == 1
    assert len(slots) == 1


def test_slots_that_do_not_fit_beside_the_first_are_left_out(device: Device) -> None:
    def future(content: SlowSlot | CapacityError) -> Future[SlowSlot]:
        made: Future[SlowSlot] = Future()
        if isinstance(content, CapacityError):
            made.set_exception(content)
        else:
            made.set_result(content)
        return made

    first, full = SlowSlot(device), CapacityError("out of memory")
    assert made_slots([future(first), future(full), future(full)]) == [first]
    with pytest.raises(CapacityError, match="out of memory"):
        made_slots([future(full), future(first)])


@pytest.mark.parametrize("taken", range(4))
def test_nothing_is_submitted_when_the_caller_has_enough(device: Device, taken: int) -> None:
    reader = SliceReader(corpus_from_bytes(b"one two three " * 20_000), "class")
    slots: list[SlowSlot] = []
    slices = submitted_slices(reader, slots, partial(SlowSlot, device), 4096)
    for _ in range(1 + taken):
        next(slices)
    slices.close()  # type: ignore[attr-defined]
    assert not any(slot.is_submitting for slot in slots)
    submitted = sum(len(slot.texts) for slot in slots)
    for thread in threading.enumerate():
        if thread.name == "llmgpu-job":
            thread.join(10)
    assert sum(len(slot.texts) for slot in slots) == submitted
