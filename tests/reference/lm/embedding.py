"""Rows of a table for token ids, forward and backward, on float64 arrays, one token at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.uint32]


def embed_lookup(tokens: Ids, table: Array) -> Array:
    out = np.zeros((len(tokens), table.shape[1]))
    for position, token in enumerate(tokens):
        if token < len(table):
            out[position] = table[token]
    return out


def embed_lookup_positions(
    tokens: Ids, table: Array, positions: Ids, position_table: Array
) -> Array:
    return embed_lookup(tokens, table) + embed_lookup(positions, position_table)


def embed_backward(tokens: Ids, grad_out: Array, vocab_size: int) -> Array:
    """Return the gradient of a table; what is not finite counts as 0."""
    grad_table = np.zeros((vocab_size, grad_out.shape[1]))
    for token, row in zip(tokens, grad_out, strict=True):
        if token < vocab_size:
            grad_table[token] += np.where(np.isfinite(row), row, 0.0)
    return grad_table


def pairwise_sum(numbers: list[np.float32]) -> np.float32:
    """Add numbers (one or more) in float32 in the order of NumPy's pairwise summation."""
    count = len(numbers)
    if count > 128:
        half = count // 2 - count // 2 % 8
        return pairwise_sum(numbers[:half]) + pairwise_sum(numbers[half:])
    if count < 8:
        total, rest = numbers[0], numbers[1:]
    else:
        r = numbers[:8]
        for k in range(8, count - count % 8):
            r[k % 8] += numbers[k]
        total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
        rest = numbers[count - count % 8 :]
    for number in rest:
        total = total + number
    return total


def embed_backward_in_order(
    tokens: Ids, grad_out: NDArray[np.float32], vocab_size: int
) -> NDArray[np.float32]:
    """Return the gradient of a table by float32 additions in the order that runs repeat."""
    grad_table = np.zeros((vocab_size, grad_out.shape[1]), np.float32)
    for token, column in np.ndindex(grad_table.shape):
        numbers = list(grad_out[tokens == token, column])
        if len(numbers) > 1:
            numbers = [numbers[0] + pairwise_sum(numbers[1:])]
        if numbers:
            grad_table[token, column] += numbers[0]
    return grad_table
