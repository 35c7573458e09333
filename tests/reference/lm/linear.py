"""A linear layer and its gradients on float64 arrays: one sum of products an element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear(x: Array, weight: Array) -> Array:
    """Return out (N, O): out[n, o] = sum over i of x[n, i] weight[o, i]."""
    return np.einsum("ni,oi->no", x, weight)


def backward_input(grad_out: Array, weight: Array) -> Array:
    """Return grad_x (N, I): grad_x[n, i] = sum over o of grad_out[n, o] weight[o, i]."""
    return np.einsum("no,oi->ni", grad_out, weight)


def backward_weight(grad_out: Array, x: Array) -> Array:
    """Return grad_weight (O, I): grad_weight[o, i] = sum over n of grad_out[n, o] x[n, i]."""
    return np.einsum("no,ni->oi", grad_out, x)
