"""Gradient clipping and AdamW on float64 arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.hyper import AdamW

Array = NDArray[np.float64]


def norm(gradients: Sequence[Array]) -> float:
    return float(np.sqrt(sum(np.sum(gradient**2) for gradient in gradients)))


def clip_scale(norm: float, max_norm: float) -> float:
    return 1.0 if max_norm <= 0 else min(1.0, max_norm / (norm + 1e-6))


def adamw(
    state: tuple[Array, Array, Array],
    gradient: Array,
    options: AdamW,
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
