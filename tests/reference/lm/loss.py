"""Cross-entropy with label smoothing and z-loss on float64 arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@np.errstate(under="ignore")
def cross_entropy(
    logits: Array,
    targets: NDArray[np.integer],
    inv_norm: float,
    alpha: float,
    beta: float,
    tokens: int | None = None,
) -> tuple[Array, Array]:
    """Return (losses (N,), gradient of inv_norm * sum of losses by the logits (N, V)).

    tokens: columns after these don't count, and have no gradient.
    """
    if tokens is not None:
        losses, gradient = cross_entropy(logits[:, :tokens], targets, inv_norm, alpha, beta)
        return losses, np.pad(gradient, ((0, 0), (0, logits.shape[1] - tokens)))
    losses = np.zeros(len(logits))
    gradient = np.zeros_like(logits)
    vocabulary = logits.shape[1]
    for row, target in enumerate(targets):
        if target >= vocabulary:
            continue
        wanted = np.full(vocabulary, alpha / vocabulary)
        wanted[target] += 1 - alpha
        lse = np.logaddexp.reduce(logits[row])
        others = np.logaddexp.reduce(np.delete(logits[row], target))
        log_p = logits[row] - lse
        log_p[target] = -np.logaddexp(0, others - logits[row, target])
        losses[row] = -np.sum(wanted * log_p) + beta * lse**2
        p = np.exp(log_p)
        # p - 1 cancels where p is nearly 1; it is the others' sum.
        surplus = p.copy()
        surplus[target] = -np.sum(np.delete(p, target))
        wanted[target] -= 1
        gradient[row] = (surplus - wanted + 2 * beta * lse * p) * inv_norm
    return losses, gradient


@np.errstate(under="ignore")
def parts(logits: Array, targets: NDArray[np.integer], alpha: float, beta: float) -> Array:
    """Return the parts of the losses, (3, N): cross-entropy, label smoothing and z-loss."""
    found = np.zeros((3, len(logits)))
    for row, target in enumerate(targets):
        if target >= logits.shape[1]:
            continue
        at_target = logits[row, target]
        others = np.logaddexp.reduce(np.delete(logits[row], target))
        found[0, row] = np.logaddexp(0, others - at_target)
        found[1, row] = alpha * np.mean(at_target - logits[row])
        found[2, row] = beta * np.logaddexp.reduce(logits[row]) ** 2
    return found
