"""Cross-entropy with label smoothing and z-loss on float64 arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@np.errstate(under="ignore")
def cross_entropy(
    logits: Array, targets: NDArray[np.integer], inv_norm: float, alpha: float, beta: float
) -> tuple[Array, Array]:
    """Return (losses (N,), gradient of inv_norm * sum of losses by the logits (N, V))."""
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
