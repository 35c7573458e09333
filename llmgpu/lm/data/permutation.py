"""A random permutation of any size that takes no memory.

A Feistel network maps the numbers of k bits one to one onto themselves: each round adds a hash of
one half to the other, which can be undone. A number that leaves the range goes through the network
again until it is back in range (cycle walking). It always comes back, because a permutation moves
every number along a cycle that includes the number itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def permute(indices: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the images of `indices` (n,) in [0, size): int64 (n,), also in [0, size).

    keys: uint64 (ROUNDS,), random; they choose the permutation. Different indices have different
    images.
    """
    bits = (size - 1).bit_length()
    values = indices.astype(np.uint64)
    outside = np.ones(len(values), np.bool_)
    while outside.any():  # less than half are outside after each time, as 2^bits < 2 * size
        values[outside] = _permute_bits(values[outside], bits, keys)
        outside = values >= size
    return values.astype(np.int64)


def _permute_bits(
    values: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << bits // 2) - 1)
    high_mask = np.uint64((1 << bits - bits // 2) - 1)
    low, high = values & low_mask, values >> low_bits
    for index, key in enumerate(keys):
        if index % 2:
            low ^= _hash(high, key) & low_mask
        else:
            high ^= _hash(low, key) & high_mask
    return high << low_bits | low


def _hash(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Mix the bits of each number with a key: the finalizer of SplitMix64."""
    mixed = (values ^ key) * _GOLDEN
    mixed = (mixed ^ mixed >> np.uint64(30)) * _MIX[0]
    mixed = (mixed ^ mixed >> np.uint64(27)) * _MIX[1]
    return mixed ^ mixed >> np.uint64(31)
