"""Staging and download memory: used again, in order, and from several threads."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from llmgpu.gpu.commands import Download, Staging
from llmgpu.gpu.device import Device


def test_staging_memory_is_used_again(any_device: Device) -> None:
    staging = Staging(any_device, 4000)
    targets = [any_device.create_buffer(f"target {k}", 4000) for k in range(5)]
    for k, target in enumerate(targets):
        staging.array()[:4000] = k + 1
        commands = any_device.record()
        staging.copy_to(commands, target, 4000)
        assert not staging.is_mapped()
        commands.submit()
    for k, target in enumerate(targets):
        assert (any_device.read(target, 4000, np.uint8) == k + 1).all()


def test_an_empty_array_is_written_and_read(any_device: Device) -> None:
    buffer = any_device.create_buffer("nothing", 0)
    any_device.write(buffer, np.empty(0, np.float32))
    assert len(any_device.read(buffer, 0, np.float32)) == 0


def test_downloads_grow_and_are_used_again(any_device: Device) -> None:
    data = np.random.default_rng(0).integers(0, 256, 9_001, np.uint8)
    source = any_device.create_buffer("source", len(data))
    any_device.write(source, data)
    download = Download(any_device)
    for size in (1, 7, 9_001, 256, 3, 8_191):
        out = np.empty(size, np.uint8)
        download.start((source, size))
        download.finish(out)
        np.testing.assert_array_equal(out, data[:size])


def test_a_download_is_given_up(any_device: Device) -> None:
    buffer = any_device.create_buffer("numbers", 400)
    any_device.write(buffer, np.full(100, 7, np.uint32))
    download = Download(any_device)
    download.cancel()
    for _ in range(2):
        download.start((buffer, 400))
        download.cancel()
    with pytest.raises(RuntimeError, match="no download"):
        download.finish(np.empty(4, np.uint8))
    with pytest.raises(RuntimeError, match="no download is under way"):
        download.mapped()
    download.start((buffer, 0))
    download.finish(np.empty(0, np.uint8))
    download.start((buffer, 400))
    with pytest.raises(RuntimeError, match="no download of 404 bytes"):
        download.finish(np.empty(404, np.uint8))
    out = np.empty(50, np.uint32)
    download.finish(out.view(np.uint8))
    assert (out == 7).all()


def test_a_download_holds_what_was_there_when_it_was_submitted(any_device: Device) -> None:
    buffer = any_device.create_buffer("numbers", 400)
    downloads = [Download(any_device) for _ in range(4)]
    for k, download in enumerate(downloads):
        any_device.write(buffer, np.full(100, k, np.uint32))
        download.start((buffer, 400))
    for k, download in reversed(list(enumerate(downloads))):
        out = np.empty(100, np.uint32)
        download.finish(out.view(np.uint8))
        assert (out == k).all()


def test_arrays_of_any_layout_are_written(any_device: Device) -> None:
    table = np.arange(600, dtype=np.uint32).reshape(20, 30)
    buffer = any_device.create_buffer("table", table.nbytes)
    any_device.write(buffer, table.T)
    np.testing.assert_array_equal(any_device.read(buffer, 600, np.uint32), table.T.reshape(-1))
    any_device.write(buffer, table[::2, ::3])
    np.testing.assert_array_equal(
        any_device.read(buffer, 100, np.uint32), table[::2, ::3].reshape(-1)
    )


def test_memory_is_freed_with_what_holds_it(any_device: Device) -> None:
    """Not by the collector of cycles, which may come late."""
    source = any_device.create_buffer("source", 400)
    gc.disable()
    try:
        staging, download = Staging(any_device, 400), Download(any_device)
        staging.array()
        download.start((source, 400))
        download.finish(np.empty(400, np.uint8))
        handles = [weakref.ref(staging._buffer), weakref.ref(download._buffer)]
        del staging, download
        assert [handle() for handle in handles] == [None, None]
    finally:
        gc.enable()


def test_threads_transfer_at_the_same_time(any_device: Device) -> None:
    def there_and_back(seed: int) -> bool:
        data = np.random.default_rng(seed).integers(0, 256, (1 << 20) + 13 * seed, np.uint8)
        buffer = any_device.create_buffer(f"data {seed}", len(data))
        any_device.write(buffer, data)
        return np.array_equal(any_device.read(buffer, len(data), np.uint8), data)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(there_and_back, range(16)))
