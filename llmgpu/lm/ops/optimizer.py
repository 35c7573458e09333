"""Clipping all gradients together, and the step of a weight.

Gradients are clipped as one vector, without the host seeing their norm: the sums of squares of each
tensor (`reduce_norm_sq`) make the norm and the scale (`finalize_grad_stats`), which the updates
multiply gradients by. A norm or a loss that is not finite marks the step as bad; it and all later
steps then change nothing until the host clears the mark.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims, recorded
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.ops.weight_state import BAD, WeightState, WeightUpdate

LOSS_PARTS = 3  # those of `Losses`

NORM_PARTIALS = 128  # sums that the squares of one tensor are added up in
MIN_PIECE = 1 << 16  # squares in one of NumPy's sums, if there are that many
CLIP_EPSILON = 1e-6


class NumpyOptimizer(NumpyRecorder):
    """The operations on arrays."""

    @recorded
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        flat, sums = grad.array.reshape(-1), partials.array[index]
        # As many sums as there are large pieces; the others are 0.
        piece = max(-(-grad.size // NORM_PARTIALS), MIN_PIECE)
        sums[...] = 0
        with np.errstate(over="ignore"):
            for k, start in enumerate(range(0, grad.size, piece)):
                sums[k] = np.square(flat[start : start + piece]).sum()

    @recorded
    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(partials.array.sum()) * hyper.array["inverse_scale"]
            sums = [part.sum() for part in np.split(loss_sums.array, LOSS_PARTS)]
            loss, smoothing, z_loss = (part * hyper.array["inverse_count"] for part in sums)
            max_norm = float(hyper.array["max_norm"])
            scale = min(1.0, max_norm / (float(norm) + CLIP_EPSILON)) if max_norm > 0 else 1.0
        # A bad step stays bad: everything after it was computed from its weights.
        bad = stats.array[BAD] != 0 or not np.isfinite([norm, loss, smoothing, z_loss]).all()
        clip_scale = 0 if bad else scale
        stats.array[...] = clip_scale * hyper.array["inverse_scale"], norm, bad, loss
        row = loss, norm, clip_scale, bad, smoothing, z_loss, 0, 0
        history.array[hyper.array["slot"]] = row

    @recorded
    def update_weight(self, state: WeightState, update: WeightUpdate) -> None:
        if update.stats.array[BAD] == 0:
            state.compute(update)


class GpuOptimizer(GpuRecorder):
    """The operations as kernels."""

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        self.dispatch(
            "lm/12_reduce_norm_sq.wgsl",
            NORM_PARTIALS,
            {"NORM_PARTIALS": NORM_PARTIALS},
            grad=grad,
            partials=partials,
            dims=dims(grad.size, index),
        )

    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        self.dispatch(
            "lm/12_finalize_grad_stats.wgsl",
            1,
            partials=partials,
            loss_sums=loss_sums,
            stats=stats,
            history=history,
            hyper=hyper,
            dims=dims(partials.size, loss_sums.size // LOSS_PARTS),
        )

    def update_weight(self, state: WeightState, update: WeightUpdate) -> None:
        call = state.kernel(update)
        self.dispatch(call.file, call.groups, call.constants, **call.bindings)
