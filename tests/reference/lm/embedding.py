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
