"""Copying and reading with several threads in C."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from llmgpu.cpu.library import address_of, library

pytestmark = pytest.mark.skipif(library() is None, reason="there is no CPU engine")
PIECE = 1 << 20


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
