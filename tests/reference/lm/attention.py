"""Causal attention by the whole matrix of probabilities, one head at a time, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.tensor import AttentionShape

Array = NDArray[np.float64]
Starts = NDArray[np.uint32]


def attention(
    q: Array, k: Array, v: Array, shape: AttentionShape, starts: Starts | None = None
) -> tuple[Array, Array]:
    """Return out (N, H * D) and log_sum_exp (N, H); starts: the first key that each row sees."""
    out, sums = np.zeros_like(q), np.zeros((len(q), shape.heads))
    for rows, head, own, shared in _heads(shape):
        seen = _seen(starts, rows)
        p, sums[rows, head] = _probabilities(q[rows, own], k[rows, shared], seen)
        out[rows, own] = p @ v[rows, shared]
    return out, sums


def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    grad_out: Array,
    shape: AttentionShape,
    starts: Starts | None = None,
) -> tuple[Array, Array, Array]:
    """Return (grad_q, grad_k, grad_v)."""
    grad_q, grad_k, grad_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, _, own, shared in _heads(shape):
        p, _ = _probabilities(q[rows, own], k[rows, shared], _seen(starts, rows))
        grad_p = grad_out[rows, own] @ v[rows, shared].T
        grad_scores = p * (grad_p - (grad_p * p).sum(1, keepdims=True)) / np.sqrt(shape.head_dim)
        grad_q[rows, own] = grad_scores @ k[rows, shared]
        grad_k[rows, shared] += grad_scores.T @ q[rows, own]
        grad_v[rows, shared] += p.T @ grad_out[rows, own]
    return grad_q, grad_k, grad_v


def attention_cached(
    q: Array, keys: Array, values: Array, positions: NDArray[np.uint32], shape: AttentionShape
) -> Array:
    """Return out (N, H * D): row n attends to rows 0 .. positions[n] of the cache."""
    out = np.zeros_like(q)
    one_row = AttentionShape(1, 1, shape.heads, shape.kv_heads, shape.head_dim)
    for row, position in enumerate(positions):
        for _, _, own, shared in _heads(one_row):
            scores = keys[: position + 1, shared] @ q[row, own] / np.sqrt(shape.head_dim)
            p = np.exp(scores - scores.max())
            out[row, own] = p / p.sum() @ values[: position + 1, shared]
    return out


def _heads(shape: AttentionShape) -> list[tuple[slice, int, slice, slice]]:
    """Return (rows, head, its columns, the columns of its keys) of all heads of all sequences."""
    width = shape.head_dim
    return [
        (
            slice(batch * shape.seq, (batch + 1) * shape.seq),
            head,
            slice(head * width, (head + 1) * width),
            slice(head // shape.group * width, (head // shape.group + 1) * width),
        )
        for batch in range(shape.batch)
        for head in range(shape.heads)
    ]


def _seen(starts: Starts | None, rows: slice) -> NDArray[np.bool_]:
    """Return which keys (columns) the rows of a sequence see, one by one."""
    count = rows.stop - rows.start
    seen = np.zeros((count, count), bool)
    for row in range(count):
        first = 0 if starts is None else int(starts[rows.start + row])
        seen[row, first : row + 1] = True
    return seen


def _probabilities(q: Array, k: Array, seen: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the probabilities (T, T) of one head and their log_sum_exp (T,)."""
    scores = np.where(seen, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    largest = scores.max(1, keepdims=True)
    p = np.exp(scores - largest)
    total = p.sum(1, keepdims=True)
    return p / total, (largest + np.log(total))[:, 0]
