"""RMS normalisation, forward and backward, on float64 arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rms_norm(x: Array, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """Return (out, inverse_rms)."""
    inverse_rms = 1 / np.sqrt(np.mean(x**2, axis=1) + epsilon)
    return x * inverse_rms[:, None] * weight, inverse_rms


def rms_norm_backward(
    x: Array, weight: Array, epsilon: float, grad_out: Array
) -> tuple[Array, Array]:
    """Return (grad_x, grad_weight), through the derivatives of the mean and of the root."""
    mean_square = np.mean(x**2, axis=1, keepdims=True) + epsilon
    grad_normed = grad_out * weight
    grad_inverse = np.sum(grad_normed * x, axis=1, keepdims=True)
    grad_mean_square = grad_inverse * -0.5 * mean_square**-1.5
    grad_x = grad_normed / np.sqrt(mean_square) + grad_mean_square * 2 * x / x.shape[1]
    return grad_x, np.sum(grad_out * x / np.sqrt(mean_square), axis=0)
