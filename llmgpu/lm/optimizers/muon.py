"""Muon: the step of a hidden matrix is orthogonal; other weights are updated by AdamW.

The direction of a step approximates the orthogonal matrix nearest to the momentum: all singular
values of the direction are about 1. Five Newton-Schulz iterations compute the direction by matrix
products: x -> (A + B x x^T + C (x x^T)^2) x (K. Jordan et al.,
https://kellerjordan.github.io/posts/muon). Steps are scaled to the size of AdamW's steps, so that
one learning rate and one weight decay suit all weights (J. Liu et al., arXiv 2502.16982).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import Steps, WeightState, WeightUpdate
from llmgpu.lm.ops.recording import GpuRecorder, workgroups
from llmgpu.lm.ops.tensor import PACKED_ELEMENTS, Shape, Tensor
from llmgpu.lm.optimizers.adamw import Moments, Optimizer, RowMoments

UPDATE_RMS = 0.2  # root mean square of a step's elements, about that of AdamW's steps
ITERATIONS = 5


@dataclass(frozen=True)
class Momentum(WeightState):
    """Running mean of a matrix's gradients, float32, in `momentum`.

    direction: receives the direction of the step, which is then made orthogonal. None until the
    step is recorded.
    """

    momentum: Tensor
    direction: Tensor | None = None

    elements = ("momentum", "direction")

    @staticmethod
    def make(operations: Operations, weights: Sequence[Tensor]) -> list[Momentum]:
        """Make the momenta of matrices, zeros at first."""
        shapes = {f"{weight.name}.momentum": weight.shape for weight in weights}
        return [Momentum(tensor) for tensor in operations.adjacent_tensors(shapes)]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.momentum,)

    def compute(self, update: WeightUpdate) -> None:
        """Update the momentum and write the direction."""
        assert self.direction is not None
        momentum = self.momentum.array
        gradient = update.gradient.array * update.clip_scale
        kept = float(update.hyper.array["momentum"])
        # The float32 number `kept` has seven digits. Round it to seven digits, so that 1 - 0.95 is
        # the float32 nearest to 0.05.
        momentum += np.float32(1 - round(kept, 7)) * (gradient - momentum)
        gradient += np.float32(kept) * (momentum - gradient)
        self.direction.array[...] = gradient

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of `compute`; each thread updates four elements."""
        size = update.gradient.size
        groups, unbound = workgroups(-(-size // 4)), {"parameter": None, "half_copy": None}
        tensors = vars(self) | unbound
        update.dispatch(operations, "muon_momentum", groups, (size,), tensors)


@dataclass(frozen=True)
class OrthogonalStep(WeightState):
    """The step of a matrix along `direction`, an orthogonal matrix of the same shape.

    side: the longer side of the matrix.
    """

    direction: Tensor
    side: int

    elements = ("direction",)

    def compute(self, update: WeightUpdate) -> None:
        parameter, rate = update.parameter.array, float(update.hyper.array["learning_rate"])
        if update.decays:
            parameter *= 1 - rate * float(update.hyper.array["weight_decay"])
        size = rate * UPDATE_RMS * self.side**0.5
        parameter -= np.float32(size) * self.direction.array

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each thread updates four elements."""
        size = update.parameter.size
        groups, sizes = workgroups(-(-size // 4)), (size, int(update.decays), self.side)
        tensors = {"direction": self.direction, "gradient": None}
        update.dispatch(operations, "muon_update", groups, sizes, tensors)


def record_orthogonal(
    operations: Operations, matrices: Tensor, *, half: bool = False, memory: int = 0
) -> Tensor:
    """Record operations that make S matrices nearly orthogonal; return the results.

    matrices: (S, rows, columns), overwritten. Singular values below about 1e-3 of the largest stay
    below 1. half: the factors of products are half precision, as in the model. memory: size of the
    scratch memory in numbers; stacks with the same size share scratch memory.
    """
    scratch = partial(_scratch, operations, max(memory, matrices.size))
    count, rows, columns = matrices.shape
    side, is_wide = min(rows, columns), rows <= columns
    operations.scale_to_norm(matrices)  # the iteration requires that no singular value is above 1
    x = matrices
    if half:
        x = scratch("directions in half", matrices.shape, np.float16)
        operations.round_to_half(matrices, x)
    gram = scratch("grams", (count, side, side), x.dtype)
    square = scratch("squares of grams", (count, side, side))
    other = scratch("next directions", matrices.shape, x.dtype)
    for iteration in range(ITERATIONS):
        # Compute the smaller of x x^T and x^T x, its square, and the polynomial of both; multiply x
        # by the polynomial.
        operations.multiply(x, x, gram, left_transposed=not is_wide, right_transposed=is_wide)
        operations.multiply(gram, gram, square, right_transposed=True)
        operations.newton_schulz(gram, square)
        factors = (gram, x) if is_wide else (x, gram)
        if half and iteration == ITERATIONS - 1:
            other = matrices  # no product follows, so the last result is float32
        operations.multiply(*factors, other)
        x, other = other, x
    return x


def _scratch(
    operations: Operations, memory: int, role: str, shape: Shape, dtype: DTypeLike = np.float32
) -> Tensor:
    whole = operations.scratch(role, (memory,), dtype)
    return whole.part(0, math.prod(shape)).reshaped(*shape)


HiddenStep = tuple[Momentum, WeightUpdate]


def _record(operations: Operations, steps: Steps) -> None:
    """Record the steps of all weights; hidden matrices of one shape are stacked."""
    by_shape: dict[tuple[int, ...], list[HiddenStep]] = {}
    others: list[tuple[WeightState, WeightUpdate]] = []
    for state, update in steps:
        if isinstance(state, Momentum):
            by_shape.setdefault(update.parameter.shape, []).append((state, update))
        else:
            others.append((state, update))
    operations.update_weights(others)
    most = operations.stack_elements
    stacks = [stack for equal in by_shape.values() for stack in _stacks(equal, most)]
    memory = max((len(stack) * stack[0][1].parameter.size for stack in stacks), default=0)
    for stack in stacks:
        _record_stack(operations, stack, memory)


def _stacks(steps: Sequence[HiddenStep], elements: int) -> Iterator[Sequence[HiddenStep]]:
    """Divide steps of one shape into stacks of up to `elements` numbers, or of one matrix."""
    size = steps[0][1].parameter.size
    # Stack matrices only if each starts at a multiple of PACKED_ELEMENTS, where a device can bind
    # a single matrix of the stack.
    most = 1 if size % PACKED_ELEMENTS else max(1, elements // size)
    count = -(-len(steps) // -(-len(steps) // most))  # so that stacks have similar sizes
    for start in range(0, len(steps), count):
        yield steps[start : start + count]


def _record_stack(operations: Operations, stack: Sequence[HiddenStep], memory: int) -> None:
    """Record the directions of all matrices into one stack, make them orthogonal, and update."""
    shape, half = stack[0][1].parameter.shape, stack[0][1].half_copy is not None
    directions = _scratch(operations, memory, "directions", (len(stack), *shape))
    parts = _matrices(directions)
    momenta = [replace(state, direction=parts[k]) for k, (state, _) in enumerate(stack)]
    updates = [update for _, update in stack]
    operations.update_weights([*zip(momenta, updates, strict=True)])
    orthogonal = record_orthogonal(operations, directions, half=half, memory=memory)
    along = [OrthogonalStep(direction, max(shape)) for direction in _matrices(orthogonal)]
    operations.update_weights([*zip(along, updates, strict=True)])


def _matrices(stack: Tensor) -> list[Tensor]:
    """Return the S matrices of a stack (S, rows, columns), as views."""
    return [stack.rows(k, k + 1).reshaped(*stack.shape[1:]) for k in range(stack.shape[0])]


MUON = Optimizer(Moments.make, RowMoments.make_rows, Momentum.make, _record)
