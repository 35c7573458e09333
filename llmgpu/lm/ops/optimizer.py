"""Clipping all gradients together, the step of a weight, and what an optimizer is made of.

Gradients are clipped as one vector, without the host seeing their norm: the sums of squares of each
tensor (`reduce_norm_sq`) make the norm and the scale (`finalize_grad_stats`), which the updates
multiply gradients by. A norm or a loss that is not finite marks the step as bad; it and all later
steps then change nothing until the host clears the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims, recorded, workgroups
from llmgpu.lm.ops.tensor import Tensor, TensorMaker
from llmgpu.lm.ops.weight_state import BAD, WeightState, WeightUpdate

LOSS_PARTS = 3  # those of `Losses`

NORM_PARTIALS = 128  # sums that the squares of one tensor are added up in
NORMS_AT_ONCE = 7  # gradients of a kernel, which may have 8 storage buffers
MIN_PIECE = 1 << 16  # squares in one of NumPy's sums, if there are that many
CLIP_EPSILON = 1e-6
NORM_EPSILON = 1e-12  # least norm that a matrix is divided by
NEWTON_SCHULZ = np.float32(3.4445), np.float32(-4.775), np.float32(2.0315)

Steps = Sequence[tuple[WeightState, WeightUpdate]]  # of all weights


def update_each(operations: Operations, steps: Steps, stacked: bool) -> None:
    """Record steps that take nothing but the kernels of the states."""
    for state, update in steps:
        operations.update_weight(state, update)


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, as `llmgpu.lm.optimizers` lists it.

    name: what --optimizer and checkpoints call it.
    make: makes the state of a weight. make_rows: makes the state of a table of which a step updates
    only some rows, given their numbers (uint32, those beyond the table are skipped); None if the
    optimizer can't do that. make_hidden: makes the state of a matrix inside a layer; None: `make`.
    record: records the steps of all weights, with `stacked` those of several matrices at once.
    keeps_codes: its moments are not all float32.
    """

    name: str
    make: Callable[[TensorMaker, Tensor], WeightState]
    make_rows: Callable[[TensorMaker, Tensor, Tensor], WeightState] | None = None
    make_hidden: Callable[[TensorMaker, Tensor], WeightState] | None = None
    record: Callable[[Operations, Steps, bool], None] = update_each
    keeps_codes: bool = False


def piece_of_norm(grad: Tensor) -> int:
    """Return how many squares a sum has: there are sums for large pieces, the others are 0."""
    return max(-(-grad.size // NORM_PARTIALS), MIN_PIECE)


class NumpyOptimizer(NumpyRecorder):
    """The operations on arrays."""

    @recorded
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        flat, sums = grad.array.reshape(-1), partials.array[index]
        piece = piece_of_norm(grad)
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

    def scale_to_norm(self, matrices: Tensor) -> None:
        partials = self.scratch("squares of a matrix", (1, NORM_PARTIALS))
        for k in range(matrices.shape[0]):
            self.reduce_norm_sq(matrices.rows(k, k + 1), partials, 0)
            self._divide_by_norm(matrices.rows(k, k + 1), partials)

    @recorded
    def _divide_by_norm(self, matrix: Tensor, partials: Tensor) -> None:
        matrix.array[...] /= max(np.sqrt(partials.array.sum()), np.float32(NORM_EPSILON))

    @recorded
    def newton_schulz(self, gram: Tensor, square: Tensor) -> None:
        a, b, c = NEWTON_SCHULZ
        square.array[...] = b * gram.array + c * square.array
        side = np.arange(gram.shape[-1])
        square.array[:, side, side] += a


class GpuOptimizer(GpuRecorder):
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
        call = state.kernel(update)
        self.dispatch(call.file, call.groups, call.constants, **call.bindings)

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
