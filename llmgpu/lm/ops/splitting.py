"""How work is split: into blocks of rows in NumPy, among the threads of a workgroup on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

BLOCK_ELEMENTS = 1 << 18  # of a block of rows: temporary arrays stay small, and in the cache
MAX_THREADS = 256  # of a workgroup, by WebGPU's default limits


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of one row or more that together are all rows of a (rows, width) array."""
    step = max(BLOCK_ELEMENTS // max(width, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def thread_count(items: int, least: int = 1) -> int:
    """Return a number of threads for so many items: a power of two, `least` to `MAX_THREADS`."""
    return min(max(1 << (items - 1).bit_length(), least), MAX_THREADS)
