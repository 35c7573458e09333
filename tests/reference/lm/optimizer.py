"""Gradient clipping, AdamW and Muon on float64 arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.options import TrainOptions

Array = NDArray[np.float64]


def norm(gradients: Sequence[Array]) -> float:
    return float(np.sqrt(sum(np.sum(gradient**2) for gradient in gradients)))


def clip_scale(norm: float, max_norm: float) -> float:
    return 1.0 if max_norm <= 0 else min(1.0, max_norm / (norm + 1e-6))


def adamw(
    state: tuple[Array, Array, Array],
    gradient: Array,
    options: TrainOptions,
    step: int,
    learning_rate: float,
    *,
    decay: bool,
) -> tuple[Array, Array, Array]:
    """Return (parameter, first, second) after step number `step`, 0 for the first."""
    parameter, first, second = state
    first = options.beta1 * first + (1 - options.beta1) * gradient
    second = options.beta2 * second + (1 - options.beta2) * gradient**2
    first_hat = first / (1 - options.beta1 ** (step + 1))
    second_hat = second / (1 - options.beta2 ** (step + 1))
    if decay:
        parameter = parameter * (1 - learning_rate * options.weight_decay)
    parameter = parameter - learning_rate * first_hat / (np.sqrt(second_hat) + options.epsilon)
    return parameter, first, second


def orthogonal(matrix: Array) -> Array:
    """Newton-Schulz iterations, singular value by singular value."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.sqrt(np.sum(values**2))
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return np.asarray(left @ np.diag(values) @ right)


def muon(
    state: tuple[Array, Array],
    gradient: Array,
    options: TrainOptions,
    step: int,
    learning_rate: float,
    *,
    decay: bool,
) -> tuple[Array, Array]:
    """Return (parameter, momentum) of a matrix after step number `step`, 0 for the first."""
    parameter, momentum = state
    kept = options.momentum
    if step < options.momentum_steps:
        share = step / options.momentum_steps
        kept = (1 - share) * options.momentum_start + share * options.momentum
    momentum = kept * momentum + (1 - kept) * gradient
    direction = orthogonal(kept * momentum + (1 - kept) * gradient)
    if decay:
        parameter = parameter * (1 - learning_rate * options.weight_decay)
    size = 0.2 * np.sqrt(max(parameter.shape))
    return parameter - learning_rate * size * direction, momentum


def adamw_rows(
    state: tuple[Array, Array, Array],
    gradient: Array,
    rows: NDArray[np.uint32],
    options: TrainOptions,
    step: int,
    learning_rate: float,
    *,
    decay: bool,
) -> tuple[Array, Array, Array]:
    """The same on the rows listed, one by one, by rows of the gradient; other rows stay."""
    parameter, first, second = (array.copy() for array in state)
    for row, own in zip(rows, gradient, strict=True):
        if row < len(parameter):
            before = parameter[row], first[row], second[row]
            parameter[row], first[row], second[row] = adamw(
                before, own, options, step, learning_rate, decay=decay
            )
    return parameter, first, second


def block_largest(values: Array) -> Array:
    """Return the largest magnitude of each block of 256 values; the last block may be shorter."""
    blocks = range(0, len(values), 256)
    return np.array([np.max(np.abs(values[start : start + 256])) for start in blocks])


def decode(codes: NDArray[np.integer], levels: int, scales: Array) -> Array:
    """Return what codes stand for: scale * sign(c) * (c / levels)^4."""
    return per_element(scales, len(codes)) * np.sign(codes) * (codes / levels) ** 4


def per_element(scales: Array, size: int) -> Array:
    """Return the scale of each of `size` elements."""
    return np.repeat(scales, 256)[:size]


def rounding_error(magnitudes: Array, levels: int, scales: Array, least: int = 0) -> Array:
    """Return how far from magnitudes the nearest value of a code from `least` to `levels` is."""
    values = (np.arange(least, levels + 1) / levels) ** 4
    candidates = per_element(scales, len(magnitudes))[:, None] * values
    return np.min(np.abs(candidates - magnitudes[:, None]), axis=1)
