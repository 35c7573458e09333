"""The key of the hash tables on devices, see wgsl/common/hash.wgsl: random numbers of this process.

Words and pairs that were chosen to collide in one process don't collide in another. No result
depends on the key, and no file contains a number that was computed from the key.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.device import Device

_key = np.frombuffer(os.urandom(16), np.uint32).copy()
_key[-1] |= 1  # an odd factor: an even one would lose bits of a hash


def hash_key() -> NDArray[np.uint32]:
    """Return the key, uint32 (4,)."""
    return _key


def hash_key_buffer(device: Device) -> Buffer:
    """Return a new uniform buffer with the key, to which kernels bind `hash_key`."""
    buffer = device.create_uniform("hash key", _key.nbytes)
    device.write(buffer, _key)
    return buffer
