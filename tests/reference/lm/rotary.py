"""Rotary position embedding as a product of complex numbers, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotary(
    x: Array, positions: NDArray[np.uint32], head_dim: int, theta: float, *, inverse: bool = False
) -> Array:
    """Return x (N, heads * D) with columns (i, i + D/2) of each head turned by their angles."""
    frequencies = theta ** (-2 * np.arange(head_dim // 2) / head_dim)
    angles = positions.astype(np.float64)[:, None, None] * frequencies
    left, right = np.split(x.reshape(len(x), -1, head_dim), 2, axis=-1)
    turned = (left + 1j * right) * np.exp(1j * (-angles if inverse else angles))
    return np.concatenate([turned.real, turned.imag], axis=-1).reshape(x.shape)
