"""Ids in NumPy's files: numbers of any kind, and what is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.cpu.library import library
from llmgpu.errors import InputError
from llmgpu.tokens import sinks
from llmgpu.tokens.formats import open_writer
from tests.tokens.test_formats import read_all
from tests.tokens.writing import sized

RAM_DISK = Path("/dev/shm")
RESERVED = 64 << 20  # bytes


def saved(path: Path, array: NDArray[Any], **options: Any) -> Path:
    with path.open("wb") as stream:
        np.save(stream, array, **options)
    return path


@pytest.mark.parametrize("dtype", ["<u1", "<u2", ">u4", "<i4", "<i8", "<u8"])
def test_whole_numbers_of_any_kind(tmp_path: Path, dtype: str) -> None:
    path = saved(tmp_path / "f", np.array([0, 1, 127], dtype))
    assert read_all(path, "npy") == [0, 1, 127]


def test_the_format_for_long_headers(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as stream:
        np.lib.format.write_array(stream, np.array([3, 2, 1]), version=(2, 0))
    assert read_all(path, "npy") == [3, 2, 1]
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1000))
    with pytest.raises(InputError, match="a header of more than 65536 bytes"):
        read_all(path, "npy")


def test_the_largest_id(tmp_path: Path) -> None:
    assert read_all(saved(tmp_path / "f", np.array([2**32 - 1])), "npy") == [2**32 - 1]


@pytest.mark.parametrize(
    "array, message",
    [
        (np.array([1.0]), "array of float64"),
        (np.array([True]), "array of bool"),
        (np.array([[1]]), r"shape \(1, 1\)"),
        (np.array(1), r"shape \(\)"),
        (np.array([{}], object), "array of object"),
        (np.array([5, -1]), "number 1: -1 is not a token id"),
        (np.array([2**32 - 1, 2**32]), "number 1: 4294967296 is not a token id"),
        (np.array([0, 2**32 - 1, -1]), "number 2: -1 is not a token id"),
        (np.array([2**32]), "number 0: 4294967296 is not a token id"),
        (np.array([2**64 - 1], np.uint64), "is not a token id"),
    ],
)
def test_arrays_that_are_no_ids(tmp_path: Path, array: NDArray[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_all(saved(tmp_path / "f", array), "npy")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: b"", "not an npy file"),
        (lambda data: b"PK" + data, "not an npy file"),
        (lambda data: data[:50], "not an npy file"),
        (lambda data: data[:6] + b"\x09" + data[7:], "version 9.0"),
        (lambda data: data.replace(b"(3,)", b"(-3,)"), "not an npy file|shape"),
        (lambda data: data.replace(b"(3,), ", b"(9**99"), "not an npy file"),
        (lambda data: data[:-1], "ends after 2 ids and 7 bytes, not 3 ids"),
        (lambda data: data[:-8], "ends after 2 ids and 0 bytes, not 3 ids"),
        (lambda data: data + data, "more bytes than its 3 ids take"),
    ],
)
def test_damaged_npy_files(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = saved(tmp_path / "f", np.arange(3))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        read_all(path, "npy")


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_long_slices_are_written_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool, size: int
) -> None:
    if in_memory and not os.access(RAM_DISK, os.W_OK):
        pytest.skip(f"there is no RAM disk at {RAM_DISK}")
    monkeypatch.setattr(sinks, "_WRITE_THREADS", 3)
    lengths = 3, sinks._LEAST_SHARED // 2, 7_000_001, 0, 1, sinks._LEAST_SHARED
    some = np.random.default_rng(size).integers(0, size, 99_991, np.uint32)
    slices = [np.resize(some[n % 100 :], n) for n in lengths]
    with tempfile.TemporaryDirectory(dir=RAM_DISK if in_memory else tmp_path) as folder:
        path = Path(folder, "ids.npy")
        with open_writer(str(path), "npy", sized(size)) as writer:
            for ids in slices:
                writer.write(EncodedSlice(ids, np.empty(0, np.int64)))
        written = np.load(path)
        assert os.listdir(folder) == [path.name]
    np.testing.assert_array_equal(written, np.concatenate(slices))
    assert written.dtype == (np.uint16 if size == 1000 else np.uint32)


@pytest.fixture
def folder_in_memory() -> Iterator[str]:
    if library() is None or not os.access(RAM_DISK, os.W_OK):
        pytest.skip(f"there is no CPU engine, or no RAM disk at {RAM_DISK}")
    if shutil.disk_usage(RAM_DISK).free < 16 * RESERVED:
        pytest.skip(f"{RAM_DISK} is small")
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as folder:
        yield folder


@pytest.mark.parametrize("name", ["npy", "bin"])
@pytest.mark.parametrize("text_bytes", [1 << 20, RESERVED])
def test_memory_that_was_reserved_and_not_needed_is_given_back(
    monkeypatch: pytest.MonkeyPatch, folder_in_memory: str, name: str, text_bytes: int
) -> None:
    monkeypatch.setattr(sinks, "_LEAST_RESERVED", 1 << 20)
    ids = np.random.default_rng(1).integers(0, 100_000, 1 << 20, np.uint32)
    folder, descriptors = folder_in_memory, open_descriptors()
    path = Path(folder, f"ids.{name}")
    with open_writer(str(path), name, sized(100_000)) as writer:
        writer.expect(text_bytes)
        wait_until(lambda: taken(folder) >= text_bytes)
        for begin in range(0, len(ids), 300_000):
            writer.write(EncodedSlice(ids[begin : begin + 300_000], np.empty(0, np.int64)))
    assert taken(folder) < ids.nbytes + (64 << 10)
    assert np.array_equal(read_all(path, name), ids)

    writer = open_writer(str(path), name, sized(100_000))
    writer.expect(text_bytes)
    writer.abort()
    assert taken(folder) < ids.nbytes + (64 << 10)
    assert np.array_equal(read_all(path, name), ids)
    assert open_descriptors() == descriptors


def test_a_quarter_of_the_free_memory_is_reserved(
    monkeypatch: pytest.MonkeyPatch, folder_in_memory: str
) -> None:
    monkeypatch.setattr(sinks, "free_memory", lambda: 16 << 20)
    with open(Path(folder_in_memory, "f"), "w+b") as file:
        reservation = sinks.Reservation(file, RESERVED)
        (thread,) = reservation._threads
        thread.join()
        assert 3 << 20 <= taken(folder_in_memory) <= 5 << 20
        reservation.end()
        assert taken(folder_in_memory) < 64 << 10


def test_a_reservation_ends_at_once(folder_in_memory: str) -> None:
    with open(Path(folder_in_memory, "f"), "w+b") as file:
        file.write(b"low")
        file.flush()
        reservation = sinks.Reservation(file, RESERVED)
        reservation._has_ended.value = True
        (thread,) = reservation._threads
        wait_until(lambda: not thread.is_alive())
        assert taken(folder_in_memory) < RESERVED
        reservation.end()
        assert taken(folder_in_memory) <= 4096
        assert os.fstat(file.fileno()).st_size == 3


@pytest.mark.parametrize("missing", ["descriptor", "thread"])
def test_ids_are_written_where_nothing_can_be_reserved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("can't start new thread") if missing == "thread" else OSError("no more")

    monkeypatch.setattr(sinks, "_LEAST_RESERVED", 1)
    descriptors = open_descriptors()
    with open_writer(str(tmp_path / "f"), "npy", sized(9)) as writer:
        with monkeypatch.context() as patch:
            if missing == "thread":
                patch.setattr(threading.Thread, "start", fail)
            else:
                patch.setattr(os, "dup", fail)
            writer.expect(1 << 20)
        writer.write(EncodedSlice(np.arange(9, dtype=np.uint32), np.empty(0, np.int64)))
    assert read_all(tmp_path / "f", "npy") == [*range(9)]
    assert open_descriptors() == descriptors


def open_descriptors() -> list[str]:
    """Return the numbers of this process's open files, or nothing where the system can't tell."""
    listed = Path("/proc/self/fd")
    return sorted(os.listdir(listed)) if listed.exists() else []


def taken(folder: str) -> int:
    """Return how many bytes of memory the files in a folder of a RAM disk have."""
    return sum(entry.stat().st_blocks * 512 for entry in os.scandir(folder))


def wait_until(is_done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_done():
            return
        time.sleep(0.01)
    raise AssertionError("it is not done after 10 s")
