"""Clipping all gradients together, and the step of one weight, which an optimizer defines.

Gradients are clipped as one vector, on the device, without waiting for the host. `reduce_norm_sq`
sums the squares of each tensor. `finalize_grad_stats` computes the norm and the scale by which
updates multiply gradients. A norm or a loss that is not finite marks the step as bad. A bad step
and all later steps change nothing until the host clears the mark.

An optimizer is a subclass of `WeightState`, which has the state of one weight and computes its
steps, and a line in the table of `llmgpu.lm.optimizers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.lm.ops.recording import (
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    saturate_to_half,
    workgroups,
)
from llmgpu.lm.ops.tensor import FloatArray, Tensor, adjacent_runs, joined

HYPER = struct_dtype("lm/hyper.wgsl", "Hyper")

# Indices in `stats`, (4,) float32. Index 1 is the norm of all gradients together, 3 the loss.
CLIP_SCALE = 0  # factor of the gradients, divided by the loss scale; 0 in a bad step
BAD = 2  # 1 from the first bad step on

LOSS_PARTS = 3  # number of `Losses.parts`

NORM_PARTIALS = 128  # number of sums to which the squares of one tensor are added
NORM_BUFFERS = 7  # runs of gradients in a dispatch: a kernel has 8 buffers, one of them for sums
NORMS_AT_ONCE = constant("lm/12_reduce_norms.wgsl", "GRADIENTS")  # gradients in a dispatch
MIN_PIECE = 1 << 16  # least number of squares in a sum on the CPU, if the gradient has so many
CLIP_EPSILON = 1e-6
NORM_EPSILON = 1e-12  # least divisor in `scale_to_norm`
NEWTON_SCHULZ = np.float32(3.4445), np.float32(-4.775), np.float32(2.0315)


@dataclass(frozen=True)
class WeightUpdate:
    """The tensors of a step of one weight, without the optimizer's state.

    parameter, gradient: equal shapes, unless the state lists the rows of the gradient. The gradient
        is not clipped yet, see `clip_scale`.
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
        """The factor that clips gradients, () float32; only for tensors on the host."""
        scale: FloatArray = self.stats.array[CLIP_SCALE]
        return scale

    def dispatch(
        self,
        operations: GpuRecorder,
        kernel: str,
        groups: int,
        sizes: Sequence[int],
        tensors: Mapping[str, Tensor | None],
        **settings: int,
    ) -> None:
        """Append `groups` workgroups of the kernel of a step.

        sizes: the numbers in the kernel's `dims`. tensors: the tensors of the optimizer's state;
        None for a field of this update that the kernel does not bind.
        """
        names = ("parameter", "gradient", "stats", "hyper", "half_copy")
        bindings = {name: getattr(self, name) for name in names} | dict(tensors)
        bound = {name: tensor for name, tensor in bindings.items() if tensor is not None}
        if "half_copy" in bound:
            settings["half_copy"] = 1
        operations.dispatch(f"lm/12_{kernel}.wgsl", groups, settings, **bound, dims=dims(*sizes))


class WeightState(ABC):
    """The state that an optimizer has for one weight."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the state, for checkpoints; each name starts with the weight's name."""
        return tuple(vars(self).values())

    @abstractmethod
    def compute(self, update: WeightUpdate) -> None:
        """Make a step in place, computed by NumPy. The caller updates the half-precision copy.

        Not called for a bad step.
        """

    elements: ClassVar[tuple[str, ...]] = ()
    """Names of the fields whose tensors have an element for each element of the weight.

    A device computes the steps of weights together if these tensors are adjacent, and if all other
    fields are equal.
    """

    in_c: ClassVar[str] = ""
    """Name of the CPU engine's operation that makes a step without half-precision copy, if any."""

    @abstractmethod
    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step. The kernel does nothing if `stats` marks the step as bad."""


def piece_of_norm(grad: Tensor) -> int:
    """Return how many squares each partial sum of a gradient's norm adds up.

    For a small gradient, most of the NORM_PARTIALS sums stay 0.
    """
    return max(-(-grad.size // NORM_PARTIALS), MIN_PIECE)


Steps = Sequence[tuple[WeightState, WeightUpdate]]  # an optimizer's step of each weight


class UpdateOperations(Recorder):
    """Norms of gradients and updates of weights, computed by NumPy."""

    @recorded
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        """Write NORM_PARTIALS sums of squares of grad into row `index` of partials.

        The sums add up to the squared norm of grad.
        """
        flat, sums = grad.array.reshape(-1), partials.array[index]
        piece = piece_of_norm(grad)
        sums[...] = 0
        with np.errstate(over="ignore"):
            for k, start in enumerate(range(0, grad.size, piece)):
                sums[k] = np.square(flat[start : start + piece]).sum()

    def fill_zeros(self, tensors: Sequence[Tensor]) -> None:
        """Write zeros to all tensors."""
        for tensor in tensors:
            self.fill_zero(tensor)

    def reduce_norms(self, grads: Sequence[Tensor], partials: Tensor) -> None:
        """Apply `reduce_norm_sq` to all gradients; gradient k uses row k."""
        for index, grad in enumerate(grads):
            self.reduce_norm_sq(grad, partials, index)

    @recorded
    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        """Write stats (4,) = clip_scale, norm, bad, loss, and a row of history (S, 8).

        A norm or a part of the loss that is not finite marks the step as bad. Every later step is
        bad, too, until the host clears the mark.

        loss_sums: (3 * A, columns): A rows for each part of `Losses`, to be added up. The row of
        history is loss, norm, clip_scale, bad, label smoothing, z-loss, 0, 0.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.sqrt(partials.array.sum()) * hyper.array["inverse_scale"]
            sums = [part.sum() for part in np.split(loss_sums.array, LOSS_PARTS)]
            loss, smoothing, z_loss = (part * hyper.array["inverse_count"] for part in sums)
            max_norm = float(hyper.array["max_norm"])
            scale = min(1.0, max_norm / (float(norm) + CLIP_EPSILON)) if max_norm > 0 else 1.0
        # Steps after a bad step are bad, too: the host repeats the bad step from the same weights.
        bad = stats.array[BAD] != 0 or not np.isfinite([norm, loss, smoothing, z_loss]).all()
        clip_scale = 0 if bad else scale
        stats.array[...] = clip_scale * hyper.array["inverse_scale"], norm, bad, loss
        row = loss, norm, clip_scale, bad, smoothing, z_loss, 0, 0
        history.array[hyper.array["slot"]] = row

    @recorded
    def update_weight(self, state: WeightState, update: WeightUpdate) -> None:
        """Make an optimizer's step of one weight; a bad step changes nothing."""
        if update.stats.array[BAD] == 0:
            state.compute(update)
            if update.half_copy is not None:
                saturate_to_half(update.parameter.array, update.half_copy.array)

    def update_weights(self, steps: Steps) -> None:
        """Apply `update_weight` to all weights."""
        for state, update in steps:
            self.update_weight(state, update)

    def scale_to_norm(self, matrices: Tensor) -> None:
        """Divide each of S matrices (S, N, O) by its Frobenius norm, if the norm is not 0."""
        partials = self.scratch("squares of a matrix", (1, NORM_PARTIALS))
        for k in range(matrices.shape[0]):
            self.reduce_norm_sq(matrices.rows(k, k + 1), partials, 0)
            self._divide_by_norm(matrices.rows(k, k + 1), partials)

    @recorded
    def _divide_by_norm(self, matrix: Tensor, partials: Tensor) -> None:
        matrix.array[...] /= max(np.sqrt(partials.array.sum()), np.float32(NORM_EPSILON))

    @recorded
    def newton_schulz(self, gram: Tensor, square: Tensor) -> None:
        """Replace gram (S, n, n) by a I + b gram + c square, with Muon's a, b and c.

        gram may be float16; square is float32.
        """
        a, b, c = NEWTON_SCHULZ
        polynomial: FloatArray = b * as_single(gram.array) + c * as_single(square.array)
        side = np.arange(gram.shape[-1])
        polynomial[:, side, side] += a
        put(polynomial, gram.array)


class GpuUpdates(GpuRecorder, UpdateOperations):
    """Norms of gradients and updates of weights, as GPU kernels."""

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        self._norms(grad, partials, index, 1)

    def fill_zeros(self, tensors: Sequence[Tensor]) -> None:
        for run in adjacent_runs([(each,) for each in tensors]):
            self.fill_zero(joined([tensors[k] for k in run]))

    def reduce_norms(self, grads: Sequence[Tensor], partials: Tensor) -> None:
        batch: list[list[int]] = []
        for run in adjacent_runs([(grad,) for grad in grads]):
            for first in range(0, len(run), NORMS_AT_ONCE):
                part = run[first : first + NORMS_AT_ONCE]
                count = sum(map(len, batch)) + len(part)
                if len(batch) == NORM_BUFFERS or count > NORMS_AT_ONCE:
                    self._reduce_runs(grads, batch, partials)
                    batch = []
                batch.append(part)
        if batch:
            self._reduce_runs(grads, batch, partials)

    def _reduce_runs(
        self, grads: Sequence[Tensor], runs: Sequence[Sequence[int]], partials: Tensor
    ) -> None:
        """Dispatch `reduce_norms` once, for up to NORM_BUFFERS runs of adjacent gradients.

        runs: the numbers of the gradients of each run.
        """
        table = np.zeros((NORMS_AT_ONCE, 4), np.uint32)
        rows = []
        for buffer, run in enumerate(runs):
            start = 0
            for k in run:
                rows.append((buffer, start // 4, grads[k].size, k))
                start += grads[k].size
        table[: len(rows)] = rows
        memory = [joined([grads[k] for k in run]) for run in runs]
        memory += memory[:1] * (NORM_BUFFERS - len(memory))
        self.dispatch(
            "lm/12_reduce_norms.wgsl",
            len(rows) * NORM_PARTIALS,
            {"NORM_PARTIALS": NORM_PARTIALS},
            **{f"grads_{k}": tensor for k, tensor in enumerate(memory)},
            partials=partials,
            gradients=table,
        )

    def _norms(self, grad: Tensor, partials: Tensor, index: int, count: int) -> None:
        """Dispatch `reduce_norm_sq` for `count` adjacent matrices of a tensor.

        The sums of the first matrix go to row `index` of partials.
        """
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

    def update_weights(self, steps: Steps) -> None:
        alike: dict[tuple[object, ...], list[tuple[WeightState, WeightUpdate]]] = {}
        for state, update in steps:
            others = (value for name, value in vars(state).items() if name not in state.elements)
            shared = update.stats, update.hyper, update.decays, update.half_copy is None
            alike.setdefault((type(state), *shared, *others), []).append((state, update))
        for group in alike.values():
            rows = [_element_tensors(*step) for step in group]
            for run in adjacent_runs([[*row.values()] for row in rows]):
                whole = {name: joined([rows[k][name] for k in run]) for name in rows[run[0]]}
                state, update = cast("tuple[Any, Any]", group[run[0]])
                of_state = {name: whole.pop(name) for name in state.elements}
                self.update_weight(replace(state, **of_state), replace(update, **whole))

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
            workgroups(-(-gram.size // 2)),
            {"half": gram.is_half},
            gram=gram,
            square=square,
            dims=dims(gram.size, gram.shape[-1]),
        )


def _element_tensors(state: WeightState, update: WeightUpdate) -> dict[str, Tensor]:
    """Return all tensors of a step that have an element for each element of the weight."""
    names = ("parameter", "gradient") + (() if update.half_copy is None else ("half_copy",))
    of_update = {name: getattr(update, name) for name in names}
    return of_update | {name: getattr(state, name) for name in state.elements}
