"""Recorded commands: copies, clears, workgroup counts on the device, timed dispatches."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.gpu.commands import MAX_GROUPS, MAX_TIMED, Commands, Staging
from llmgpu.gpu.device import Device
from tests.gpu.test_device import boundary_kernel


def test_copies_at_offsets_and_clears(any_device: Device) -> None:
    source, target = (any_device.create_buffer(name, 1024) for name in ("source", "target"))
    numbers = np.arange(256, dtype=np.uint32)
    any_device.write(source, numbers)
    commands = any_device.record()
    commands.copy(source.handle, target.handle, 400, source_offset=40, target_offset=80)
    commands.clear(source)
    commands.submit()
    expected = np.zeros(256, np.uint32)
    expected[20:120] = numbers[10:110]
    np.testing.assert_array_equal(any_device.read(target, 256, np.uint32), expected)
    assert not any_device.read(source, 256, np.uint32).any()


def test_a_copy_sees_the_dispatch_before_it(any_device: Device) -> None:
    bound = boundary_kernel(any_device, 640)
    copies = any_device.create_buffer("copies", 5120)
    commands = any_device.record()
    commands.copy(bound.buffers[3].handle, copies.handle, 2560)
    commands.dispatch(bound, 10)
    commands.copy(bound.buffers[3].handle, copies.handle, 2560, target_offset=2560)
    commands.submit()
    before, after = any_device.read(copies, 1280, np.uint32).reshape(2, 640)
    assert not before.any() and (after == 7).all()


@pytest.mark.parametrize("counts", [(0, 1, 1), (0, 0, 0), (3, 1, 1)])
def test_counts_come_from_the_device(any_device: Device, counts: tuple[int, int, int]) -> None:
    bound = boundary_kernel(any_device, 640)
    arguments = any_device.create_buffer("counts", 24)
    any_device.write(arguments, np.array((9, 9, 9, *counts), np.uint32))
    commands = any_device.record()
    commands.dispatch_indirect(bound, arguments, 12)
    commands.submit()
    symbols = any_device.read(bound.buffers[3], 640, np.uint32)
    assert np.count_nonzero(symbols == 7) == 64 * counts[0] * counts[1]


def test_counts_in_two_dimensions_come_from_the_device(any_device: Device) -> None:
    size = 64 * (MAX_GROUPS + 10) + 5
    bound = boundary_kernel(any_device, size)
    arguments = any_device.create_buffer("counts", 12)
    any_device.write(arguments, np.array((MAX_GROUPS, 2, 1), np.uint32))
    commands = any_device.record()
    commands.dispatch_indirect(bound, arguments, 0)
    commands.submit()
    assert (any_device.read(bound.buffers[3], size, np.uint32) == 7).all()


class CountedTimes(dict[str, float]):
    """Times of kernels; added: number of dispatches whose time was added."""

    added = 0

    def __setitem__(self, label: str, seconds: float) -> None:
        super().__setitem__(label, seconds)
        self.added += 1


@pytest.mark.slow
def test_more_dispatches_than_a_query_set_times_are_all_timed(device: Device) -> None:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp queries")
    bound = boundary_kernel(device, 64)
    staging = Staging(device, 64)
    staging.array()[:] = 1
    times = CountedTimes()
    commands = Commands(device, times)
    staging.copy_to(commands, bound.buffers[0], 64)
    for _ in range(2 * MAX_TIMED + 1):
        commands.dispatch(bound, 1)
    assert not times  # nothing is submitted yet
    commands.submit()
    assert times["bpe_word_boundary"] > 0
    assert times.added == 2 * MAX_TIMED + 1
    assert (device.read(bound.buffers[3], 64, np.uint32) == 8).all()
    with pytest.raises(RuntimeError, match="already submitted"):
        commands.submit()


def test_a_device_without_timestamps_times_nothing(portable_device: Device) -> None:
    bound = boundary_kernel(portable_device, 64)
    portable_device.timing = True
    try:
        commands = portable_device.record()
        commands.dispatch(bound, 1)
        commands.submit()
    finally:
        portable_device.timing = False
    assert not portable_device.gpu_seconds
    assert (portable_device.read(bound.buffers[3], 64, np.uint32) == 7).all()
