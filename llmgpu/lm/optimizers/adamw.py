"""The class `Optimizer`, and AdamW with moments in float32 or as 8-bit codes.

I. Loshchilov, F. Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101. A step that
updates only some rows of a table does not change the moments of other rows, as in torch's
SparseAdam.

8-bit codes are in blocks of 256 codes with one scale each: T. Dettmers, M. Lewis, S. Shleifer, L.
Zettlemoyer, 8-bit Optimizers via Block-wise Quantization, arXiv 2110.02861. Let a be the largest
magnitude of a block. A signed code c has the value a * sign(c) * (c / 127)^4, and an unsigned code
c has a * (c / 255)^4.

A number x gets the code of the nearest value. With L = 127 or 255 and u the fourth root of |x| / a,
this rounding changes x by at most a / 2 * ((u + 1 / L)^4 - u^4). An x above 0 that is too small for
the unsigned code 1 gets code 1 nevertheless, and grows by less than a / L^4.

The first moment has signed codes. The second moment has unsigned codes of its square root. Only 0
has the unsigned code 0: a denominator of 0 would let the step explode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import Steps, WeightState, WeightUpdate
from llmgpu.lm.ops.recording import GpuRecorder, workgroups
from llmgpu.lm.ops.tensor import FloatArray, Tensor

PIECE = 1 << 16  # elements that NumPy updates at a time, so that they fit in a processor's cache

Make = Callable[[Operations, Sequence[Tensor]], Sequence[WeightState]]
Codes = NDArray[np.uint8]

BLOCK = 256
SIGNED_LEVELS = 127
UNSIGNED_LEVELS = 255

_SMALLEST_NORMAL = np.finfo(np.float32).tiny
_BYTES = np.arange(256, dtype=np.uint8)
_SIGNED = _BYTES.view(np.int8).astype(np.float32) / np.float32(SIGNED_LEVELS)
_UNSIGNED = _BYTES.astype(np.float32) / np.float32(UNSIGNED_LEVELS)
UNSIGNED_VALUES: FloatArray = _UNSIGNED**4  # (256,), by code
SIGNED_VALUES: FloatArray = np.sign(_SIGNED) * _SIGNED**4  # (256,), by the byte of a code


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
    update: WeightUpdate,
    parameter: FloatArray,
    g: FloatArray,
    first: FloatArray,
    second: FloatArray,
) -> None:
    """Update a part of a parameter and of its moments in place.

    g: the clipped gradient of the part, which is overwritten.
    """
    hyper = update.hyper.array
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
    if update.decays:
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
    in_c: ClassVar[str] = "adamw"

    @staticmethod
    def make(operations: Operations, weights: Sequence[Tensor]) -> list[Moments]:
        """Make the moments of weights, zeros at first."""
        made = (
            operations.adjacent_tensors({f"{each.name}.{role}": each.shape for each in weights})
            for role in Moments.elements
        )
        return [Moments(*of_weight) for of_weight in zip(*made, strict=True)]

    def compute(self, update: WeightUpdate) -> None:
        tensors = (update.parameter, update.gradient, self.first, self.second)
        arrays = [tensor.array.reshape(-1) for tensor in tensors]
        for start in range(0, len(arrays[0]), PIECE):
            p, g, m, v = (array[start : start + PIECE] for array in arrays)
            adamw(update, p, g * update.clip_scale, m, v)

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each thread updates four elements."""
        size = update.parameter.size
        groups, sizes = workgroups(-(-size // 4)), (size, int(update.decays))
        update.dispatch(operations, "adamw_update", groups, sizes, vars(self))


@dataclass(frozen=True)
class RowMoments(Moments):
    """Moments of a table (V, C). A step changes only the moments and parameters of listed rows.

    rows: uint32 (U,), distinct numbers of rows, and 0xffffffff in unused entries. The gradient is
    (U, C), a row for each entry.
    """

    rows: Tensor

    elements = ()
    in_c = ""

    @classmethod
    def make_rows(cls, operations: Operations, weight: Tensor, rows: Tensor) -> RowMoments:
        """Make the moments of a table, zeros at first."""
        (moments,) = Moments.make(operations, [weight])
        return cls(moments.first, moments.second, rows)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.first, self.second

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
            adamw(update, p, g, m, v)
            for tensor, rows in zip(changed, (p, m, v), strict=True):
                tensor.array[some] = rows

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each thread updates an element of a listed row."""
        height, width = update.parameter.shape
        threads = self.rows.size * width
        groups, sizes = workgroups(threads), (threads, width, height, int(update.decays))
        update.dispatch(operations, "adamw_update_rows", groups, sizes, vars(self))


def block_codes(operations: Operations, name: str, size: int) -> tuple[Tensor, Tensor]:
    """Create the codes of `size` numbers and the scales of their blocks, zeros at first.

    codes: (blocks * BLOCK,) uint8, 0 after the last number. scales: (blocks,) float32.
    """
    blocks = -(-size // BLOCK)
    codes = operations.tensor(f"{name} codes", (blocks * BLOCK,), np.uint8)
    return codes, operations.tensor(f"{name} scales", (blocks,))


def decode(codes: Codes, scales: FloatArray, values: FloatArray) -> FloatArray:
    """Convert the codes of whole blocks to numbers; values: (256,), value of each code."""
    numbers = values[codes].reshape(-1, BLOCK)
    numbers *= scales[:, None]
    return numbers.reshape(-1)


def encode_signed(numbers: FloatArray, codes: Codes, scales: FloatArray) -> None:
    """Write the signed codes and the scales of whole blocks of numbers."""
    magnitudes = _nearest_codes(np.abs(numbers), scales, SIGNED_VALUES[: SIGNED_LEVELS + 1])
    np.multiply(magnitudes, np.sign(numbers), out=codes.view(np.int8), casting="unsafe")


def encode_unsigned(numbers: FloatArray, codes: Codes, scales: FloatArray) -> None:
    """Write the unsigned codes and the scales of whole blocks of numbers that are 0 or more."""
    nearest = _nearest_codes(numbers.copy(), scales, UNSIGNED_VALUES)
    np.maximum(nearest, numbers > 0, out=codes, casting="unsafe")


def _nearest_codes(
    magnitudes: FloatArray, scales: FloatArray, values: FloatArray
) -> NDArray[np.intp]:
    """Write the scales, and return the codes of the magnitudes, which are overwritten."""
    blocks = magnitudes.reshape(-1, BLOCK)
    np.max(blocks, axis=1, out=scales)
    blocks /= np.maximum(scales, _SMALLEST_NORMAL)[:, None]
    # To find the nearest value, search among the middles between neighbouring values.
    middles = (values[:-1] + values[1:]) / 2
    return np.searchsorted(middles, magnitudes)


@dataclass(frozen=True)
class CodedMoments(WeightState):
    """Moments in 8 bits per element, see `block_codes`.

    The second moment is stored as its square root.
    """

    first_codes: Tensor
    first_scales: Tensor
    second_codes: Tensor
    second_scales: Tensor

    @staticmethod
    def make(operations: Operations, weights: Sequence[Tensor]) -> list[CodedMoments]:
        """Make the moments of weights, zeros at first."""
        return [
            CodedMoments(
                *block_codes(operations, f"{weight.name}.first", weight.size),
                *block_codes(operations, f"{weight.name}.second", weight.size),
            )
            for weight in weights
        ]

    def compute(self, update: WeightUpdate) -> None:
        """Decode, update and encode the moments, a piece of whole blocks at a time."""
        parameter, gradient = (x.array.reshape(-1) for x in (update.parameter, update.gradient))
        for start in range(0, len(parameter), PIECE):
            part = slice(start, start + PIECE)
            blocks = slice(start // BLOCK, (start + PIECE) // BLOCK)
            first = self.first_codes.array[part], self.first_scales.array[blocks]
            second = self.second_codes.array[part], self.second_scales.array[blocks]
            p, g = parameter[part], gradient[part] * update.clip_scale
            m, v = decode(*first, SIGNED_VALUES), decode(*second, UNSIGNED_VALUES)
            np.square(v, out=v)
            # The last block may reach beyond the weight; codes beyond the weight stay 0.
            adamw(update, p, g, m[: len(g)], v[: len(g)])
            encode_signed(m, *first)
            encode_unsigned(np.sqrt(v, out=v), *second)

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each workgroup updates a block."""
        size = update.parameter.size
        groups, sizes, threads = -(-size // BLOCK), (size, int(update.decays)), BLOCK // 4
        kernel, tensors = "adamw_8bit_update", vars(self)
        update.dispatch(operations, kernel, groups, sizes, tensors, WORKGROUP_SIZE=threads)


ADAMW = Optimizer(Moments.make, RowMoments.make_rows)
ADAMW_8BIT = Optimizer(CodedMoments.make, keeps_codes=True)
