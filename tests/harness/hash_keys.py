"""Keys of the hash tables on devices, in place of the key that this process drew."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.gpu import device

# Two drawn at random, and two that no process should draw.
KEYS = [
    [0x7C2A91E4, 0x3D50B6F9, 0xE18F4A27, 0x96B3D05D],
    [0xB90417D2, 0xC6E83A5B, 0x05FD7281, 0x2E4C9F17],
    [0, 0, 0, 1],
    [0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF],
]


def use_key(patch: pytest.MonkeyPatch, key: Sequence[int]) -> None:
    """Let tables that are made from here on have this key."""
    patch.setattr(device, "_hash_key", np.array(key, np.uint32))
    patch.setattr(encoder_gpu, "_packed", WeakKeyDictionary())
