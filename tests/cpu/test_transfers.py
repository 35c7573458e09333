"""Copying, reading and writing with several threads in C."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ctypes import byref, c_int
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from llmgpu.cpu.library import address_of, library

pytestmark = pytest.mark.skipif(library() is None, reason="there is no CPU engine")
PIECE = 1 << 20
RAM_DISK = Path("/dev/shm")


@pytest.mark.parametrize("threads", [1, 2, 5, 1000])
@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7])
def test_all_bytes_are_copied_and_no_others(length: int, threads: int) -> None:
    loaded = library()
    assert loaded is not None
    source = np.random.default_rng(length).integers(0, 256, length, np.uint8)
    target = np.full(length + 2, 7, np.uint8)
    loaded.llmgpu_copy(address_of(target[1:]), address_of(source), length, threads)
    np.testing.assert_array_equal(target[1:-1], source)
    assert target[0] == target[-1] == 7


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("offset", "wanted"),
    [
        *[(0, 10), (5, 3 * PIECE), (PIECE, 9 * PIECE), (5 * PIECE, 3 * PIECE)],
        (4 * PIECE + 99, 10),  # only one byte
    ],
)
def test_bytes_are_read_up_to_the_end_of_the_file(
    tmp_path: Path, offset: int, wanted: int, threads: int
) -> None:
    loaded = library()
    assert loaded is not None
    data = np.random.default_rng(0).integers(0, 256, 4 * PIECE + 100, np.uint8)
    (tmp_path / "f").write_bytes(data.tobytes())
    target = np.full(wanted + 1, 7, np.uint8)
    with open(tmp_path / "f", "rb") as file:
        place = file.fileno(), address_of(target), wanted, offset, threads
        count = loaded.llmgpu_read(*place)
        assert file.tell() == 0
    expected = data[offset : offset + wanted]
    assert count == len(expected)
    np.testing.assert_array_equal(target[:count], expected)
    assert target[-1] == 7
    assert loaded.llmgpu_read(*place) == -errno.EBADF


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    loaded = library()
    assert loaded is not None
    descriptor = os.open(tmp_path, os.O_RDONLY)
    target = np.empty(3 * PIECE, np.uint8)
    try:
        count = loaded.llmgpu_read(descriptor, address_of(target), len(target), 0, 3)
    finally:
        os.close(descriptor)
    assert count == -errno.EISDIR


@pytest.fixture
def ram_disk() -> Iterator[Path]:
    """Yield an empty folder in a RAM disk."""
    if not os.access(RAM_DISK, os.W_OK):
        pytest.skip(f"there is no RAM disk at {RAM_DISK}")
    with tempfile.TemporaryDirectory(dir=RAM_DISK) as folder:
        yield Path(folder)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (5, 10), (0, 9 * PIECE), (4096, 9 * PIECE), (4 * PIECE + 99, 50 * PIECE + 5)],
)
def test_bytes_are_written_where_they_belong(
    ram_disk: Path, offset: int, length: int, threads: int
) -> None:
    loaded = library()
    assert loaded is not None
    rng = np.random.default_rng(length)
    before, data = (rng.integers(0, 256, n, np.uint8) for n in (5 * PIECE, length))
    expected = np.zeros(max(offset + length, len(before)), np.uint8)
    expected[: len(before)] = before
    expected[offset : offset + length] = data
    (ram_disk / "f").write_bytes(before.tobytes())
    with open(ram_disk / "f", "r+b", buffering=0) as file:
        place = file.fileno(), address_of(data), length, offset, threads
        assert loaded.llmgpu_write(*place) == length
        assert file.tell() == 0
    assert (ram_disk / "f").read_bytes() == expected.tobytes()


def test_only_a_file_of_a_ram_disk_that_can_be_read_is_written(
    tmp_path: Path, ram_disk: Path
) -> None:
    loaded = library()
    assert loaded is not None
    data = np.ones(2 * PIECE, np.uint8)
    (tmp_path / "f").touch()
    for path, flags in (tmp_path / "f", os.O_RDWR), (ram_disk / "f", os.O_WRONLY | os.O_CREAT):
        if os.stat(path.parent).st_dev == os.stat(ram_disk).st_dev and flags == os.O_RDWR:
            continue
        descriptor = os.open(path, flags)
        assert loaded.llmgpu_write(descriptor, address_of(data), len(data), 0, 3) == 0
        os.close(descriptor)
        assert not path.read_bytes().strip(b"\0")
    assert loaded.llmgpu_write(descriptor, address_of(data), len(data), 0, 3) == 0  # it is closed


def reserve(descriptor: int, length: int, *, has_ended: bool = False) -> None:
    loaded = library()
    assert loaded is not None
    loaded.llmgpu_reserve(descriptor, length, byref(c_int(has_ended)))


def taken(file: IO[bytes]) -> int:
    """Return how many bytes of memory a file on a RAM disk has."""
    return os.fstat(file.fileno()).st_blocks * 512


@pytest.mark.parametrize("length", [PIECE, 7 * PIECE, 7 * PIECE + 4096])
def test_memory_is_reserved_beyond_the_end_of_a_file(ram_disk: Path, length: int) -> None:
    data = np.random.default_rng(length).bytes(PIECE // 2)
    with open(ram_disk / "f", "w+b", buffering=0) as file:
        file.write(data)
        reserve(file.fileno(), length)
        assert taken(file) == length and file.seek(0, os.SEEK_END) == len(data)
        loaded, more = library(), np.ones(3 * PIECE, np.uint8)
        assert loaded is not None
        place = file.fileno(), address_of(more), len(more), len(data), 3
        assert loaded.llmgpu_write(*place) == len(more)
        file.truncate(len(data) + len(more))
        assert taken(file) <= 4 * PIECE
    assert (ram_disk / "f").read_bytes() == data + more.tobytes()


@pytest.mark.parametrize("length", [-1, 0])
def test_nothing_is_reserved_for_nothing(ram_disk: Path, length: int) -> None:
    with open(ram_disk / "f", "w+b") as file:
        reserve(file.fileno(), length)
        assert taken(file) == 0
        reserve(file.fileno(), PIECE, has_ended=True)
        assert taken(file) == 0
    reserve(-1, PIECE)  # no file


def test_memory_is_reserved_only_on_a_ram_disk(tmp_path: Path, ram_disk: Path) -> None:
    if os.stat(tmp_path).st_dev == os.stat(ram_disk).st_dev:
        pytest.skip("all temporary files are on a RAM disk")
    with open(tmp_path / "f", "w+b") as file:
        reserve(file.fileno(), PIECE)
        assert taken(file) == 0


RESERVED = """
import os, sys
from ctypes import byref, c_int
from llmgpu.cpu.library import library

with open(sys.argv[1], "w+b") as file:
    library().llmgpu_reserve(file.fileno(), 64 << 20, byref(c_int()))
    print(os.fstat(file.fileno()).st_blocks * 512 >> 20)
"""


FILLED = """
import os, sys
import numpy as np
from llmgpu.cpu.library import address_of, library

data = np.arange(20 << 20, dtype=np.uint8) | np.uint8(1)
with open(sys.argv[1], "w+b", buffering=0) as file:
    count = library().llmgpu_write(file.fileno(), address_of(data), len(data), 0, 4)
    assert 0 <= count < len(data), count
    assert os.pread(file.fileno(), count, 0) == data[:count].tobytes()
    file.seek(count)
    try:
        while count < len(data):
            count += file.write(data[count:])
    except OSError as error:
        print(error.errno)
"""


def test_a_full_ram_disk_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    """It would end the process if a page were touched for which there is no memory."""
    with_disk = mounting(tmp_path, "9m")
    python = [sys.executable, "-c", FILLED, str(tmp_path / "f")]
    ended = subprocess.run([*with_disk, *python], stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{errno.ENOSPC}\n")


def test_a_quarter_of_what_is_free_is_reserved_at_most(tmp_path: Path) -> None:
    with_disk = mounting(tmp_path, "40m")
    python = [sys.executable, "-c", RESERVED, str(tmp_path / "f")]
    ended = subprocess.run([*with_disk, *python], stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, "10\n")


def mounting(folder: Path, size: str) -> list[str]:
    """Return a command that runs another one with a small RAM disk mounted on a folder."""
    mounted = f'mount -t tmpfs -o size={size} none {folder} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("no RAM disk can be mounted here")
    return command


@pytest.mark.parametrize(("program", "printed"), [(FILLED, errno.EFBIG), (RESERVED, 8)])
def test_a_limit_on_the_size_of_files_is_an_error_of_the_file_system(
    ram_disk: Path, program: str, printed: int
) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({9 * PIECE},) * 2)\n"
    python = [sys.executable, "-c", limited + program, str(ram_disk / "f")]
    ended = subprocess.run(python, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{printed}\n")
