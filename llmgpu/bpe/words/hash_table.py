"""A table from 64-bit keys to numbers, made once and looked up for many keys at a time.

Cuckoo hashing (Pagh and Rodler, 2001): a key is in one of two slots, so a look-up takes up
to two steps. A slot that was taken once is never free again, so a key whose first slot is free is
not in the table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FREE = -1  # key of a free slot
# Odd constants with well mixed bits, of the golden ratio and SplitMix64: a key's first and second
# slot are the top bits of its products with them.
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_MOST_ROUNDS = 100  # of moving keys, before a larger table is tried


class HashTable:
    """At most a quarter full. Memory: 48 to 96 bytes for each key, twice that while it is made."""

    def __init__(self, keys: NDArray[np.int64], values: NDArray[np.int32], *, default: int) -> None:
        """Enter keys, int64 (n,), all different and none negative, with their values.

        default: value of all other keys.
        """
        self._default = np.int32(default)
        bits = max(4 * len(keys), 16).bit_length()
        while (owners := self._place(keys, bits)) is None:
            bits += 1
        taken = np.flatnonzero(owners >= 0)
        self._keys = np.full(len(owners), _FREE, np.int64)
        self._values = np.full(len(owners), default, np.int32)
        self._keys[taken], self._values[taken] = keys[owners[taken]], values[owners[taken]]

    def _place(self, keys: NDArray[np.int64], bits: int) -> NDArray[np.int64] | None:
        """Return which key is in each of 2**bits slots (-1: none), or None if they don't fit."""
        self._shift = np.uint64(64 - bits)
        homes = np.stack([self._home(keys, _FIRST), self._home(keys, _SECOND)])
        owners = np.full(1 << bits, -1)
        side = np.zeros(len(keys), np.int64)
        moving = np.arange(len(keys))
        # Enter all keys at once. Those that lose a slot, or are pushed out, try their other one.
        for _ in range(_MOST_ROUNDS):
            slots = homes[side[moving], moving]
            before = owners[slots]
            owners[slots] = moving  # of several, the last is written
            placed = owners[slots] == moving
            pushed = before[placed]
            moving = np.concatenate([moving[~placed], pushed[pushed >= 0]])
            if len(moving) == 0:
                return owners
            side[moving] ^= 1
        return None

    def _home(self, keys: NDArray[np.int64], factor: np.uint64) -> NDArray[np.int64]:
        mixed = keys.view(np.uint64) * factor
        mixed >>= self._shift
        return mixed.view(np.int64)

    def get(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the values of keys, int64 (n,), as int32 (n,)."""
        slots = self._home(keys, _FIRST)
        there = np.take(self._keys, slots, mode="clip")
        values: NDArray[np.int32] = np.take(self._values, slots, mode="clip")
        other = np.flatnonzero((there != keys) & (there != _FREE))
        if len(other):
            left = keys[other]
            slots = self._home(left, _SECOND)
            values[other] = np.where(self._keys[slots] == left, self._values[slots], self._default)
        return values
