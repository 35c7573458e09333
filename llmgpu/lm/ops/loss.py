"""Cross-entropy.

Label smoothing: C. Szegedy et al., Rethinking the Inception Architecture, arXiv 1512.00567. z-loss:
A. Chowdhery et al., PaLM, arXiv 2204.02311.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import (
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    thread_count,
)
from llmgpu.lm.ops.tensor import FloatArray, Losses, Tensor

LEAST_THREADS = 64  # least threads of a workgroup; a workgroup computes one row
THREAD_LOGITS = 4  # logits that a thread reads at once


class LossOperations(Recorder):
    """Cross-entropy, the sum of the losses, and the largest logits, computed by NumPy."""

    @recorded
    def cross_entropy(
        self, logits: Tensor, targets: Tensor, losses: Losses, params: Tensor, tokens: int
    ) -> None:
        """Write the loss of each row, and overwrite the logits by their gradient.

        A logit that is NaN or infinite makes the loss and the gradient of its row NaN.

        logits: (N, V), float32, or float16 if V is a multiple of 4.
        tokens: W, the number of tokens. The first W of the V columns belong to tokens. All other
            columns are not read, and their gradient is 0.
        targets: uint32 (N,); the loss and the gradient of a row whose target is W or more are 0.
        params: (4,), from `parameters`: factor of the gradients (1 / number of valid targets, 0 if
            there are none), label smoothing, weight of the z-loss, 1 / W.
        """

        def compute(rows: slice) -> None:
            block = as_single(logits.array[rows])
            block[:, tokens:] = 0
            found = _cross_entropy(block[:, :tokens], targets.array[rows], params.array)
            for part, values in zip(losses.parts, found, strict=True):
                part.array[rows] = values
            put(block, logits.array[rows])

        self.over_blocks(compute, *logits.shape)

    @recorded
    def argmax(self, logits: Tensor, out: Tensor, tokens: int) -> None:
        """Write, for each row, the column of the largest of the first `tokens` logits.

        If several are equal, the first column is written. logits: (N, V). out: uint32 (N,).
        """

        def compute(rows: slice) -> None:
            out.array[rows] = logits.array[rows, :tokens].argmax(axis=1)

        self.over_blocks(compute, *logits.shape)

    @recorded
    def sum_losses(self, losses: Tensor, out_sum: Tensor) -> None:
        """Write the sum of the losses (N,) to out_sum (1,)."""
        out_sum.array.flat[0] = losses.array.sum(dtype=np.float64)


class GpuLoss(GpuRecorder, LossOperations):
    """Cross-entropy, the sum of the losses, and the largest logits, as GPU kernels."""

    def cross_entropy(
        self, logits: Tensor, targets: Tensor, losses: Losses, params: Tensor, tokens: int
    ) -> None:
        rows, width = logits.shape
        threads = thread_count(-(-width // THREAD_LOGITS), LEAST_THREADS)
        self.dispatch(
            "lm/07_cross_entropy_half.wgsl" if logits.is_half else "lm/07_cross_entropy.wgsl",
            rows,
            {"WORKGROUP_SIZE": threads},
            logits=logits,
            tgts=targets,
            losses=losses.cross_entropy,
            dims=dims(rows, width, tokens),
            params=params,
            smoothing=losses.smoothing,
            z_losses=losses.z_loss,
        )

    def argmax(self, logits: Tensor, out: Tensor, tokens: int) -> None:
        rows, width = logits.shape
        threads = thread_count(tokens, LEAST_THREADS)
        sizes = dims(rows, width, tokens)
        constants = {"WORKGROUP_SIZE": threads}
        self.dispatch("lm/07_argmax.wgsl", rows, constants, logits=logits, out=out, dims=sizes)

    def sum_losses(self, losses: Tensor, out_sum: Tensor) -> None:
        self.dispatch(
            "lm/07_sum_losses.wgsl", 1, losses=losses, out_sum=out_sum, n=dims(losses.size)
        )


def _cross_entropy(
    logits: FloatArray, targets: NDArray[np.uint32], params: FloatArray
) -> tuple[FloatArray, ...]:
    """Return the parts of the losses of a block of rows; overwrite logits by their gradient."""
    counted = targets < logits.shape[1]
    is_bad = counted & ~np.isfinite(logits).all(axis=1)
    logits[is_bad | ~counted] = 0
    parts = _loss_and_gradient(logits, np.where(counted, targets, 0), params)
    for array in (*parts, logits):
        array[~counted] = 0
        array[is_bad] = np.nan
    return parts


@np.errstate(over="ignore")  # a difference of logits may overflow to -inf, whose exponential is 0
def _loss_and_gradient(
    logits: FloatArray, index: NDArray[np.uint32], params: FloatArray
) -> tuple[FloatArray, ...]:
    """Compute `_cross_entropy` for rows of finite logits whose targets, `index`, are tokens.

    The kernel uses the same formulas. They have no cancellation if logits are large: 1 - p of the
    target is computed as the sum of all other probabilities.
    """
    inv_norm, alpha, beta, inv_vocabulary = params
    target = np.arange(len(logits)), index
    largest = logits.max(axis=1)
    # Distances to the largest logit are not above 0, so exponentials can't overflow.
    logits -= largest[:, None]
    losses: FloatArray = -logits[target]
    smoothing = np.zeros_like(losses)
    if alpha > 0:
        mean = logits.mean(axis=1, dtype=np.float64).astype(np.float32)
        smoothing = alpha * (logits[target] - mean)
    np.exp(logits, out=logits)
    # rest: sum of all exponentials but the target's. rest / total is 1 - p, accurate even for p
    # near 1.
    target_part = logits[target]
    logits[target] = 0
    rest = logits.sum(axis=1)
    total = rest + target_part
    lse = largest + np.log(total)
    z_losses = beta * lse * lse
    # If the target has the largest logit, total is 1 + rest. A small `rest` would be rounded away
    # in this sum, but log1p keeps it.
    log_total = np.where(target_part == 1, np.log1p(rest), np.log(total))
    losses += log_total

    # The gradient is p - q, where q is the smoothed target, plus the gradient of the z-loss. The
    # target's entry is computed from `rest`.
    pull = 2 * beta * lse
    spread = alpha * inv_vocabulary
    logits *= ((1 + pull) / total)[:, None]
    logits -= spread
    logits[target] = (pull * target_part - rest) / total + alpha - spread
    logits *= inv_norm
    return losses, smoothing, z_losses
