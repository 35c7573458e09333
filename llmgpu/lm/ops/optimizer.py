"""Clipping all gradients together, and the step of one weight, which an optimizer implements.

Gradients are clipped as one vector, without the host seeing their norm: the sums of squares of each
tensor (`reduce_norm_sq`) make the norm and the scale (`finalize_grad_stats`), by which
the updates multiply gradients. A norm or a loss that is not finite marks the step as bad. That
step and all later ones then change nothing until the host clears the mark.

An optimizer is a `WeightState`, which has the state of one weight and takes its steps, and a line
in the table of `llmgpu.lm.optimizers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmgpu.kernel_source import struct_dtype
from llmgpu.lm.ops.recording import (
    GpuRecorder,
    Recorder,
    dims,
    recorded,
    saturate_to_half,
    workgroups,
)
from llmgpu.lm.ops.tensor import FloatArray, Tensor

HYPER = struct_dtype("lm/hyper.wgsl", "Hyper")

# Entries of `stats`, (4,) float32.
CLIP_SCALE = 0  # factor of the gradients, which also takes back their scale; 0 in a bad step
NORM = 1  # of all gradients together
BAD = 2  # 1 from the first bad step on
LOSS = 3

LOSS_PARTS = 3  # fields of `Losses`

NORM_PARTIALS = 128  # sums into which the squares of one tensor are added
NORMS_AT_ONCE = 7  # gradients of a kernel, which may have 8 storage buffers
MIN_PIECE = 1 << 16  # squares in one of NumPy's sums, if there are that many
CLIP_EPSILON = 1e-6
NORM_EPSILON = 1e-12  # least norm that a matrix is divided by
NEWTON_SCHULZ = np.float32(3.4445), np.float32(-4.775), np.float32(2.0315)


@dataclass(frozen=True)
class WeightUpdate:
    """The tensors of a step of one weight, beside the optimizer's state.

    parameter, gradient: of one shape, or the gradient has the rows that the state lists. The
    gradient is yet to be multiplied by the clip scale.
    stats: written by `Operations.finalize_grad_stats`. hyper: of type `HYPER`.
    decays: whether weight decay applies. half_copy: the parameter in half precision, if any.
    """

    parameter: Tensor
    gradient: Tensor
    stats: Tensor
    hyper: Tensor
    decays: bool
    half_copy: Tensor | None = None

    @property
    def clip_scale(self) -> FloatArray:
        """The factor that clips gradients, () float32, on the host."""
        scale: FloatArray = self.stats.array[CLIP_SCALE]
        return scale

    @property
    def bindings(self) -> dict[str, Tensor]:
        """The tensors by their names in kernels."""
        bound = {
            "parameter": self.parameter,
            "gradient": self.gradient,
            "stats": self.stats,
            "hyper": self.hyper,
        }
        return bound if self.half_copy is None else {**bound, "half_copy": self.half_copy}

    @property
    def settings(self) -> dict[str, int]:
        """Settings of the kernels: whether they also write a half-precision copy."""
        return {"half_copy": self.half_copy is not None}


class WeightState(ABC):
    """An optimizer's state of one weight."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the state, for checkpoints; their names start with the weight's."""

    @abstractmethod
    def compute(self, update: WeightUpdate) -> None:
        """Take a step on arrays, in place; the caller updates the half-precision copy.

        Not called for a bad step.
        """

    def adamw_moments(self, update: WeightUpdate) -> tuple[Tensor, Tensor] | None:
        """Return both moments if a step is AdamW's on all elements in float32; None otherwise."""
        return None

    @abstractmethod
    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel that takes a step, and changes nothing if `stats` marks it as bad."""


def piece_of_norm(grad: Tensor) -> int:
    """Return the number of squares in a sum. A small gradient needs few sums; the others are 0."""
    return max(-(-grad.size // NORM_PARTIALS), MIN_PIECE)


class UpdateOperations(Recorder):
    """Norms of gradients and updates of weights, on arrays."""

    @recorded
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        """Write NORM_PARTIALS sums, which add up to the sum of grad's squares, into row `index`."""
        flat, sums = grad.array.reshape(-1), partials.array[index]
        piece = piece_of_norm(grad)
        sums[...] = 0
        with np.errstate(over="ignore"):
            for k, start in enumerate(range(0, grad.size, piece)):
                sums[k] = np.square(flat[start : start + piece]).sum()

    def reduce_norms(self, grads: Sequence[Tensor], partials: Tensor) -> None:
        """Write NORM_PARTIALS sums of the squares of each gradient, into rows from 0 on."""
        for index, grad in enumerate(grads):
            self.reduce_norm_sq(grad, partials, index)

    @recorded
    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        """Write stats (4,) = clip_scale, norm, bad, loss, and a row of history (S, 8).

        A norm or a part of the loss that is not finite marks the step as bad. Every later step is
        bad, too, until the host clears the mark.

        loss_sums: (3 * A, columns), sums of the parts of `Losses`, A rows each, added up.
        The history's row is loss, norm, clip_scale, bad, label smoothing, z-loss, 0, 0.
        """
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
        """Take an optimizer's step of one weight; nothing changes in a bad step."""
        if update.stats.array[BAD] == 0:
            state.compute(update)
            if update.half_copy is not None:
                saturate_to_half(update.parameter.array, update.half_copy.array)

    def scale_to_norm(self, matrices: Tensor) -> None:
        """Divide each of S matrices (S, N, O) by its Frobenius norm, if that is not 0."""
        partials = self.scratch("squares of a matrix", (1, NORM_PARTIALS))
        for k in range(matrices.shape[0]):
            self.reduce_norm_sq(matrices.rows(k, k + 1), partials, 0)
            self._divide_by_norm(matrices.rows(k, k + 1), partials)

    @recorded
    def _divide_by_norm(self, matrix: Tensor, partials: Tensor) -> None:
        matrix.array[...] /= max(np.sqrt(partials.array.sum()), np.float32(NORM_EPSILON))

    @recorded
    def newton_schulz(self, gram: Tensor, square: Tensor) -> None:
        """Square = a I + b gram + c square, both (S, n, n); Muon's coefficients."""
        a, b, c = NEWTON_SCHULZ
        square.array[...] = b * gram.array + c * square.array
        side = np.arange(gram.shape[-1])
        square.array[:, side, side] += a


class GpuUpdates(GpuRecorder, UpdateOperations):
    """The operations as kernels."""

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        self._norms(grad, partials, index, 1)

    def reduce_norms(self, grads: Sequence[Tensor], partials: Tensor) -> None:
        for first in range(0, len(grads), NORMS_AT_ONCE):
            some = grads[first : first + NORMS_AT_ONCE]
            missing = NORMS_AT_ONCE - len(some)
            sizes = [*(grad.size for grad in some), *[0] * missing, first]
            bound = {f"grad_{k}": grad for k, grad in enumerate([*some, *[some[0]] * missing])}
            self.dispatch(
                "lm/12_reduce_norms.wgsl",
                len(some) * NORM_PARTIALS,
                {"NORM_PARTIALS": NORM_PARTIALS},
                **bound,
                partials=partials,
                dims=np.array(sizes, np.uint32),
            )

    def _norms(self, grad: Tensor, partials: Tensor, index: int, count: int) -> None:
        """Append the sums of a tensor, or of each of `count` matrices in a row."""
        self.dispatch(
            "lm/12_reduce_norm_sq.wgsl",
            count * NORM_PARTIALS,
            {"NORM_PARTIALS": NORM_PARTIALS},
            grad=grad,
            partials=partials,
            dims=dims(grad.size // count, index, count),
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
        state.dispatch(self, update)

    def scale_to_norm(self, matrices: Tensor) -> None:
        count = matrices.shape[0]
        size = matrices.size // count
        partials = self.scratch("squares of matrices", (count, NORM_PARTIALS))
        self._norms(matrices, partials, 0, count)
        groups = workgroups(-(-size // 4))
        self.dispatch(
            "lm/12_scale_to_norm.wgsl",
            count * groups,
            matrices=matrices,
            partials=partials,
            dims=dims(size, NORM_PARTIALS, groups, count),
        )

    def newton_schulz(self, gram: Tensor, square: Tensor) -> None:
        self.dispatch(
            "lm/12_newton_schulz.wgsl",
            workgroups(gram.size),
            gram=gram,
            square=square,
            dims=dims(gram.size, gram.shape[-1]),
        )
