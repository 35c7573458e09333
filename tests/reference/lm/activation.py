"""Activations, forward and backward, on float64 arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def swiglu(gate: Array, up: Array) -> Array:
    return gate / (1 + np.exp(-gate)) * up


def swiglu_backward(gate: Array, up: Array, grad_out: Array) -> tuple[Array, Array]:
    """Return (grad_gate, grad_up)."""
    sigmoid = 1 / (1 + np.exp(-gate))
    return grad_out * up * (sigmoid + gate * sigmoid * (1 - sigmoid)), grad_out * gate * sigmoid


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_backward(x: Array, grad_out: Array) -> tuple[Array]:
    """Return (grad_x,)."""
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    d_inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return (grad_out * (0.5 * (1 + np.tanh(inner)) + 0.5 * x / np.cosh(inner) ** 2 * d_inner),)


FUNCTIONS: dict[str, tuple[Callable[..., Array], Callable[..., tuple[Array, ...]]]] = {
    "swiglu": (swiglu, swiglu_backward),
    "gelu": (gelu, gelu_backward),
}


def forward(name: str, *inner: Array) -> Array:
    """Apply an activation to x, or to gate and up."""
    return FUNCTIONS[name][0](*inner)


def backward(name: str, *inner_and_grad: Array) -> tuple[Array, ...]:
    """Return the gradient of each inner product; the last argument is the gradient of `forward`."""
    return FUNCTIONS[name][1](*inner_and_grad)
