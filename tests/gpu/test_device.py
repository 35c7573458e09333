"""Transfers, buffers, submissions, and refusals of calls that would end the process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from llmgpu.bpe.plain.recount_gpu import STATE
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import OpenedAdapter, list_adapters, select_adapter
from llmgpu.gpu.commands import MAX_GROUPS, Download, Staging, split_groups
from llmgpu.gpu.device import Device
from llmgpu.gpu.kernel import BoundKernel
from tests.conftest import require_adapter


def boundary_kernel(device: Device, size: int) -> BoundKernel:
    """A kernel that runs one thread a byte, for texts of up to `size` bytes of zeros."""
    state = np.zeros(1, STATE)
    state["symbol_count"] = size
    buffers = {
        "text": device.create_buffer("text", size),
        "start_bits": device.create_buffer("bits", size // 8 + 4),
        "byte_ranks": device.create_buffer("ranks", 1024),
        "symbols": device.create_buffer("symbols", 4 * size),
        "state": device.create_buffer("state", STATE.itemsize),
    }
    device.write(buffers["state"], state)
    device.write(buffers["byte_ranks"], np.arange(256, dtype=np.uint32) + 7)
    kernel = device.kernel("recount/00_word_boundary.wgsl", WORKGROUP_SIZE=64, symbols_per_word=1)
    return kernel.bind(**buffers)


@pytest.mark.parametrize("groups", [0, 1, MAX_GROUPS, MAX_GROUPS + 1, 10**7])
def test_split_covers_all_groups(groups: int) -> None:
    x, y = split_groups(groups)
    assert x <= MAX_GROUPS and y <= MAX_GROUPS
    assert groups <= x * y < groups + MAX_GROUPS


def test_dispatch_of_more_than_65535_workgroups(any_device: Device) -> None:
    size = 64 * (MAX_GROUPS + 10) + 5
    bound = boundary_kernel(any_device, size)
    commands = any_device.record()
    commands.dispatch(bound, -(-size // 64))
    commands.submit()
    symbols = any_device.read(bound.buffers[3], size, np.uint32)
    assert (symbols == 7).all()  # every thread ran: the rank of byte 0


def test_an_adapter_that_is_open_stays_as_it_was_opened() -> None:
    require_adapter()
    opened = OpenedAdapter(select_adapter(), frozenset(), {"max-buffer-size": 1 << 20})
    device = Device(opened)
    assert device.handle is opened.handle
    assert (device.features, device.subgroup_size) == (frozenset(), 0)
    assert device.max_binding_bytes == 1 << 20
    array = np.arange(1000, dtype=np.uint32)
    assert (device.read(device.upload("numbers", array), 1000, np.uint32) == array).all()


LARGE = pytest.param((64 << 20) + 4099, marks=pytest.mark.slow)


@pytest.mark.parametrize("nbytes", [1, 3, 4, 255, 4097, (1 << 20) + 1, LARGE])
def test_bytes_come_back(any_device: Device, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    buffer = any_device.create_buffer("data", nbytes)
    any_device.write(buffer, data)
    np.testing.assert_array_equal(any_device.read(buffer, nbytes, np.uint8), data)


def test_write_refuses_what_does_not_fit(device: Device) -> None:
    with pytest.raises(ValueError, match="300 bytes don't fit in small, which has 256"):
        device.write(device.create_buffer("small", 100), np.zeros(300, np.uint8))


def test_an_upload_is_a_buffer_with_the_array(device: Device) -> None:
    array = np.arange(100, dtype=np.uint32)
    buffer = device.upload("numbers", array)
    assert (buffer.label, buffer.nbytes) == ("numbers", 512)
    np.testing.assert_array_equal(device.read(buffer, 100, np.uint32), array)


def test_buffers_beyond_the_limits_are_refused() -> None:
    require_adapter()
    small = Device(
        OpenedAdapter(select_adapter(), limits={"max-storage-buffer-binding-size": 1 << 20})
    )
    with pytest.raises(DeviceError, match=r"text needs 1048832 bytes, .* binds at most 1048576"):
        small.create_buffer("text", (1 << 20) + 1)


def test_limits_above_the_adapter_s_are_refused() -> None:
    require_adapter()
    with pytest.raises(DeviceError, match="can't open"):
        Device(
            OpenedAdapter(
                select_adapter(), limits={"max-compute-invocations-per-workgroup": 1 << 30}
            )
        )


def test_an_unknown_adapter_lists_those_there_are(device: Device) -> None:
    with pytest.raises(DeviceError) as caught:
        select_adapter("no such thing")
    with pytest.raises(DeviceError, match="no adapter's name contains '': use gpu"):
        select_adapter("")
    number = len(list_adapters())
    last = f"there is no adapter 'gpu:{number}', the last is 'gpu:{number - 1}': use gpu"
    with pytest.raises(DeviceError, match=last):
        select_adapter(f"gpu:{number}")
    assert repr(device.name) in str(caught.value)
    assert select_adapter(device.name[:6].upper()).name == device.name


def test_bind_checks_names(device: Device) -> None:
    kernel = device.kernel("recount/06_run_reduce.wgsl")
    with pytest.raises(TypeError, match=r"binds \['run_starts', 'run_tiles', 'state', 'symbols'\]"):
        kernel.bind(run_starts=device.create_buffer("x", 4))


def test_commands_can_be_submitted_once(device: Device) -> None:
    commands = device.record()
    commands.submit()
    with pytest.raises(RuntimeError, match="already submitted"):
        commands.submit()


def test_mapped_memory_is_not_submitted(device: Device) -> None:
    staging = Staging(device, 1000)
    buffer = device.create_buffer("target", 1000)
    staging.array()[:4] = 1
    commands = device.record()
    staging.copy_to(commands, buffer, 1000)
    staging.array()  # mapped again before the submission
    with pytest.raises(RuntimeError, match="still mapped"):
        commands.submit()


def test_a_download_under_way_is_not_started_again(device: Device) -> None:
    buffer = device.create_buffer("source", 16)
    download = Download(device)
    download.start((buffer, 16))
    with pytest.raises(RuntimeError, match="under way"):
        download.start((buffer, 16))
    download.finish(np.empty(16, np.uint8))
    with pytest.raises(RuntimeError, match="no download"):
        download.finish(np.empty(16, np.uint8))


def test_the_loss_of_a_device_is_an_error_of_the_device() -> None:
    require_adapter()
    device = Device(OpenedAdapter(select_adapter(), frozenset(), {"max-buffer-size": 1 << 20}))
    if device.webgpu.name != "wgpu":
        pytest.skip("other drivers raise no errors for a lost device")
    array = np.zeros(64, np.uint32)
    bound = boundary_kernel(device, 64)
    buffer, commands, download = device.upload("numbers", array), device.record(), Download(device)
    kernel = device.kernel("recount/01_clear_table.wgsl", WORKGROUP_SIZE=64)
    commands.dispatch(bound, 1)
    download.start((buffer, 256))
    download.cancel()
    staging = Staging(device, 256)
    staging.array()
    device.handle.destroy()
    buffers = {binding.name: buffer for binding in kernel.bindings}
    calls: list[Callable[[], object]] = [
        commands.submit,
        download.begin,
        lambda: kernel.bind(**buffers),
        lambda: device.write(buffer, array),
        lambda: device.read(buffer, 64, np.uint32),
        lambda: device.create_buffer("more", 256),
        lambda: device.kernel("recount/01_clear_table.wgsl", WORKGROUP_SIZE=32),
        lambda: staging.copy_to(commands, buffer, 256),
    ]
    for call in calls:
        with pytest.raises(DeviceError, match=r"^[^\n]* was lost while it worked: run [^\n]*$"):
            call()


def test_a_mistake_is_not_the_loss_of_a_device(device: Device) -> None:
    buffer = device.upload("numbers", np.zeros(64, np.uint32))
    commands = device.record()
    commands.copy(buffer.handle, buffer.handle, 256)
    with pytest.raises(device.webgpu.errors):
        commands.submit()


def test_indirect_counts_must_not_be_bound(device: Device) -> None:
    bound = boundary_kernel(device, 64)
    with pytest.raises(ValueError, match="its own workgroup counts"):
        device.record().dispatch_indirect(bound, bound.buffers[0], 0)


def test_kernels_are_timed(device: Device) -> None:
    if "timestamp-query" not in device.features:
        pytest.skip("no timestamp queries")
    bound = boundary_kernel(device, 1 << 20)
    device.timing = True
    try:
        commands = device.record()
        for _ in range(3):
            commands.dispatch(bound, 1 << 14)
        device.gpu_seconds.clear()
        commands.submit()
    finally:
        device.timing = False
    assert list(device.gpu_seconds) == ["bpe_word_boundary"]
    assert device.gpu_seconds["bpe_word_boundary"] > 0


def test_small_timed_and_untimed_runs_agree(device: Device) -> None:
    results = []
    for timing in (False, True):
        device.timing = timing
        bound = boundary_kernel(device, 1000)
        commands = device.record()
        commands.dispatch(bound, 16)
        commands.submit()
        device.timing = False
        results.append(device.read(bound.buffers[3], 1000, np.uint32))
    np.testing.assert_array_equal(*results)
