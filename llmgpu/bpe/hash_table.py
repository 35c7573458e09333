"""A table from 64-bit keys to numbers, made once and looked up for many keys at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FREE = -1  # key of a free slot
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class HashTable:
    """Open addressing, at most a quarter full. Memory: 48 to 96 bytes for each key."""

    def __init__(self, keys: NDArray[np.int64], values: NDArray[np.int32], *, default: int) -> None:
        """Enter keys, int64 (n,), all different and none negative, with their values.

        default: value of all other keys.
        """
        bits = max(4 * len(keys), 16).bit_length()
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._keys = np.full(1 << bits, _FREE, np.int64)
        self._values = np.full(1 << bits, default, np.int32)
        self._default = np.int32(default)
        slots = self._home(keys)
        while len(keys):
            free = np.flatnonzero(self._keys[slots] == _FREE)
            self._keys[slots[free]] = keys[free]  # of several, the last is written
            placed = self._keys[slots] == keys
            self._values[slots[placed]] = values[placed]
            keys, values = keys[~placed], values[~placed]
            slots = (slots[~placed] + 1) & self._mask

    def _home(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        mixed = keys.view(np.uint64) * _GOLDEN
        mixed >>= self._shift
        return mixed.view(np.int64)

    def get(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the values of keys, int64 (n,), as int32 (n,)."""
        slots = self._home(keys)
        there = self._keys[slots]
        values: NDArray[np.int32] = np.where(there == keys, self._values[slots], self._default)
        pending = np.flatnonzero((there != keys) & (there != _FREE))
        while len(pending):
            slots[pending] = (slots[pending] + 1) & self._mask
            there = self._keys[slots[pending]]
            hit = there == keys[pending]
            values[pending[hit]] = self._values[slots[pending[hit]]]
            pending = pending[~hit & (there != _FREE)]
        return values
