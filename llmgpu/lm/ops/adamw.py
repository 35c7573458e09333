"""One step of AdamW on arrays, in place.

I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 20  # elements worked on at a time, so that temporary arrays stay small
HALF_MAX = float(np.finfo(np.float16).max)

Array = NDArray[np.float32]


def adamw(
    parameter: Array, g: Array, first: Array, second: Array, hyper: NDArray[Any], decay: bool
) -> None:
    """Update a parameter and its moments.

    g: the clipped gradient; it is overwritten.
    hyper: of type `llmgpu.lm.ops.hyper.HYPER`.
    """
    values = {name: float(hyper[name]) for name in hyper.dtype.names or ()}
    change = g - first
    change *= values["one_minus_beta1"]
    first += change
    np.square(g, out=g)
    g -= second
    g *= values["one_minus_beta2"]
    second += g
    denominator = np.sqrt(second, out=g)
    denominator /= math.sqrt(values["bias_correction2"])
    denominator += values["epsilon"]
    if decay:
        parameter *= 1 - values["learning_rate"] * values["weight_decay"]
    np.divide(first, denominator, out=change)
    change *= values["learning_rate"] / values["bias_correction1"]
    parameter -= change


def saturate_to_half(source: Array, out: NDArray[np.float16]) -> None:
    """Write the nearest half-precision numbers, the largest one for larger values."""
    np.copyto(out, np.clip(source, -HALF_MAX, HALF_MAX), casting="same_kind")
