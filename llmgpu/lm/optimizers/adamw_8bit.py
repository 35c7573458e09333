"""AdamW with moments as 8-bit codes, in blocks of 256 codes with one scale each.

Block-wise quantisation: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via
Block-wise Quantization, arXiv 2110.02861. Let a be the largest magnitude of a block. A signed code
c has the value a * sign(c) * (c / 127)^4, and an unsigned code c has a * (c / 255)^4.

A number x gets the code of the nearest value. With L = 127 or 255 and u the fourth root of |x| / a,
this rounding changes x by at most a / 2 * ((u + 1 / L)^4 - u^4). An x above 0 that is too small for
the unsigned code 1 gets code 1 nevertheless, and grows by less than a / L^4.

The first moment has signed codes. The second moment has unsigned codes of its square root. Only 0
has the unsigned code 0: a denominator of 0 would let the step explode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import WeightState, WeightUpdate
from llmgpu.lm.ops.recording import GpuRecorder, dims
from llmgpu.lm.ops.tensor import FloatArray, Tensor
from llmgpu.lm.optimizers.adamw import PIECE, Optimizer, adamw

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
class BlockCodes:
    """Numbers stored as codes.

    codes: (blocks * BLOCK,) uint8, 0 after the last number. scales: (blocks,) float32.
    """

    codes: Tensor
    scales: Tensor


def block_codes(operations: Operations, name: str, size: int) -> BlockCodes:
    """Create the codes of `size` numbers, zeros at first."""
    blocks = -(-size // BLOCK)
    return BlockCodes(
        operations.tensor(f"{name} codes", (blocks * BLOCK,), np.uint8),
        operations.tensor(f"{name} scales", (blocks,)),
    )


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
    """Moments in 8 bits per element; `second` stores codes of the square root."""

    first: BlockCodes
    second: BlockCodes

    @staticmethod
    def make(operations: Operations, weights: Sequence[Tensor]) -> list[CodedMoments]:
        """Make the moments of weights, zeros at first."""
        return [
            CodedMoments(
                block_codes(operations, f"{weight.name}.first", weight.size),
                block_codes(operations, f"{weight.name}.second", weight.size),
            )
            for weight in weights
        ]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Codes and scales of both moments."""
        return self.first.codes, self.first.scales, self.second.codes, self.second.scales

    def compute(self, update: WeightUpdate) -> None:
        """Decode, update and encode the moments, a piece of whole blocks at a time."""
        parameter, gradient = (x.array.reshape(-1) for x in (update.parameter, update.gradient))
        for start in range(0, len(parameter), PIECE):
            part = slice(start, start + PIECE)
            p, g = parameter[part], gradient[part] * update.clip_scale
            m = decode(*_piece(self.first, start), SIGNED_VALUES)
            v = decode(*_piece(self.second, start), UNSIGNED_VALUES)
            np.square(v, out=v)
            # The last block may reach beyond the weight; codes beyond the weight stay 0.
            adamw(p, g, m[: len(g)], v[: len(g)], update.hyper.array, decays=update.decays)
            encode_signed(m, *_piece(self.first, start))
            encode_unsigned(np.sqrt(v, out=v), *_piece(self.second, start))

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel of a step; each workgroup updates a block."""
        size = update.parameter.size
        operations.dispatch(
            "lm/12_adamw_8bit_update.wgsl",
            -(-size // BLOCK),
            {**update.settings, "WORKGROUP_SIZE": BLOCK // 4},
            **update.bindings,
            first_codes=self.first.codes,
            first_scales=self.first.scales,
            second_codes=self.second.codes,
            second_scales=self.second.scales,
            dims=dims(size, int(update.decays)),
        )


def _piece(moment: BlockCodes, start: int) -> tuple[Codes, FloatArray]:
    """Return views of the codes of PIECE elements from `start` on, and of the blocks' scales."""
    blocks = slice(start // BLOCK, (start + PIECE) // BLOCK)
    return moment.codes.array[start : start + PIECE], moment.scales.array[blocks]


ADAMW_8BIT = Optimizer(CodedMoments.make, keeps_codes=True)
