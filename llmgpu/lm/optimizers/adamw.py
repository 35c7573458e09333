"""The class `Optimizer`, and AdamW with float32 moments, for whole weights or for rows of tables.

I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101. A step that
updates only some rows does not change the moments of other rows, as in torch's SparseAdam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llmgpu.lm.ops.adjacent import adjacent_tensors
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import Steps, WeightState, WeightUpdate
from llmgpu.lm.ops.recording import GpuRecorder, dims, workgroups
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor

PIECE = 1 << 16  # elements that NumPy updates at a time, so that they fit in a processor's cache

Make = Callable[[Operations, Sequence[Tensor]], Sequence[WeightState]]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, an entry of `llmgpu.lm.optimizers`.

    make: makes the states of weights.
    make_rows: makes the state of a table whose steps update only the rows in a list (uint32;
        numbers beyond the table are skipped); None: the optimizer can't update single rows.
    make_hidden: makes the states of matrices inside layers; None: `make` is used for them, too.
    record: records the steps of all weights.
    keeps_codes: whether some moments are stored as 8-bit codes.
    """

    make: Make
    make_rows: Callable[[Operations, Tensor, Tensor], WeightState] | None = None
    make_hidden: Make | None = None
    record: Callable[[Operations, Steps], None] = lambda ops, steps: ops.update_weights(steps)
    keeps_codes: bool = False


def adamw(
    parameter: FloatArray,
    g: FloatArray,
    first: FloatArray,
    second: FloatArray,
    hyper: AnyArray,
    *,
    decays: bool,
) -> None:
    """Update a parameter and its moments in place.

    g: the clipped gradient, which is overwritten. hyper: of type `llmgpu.lm.ops.optimizer.HYPER`.
    """
    values = {name: float(hyper[name]) for name in hyper.dtype.names or ()}
    # first += (1 - beta1) (g - first)
    change = g - first
    change *= values["one_minus_beta1"]
    first += change
    # second += (1 - beta2) (g^2 - second)
    np.square(g, out=g)
    g -= second
    g *= values["one_minus_beta2"]
    second += g
    # The denominator sqrt(second / bias_correction2) + epsilon, in the memory of the gradient.
    denominator = np.sqrt(second, out=g)
    denominator /= math.sqrt(values["bias_correction2"])
    denominator += values["epsilon"]
    if decays:
        parameter *= 1 - values["learning_rate"] * values["weight_decay"]
    np.divide(first, denominator, out=change)
    change *= values["learning_rate"] / values["bias_correction1"]
    parameter -= change


@dataclass(frozen=True)
class Moments(WeightState):
    """Running means of gradients and of squared gradients, float32, of the weight's shape."""

    first: Tensor
    second: Tensor

    elements: ClassVar[tuple[str, ...]] = ("first", "second")

    @staticmethod
    def make(operations: Operations, weights: Sequence[Tensor]) -> list[Moments]:
        """Make the moments of weights, zeros at first."""
        made = (
            adjacent_tensors(operations, {f"{each.name}.{role}": each.shape for each in weights})
            for role in Moments.elements
        )
        return [Moments(*of_weight) for of_weight in zip(*made, strict=True)]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.first, self.second

    def compute(self, update: WeightUpdate) -> None:
        tensors = (update.parameter, update.gradient, self.first, self.second)
        for p, g, m, v in _pieces(*tensors):
            adamw(p, g * update.clip_scale, m, v, update.hyper.array, decays=update.decays)

    def adamw_moments(self, update: WeightUpdate) -> tuple[Tensor, Tensor] | None:
        """Return both moments, or None if a half-precision copy must be written, too."""
        return (self.first, self.second) if update.half_copy is None else None

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each thread updates four elements."""
        size = update.parameter.size
        operations.dispatch(
            "lm/12_adamw_update.wgsl",
            workgroups(-(-size // 4)),
            update.settings,
            **update.bindings,
            first=self.first,
            second=self.second,
            dims=dims(size, int(update.decays)),
        )


@dataclass(frozen=True)
class RowMoments(Moments):
    """Moments of a table (V, C). A step changes only the moments and parameters of listed rows.

    rows: uint32 (U,), distinct numbers of rows, and 0xffffffff in unused entries. The gradient is
    (U, C), a row for each entry.
    """

    rows: Tensor

    elements = ()

    @classmethod
    def make_rows(cls, operations: Operations, weight: Tensor, rows: Tensor) -> RowMoments:
        """Make the moments of a table, zeros at first."""
        (moments,) = Moments.make(operations, [weight])
        return cls(moments.first, moments.second, rows)

    def compute(self, update: WeightUpdate) -> None:
        """Update the listed rows."""
        changed = (update.parameter, self.first, self.second)
        used = np.flatnonzero(self.rows.array < update.parameter.shape[0])
        per_piece = max(1, PIECE // update.parameter.shape[1])
        for start in range(0, len(used), per_piece):
            entries = used[start : start + per_piece]
            some = self.rows.array[entries]
            # Indexing by a list copies, so the rows are written back after their update.
            p, m, v = (tensor.array[some] for tensor in changed)
            g = update.gradient.array[entries] * update.clip_scale
            adamw(p, g, m, v, update.hyper.array, decays=update.decays)
            for tensor, rows in zip(changed, (p, m, v), strict=True):
                tensor.array[some] = rows

    def adamw_moments(self, update: WeightUpdate) -> None:
        """Return None, because a step changes only some rows."""

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each thread updates an element of a listed row."""
        height, width = update.parameter.shape
        threads = self.rows.size * width
        operations.dispatch(
            "lm/12_adamw_update_rows.wgsl",
            workgroups(threads),
            update.settings,
            **update.bindings,
            first=self.first,
            second=self.second,
            rows=self.rows,
            dims=dims(threads, width, height, int(update.decays)),
        )


def _pieces(*tensors: Tensor) -> Iterator[tuple[AnyArray, ...]]:
    """Yield, for each range of `PIECE` elements, the views of all tensors."""
    arrays = [tensor.array.reshape(-1) for tensor in tensors]
    for start in range(0, len(arrays[0]), PIECE):
        yield tuple(array[start : start + PIECE] for array in arrays)


ADAMW = Optimizer(Moments.make, RowMoments.make_rows)
