"""Muon: the step of a hidden matrix is orthogonal; other weights take those of AdamW.

The momentum of a matrix is brought near the orthogonal matrix next to it, one whose singular values
are all 1, by five Newton-Schulz iterations, which are matrix products: x -> (A + B x x^T +
C (x x^T)^2) x. K. Jordan et al., https://kellerjordan.github.io/posts/muon. Steps are scaled to the
size of AdamW's, so that all weights take one learning rate and one weight decay (J. Liu et al.,
arXiv 2502.16982).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import NORM_PARTIALS, Optimizer
from llmgpu.lm.ops.recording import dims, saturate_to_half, workgroups
from llmgpu.lm.ops.tensor import Tensor, TensorMaker
from llmgpu.lm.ops.weight_state import KernelCall, WeightState, WeightUpdate
from llmgpu.lm.optimizers.adamw import Moments, RowMoments

MOMENTUM = 0.95
UPDATE_RMS = 0.2  # about that of the elements of AdamW's steps
ITERATIONS = 5


@dataclass(frozen=True)
class Momentum(WeightState):
    """Mean of a matrix's gradients, in float32; a step writes it and `direction`.

    direction: of the step, not yet orthogonal; memory that all matrices of a shape share.
    """

    momentum: Tensor
    direction: Tensor

    @classmethod
    def make(cls, maker: TensorMaker, weight: Tensor) -> Momentum:
        """Make the momentum of a matrix, zeros at first."""
        momentum = maker.tensor(f"{weight.name}.momentum", weight.shape)
        return cls(momentum, maker.scratch("direction of a step", weight.shape))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The momentum."""
        return (self.momentum,)

    def compute(self, update: WeightUpdate) -> None:
        """Update all elements."""
        momentum = self.momentum.array
        gradient = update.gradient.array * update.clip_scale
        momentum += np.float32(1 - MOMENTUM) * (gradient - momentum)
        gradient += np.float32(MOMENTUM) * (momentum - gradient)
        self.direction.array[...] = gradient

    def kernel(self, update: WeightUpdate) -> KernelCall:
        """Return the kernel that updates four elements a thread."""
        size = update.gradient.size
        return KernelCall(
            "lm/12_muon_momentum.wgsl",
            workgroups(-(-size // 4)),
            {
                "gradient": update.gradient,
                "momentum": self.momentum,
                "direction": self.direction,
                "stats": update.stats,
                "dims": dims(size),
            },
        )


@dataclass(frozen=True)
class OrthogonalStep(WeightState):
    """The step of a matrix along an orthogonal direction of its shape."""

    direction: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """None: the direction is not kept."""
        return ()

    def compute(self, update: WeightUpdate) -> None:
        """Update all elements."""
        parameter, rate = update.parameter.array, float(update.hyper.array["learning_rate"])
        if update.decays:
            parameter *= 1 - rate * float(update.hyper.array["weight_decay"])
        size = rate * UPDATE_RMS * max(parameter.shape) ** 0.5
        parameter -= np.float32(size) * self.direction.array
        if update.half_copy is not None:
            saturate_to_half(parameter, update.half_copy.array)

    def kernel(self, update: WeightUpdate) -> KernelCall:
        """Return the kernel that updates four elements a thread."""
        parameter = update.parameter
        bindings = {**update.bindings, "direction": self.direction}
        del bindings["gradient"]
        return KernelCall(
            f"lm/12_muon_update{update.suffix}.wgsl",
            workgroups(-(-parameter.size // 4)),
            {**bindings, "dims": dims(parameter.size, int(update.decays), max(parameter.shape))},
        )


def record_orthogonal(operations: Operations, matrix: Tensor, *, half: bool = False) -> Tensor:
    """Record that a matrix (rows, columns) becomes nearly orthogonal; return the result.

    The matrix is overwritten. Singular values below about 1e-3 of the largest stay below 1.
    half: the factors of products are rounded to half precision, as those of the model are.
    """

    def factor(single: Tensor, role: str) -> Tensor:
        if not half:
            return single
        rounded = operations.scratch(f"{role} in half", single.shape, np.float16)
        operations.round_to_half(single, rounded)
        return rounded

    rows, columns = matrix.shape
    side = min(rows, columns)
    gram, square = (
        operations.scratch(f"{role} of a direction", (side, side)) for role in ("gram", "square")
    )
    partials = operations.scratch("squares of a direction", (1, NORM_PARTIALS))
    x, other = matrix, operations.scratch("next direction", matrix.shape)
    operations.reduce_norm_sq(x, partials, 0)
    operations.scale_to_norm(x, partials)
    for _ in range(ITERATIONS):
        # The smaller of the two products of the matrix and its transpose, and the polynomial of it.
        own = factor(x, "direction")
        if rows <= columns:
            operations.linear(own, own, gram)
        else:
            operations.fill_zero(gram)
            operations.linear_backward_weight(own, own, gram)
        of_gram = factor(gram, "gram")
        operations.linear(of_gram, of_gram, square)
        operations.newton_schulz(gram, square)
        polynomial = factor(square, "polynomial")
        if rows <= columns:
            operations.linear_backward_input(polynomial, own, other, accumulate=False)
        else:
            operations.linear_backward_input(own, polynomial, other, accumulate=False)
        x, other = other, x
    return x


def _record(operations: Operations, state: WeightState, update: WeightUpdate) -> None:
    """Record the step of a weight."""
    operations.update_weight(state, update)
    if isinstance(state, Momentum):
        half = update.half_copy is not None
        step = OrthogonalStep(record_orthogonal(operations, state.direction, half=half))
        operations.update_weight(step, update)


MUON = Optimizer("muon", Moments.make, RowMoments.make_rows, Momentum.make, _record)
