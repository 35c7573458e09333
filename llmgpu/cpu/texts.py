"""Texts made and taken apart in C: ids as decimals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import address_of, library

CELL_IDS = 10**6  # the most whose digits fit into cells


def spell_cells(count: int, separator: bytes) -> NDArray[np.uint64]:
    """Return how the first `count` ids, up to CELL_IDS, are spelled, for `format_ids`: (count,)."""
    ids = np.arange(count, dtype=np.uint64)
    cells = np.full(count, ord(separator), np.uint64)
    for digits in range(1, len(str(CELL_IDS))):
        same = slice(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        for place in range(digits):
            digit = ids[same] // np.uint64(10 ** (digits - 1 - place)) % np.uint64(10)
            cells[same] |= (digit + np.uint64(ord("0"))) << np.uint64(8 * (1 + place))
        cells[same] |= np.uint64(1 + digits) << np.uint64(56)
    return cells


def format_ids(
    cells: NDArray[np.uint64], ids: NDArray[np.uint32], starts: NDArray[np.int64], border: bytes
) -> memoryview:
    """Return ids as text: each after the separator, but documents, from `starts`, after a border.

    cells: of all ids, see `spell_cells`.
    """
    loaded = library()
    assert loaded is not None, "there is no CPU engine"
    ids, starts = np.ascontiguousarray(ids, np.uint32), np.ascontiguousarray(starts, np.int64)
    text = np.empty(7 * len(ids) + len(border) * len(starts) + 8, np.uint8)
    arrays = address_of(cells), address_of(ids), len(ids), address_of(starts), len(starts)
    length = loaded.llmgpu_format_ids(*arrays, border, len(border), address_of(text))
    return text[:length].data
