"""AdamW whose moments take one byte a number: 8-bit codes in blocks of 256 with one scale each.

Block-wise quantisation: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via
Block-wise Quantization, arXiv 2110.02861. With a the largest magnitude of a block, a signed code c
stands for a * sign(c) * (c / 127)^4 and an unsigned one for a * (c / 255)^4.

Codes are those of the nearest values. With L = 127 or 255 and u the fourth root of |x| / a, that
changes x by at most a / 2 * ((u + 1 / L)^4 - u^4); an x too small for an unsigned code of 1 grows
by less than a / L^4.

The first moment has signed codes, the second one unsigned codes of its square root: only 0 has
code 0, since a denominator of 0 would let the step explode.
"""

from __future__ import annotations

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
UNSIGNED_VALUES: FloatArray = _UNSIGNED**4  # by the code
SIGNED_VALUES: FloatArray = np.sign(_SIGNED) * _SIGNED**4  # by the code's byte


@dataclass(frozen=True)
class BlockCodes:
    """Codes, (blocks * BLOCK,) uint8, 0 after the last number, and scales, (blocks,) float32."""

    codes: Tensor
    scales: Tensor


def block_codes(operations: Operations, name: str, size: int) -> BlockCodes:
    """Make the codes of `size` numbers, zeros at first."""
    blocks = -(-size // BLOCK)
    return BlockCodes(
        operations.tensor(f"{name} codes", (blocks * BLOCK,), np.uint8),
        operations.tensor(f"{name} scales", (blocks,)),
    )


def decode(codes: Codes, scales: FloatArray, values: FloatArray) -> FloatArray:
    """Return the numbers that codes of whole blocks stand for; values: of the 256 codes."""
    numbers = values[codes].reshape(-1, BLOCK)
    numbers *= scales[:, None]
    return numbers.reshape(-1)


def encode_signed(numbers: FloatArray, codes: Codes, scales: FloatArray) -> None:
    """Write codes and scales of whole blocks of numbers."""
    magnitudes = _nearest_codes(np.abs(numbers), scales, SIGNED_VALUES[: SIGNED_LEVELS + 1])
    np.multiply(magnitudes, np.sign(numbers), out=codes.view(np.int8), casting="unsafe")


def encode_unsigned(numbers: FloatArray, codes: Codes, scales: FloatArray) -> None:
    """Write codes and scales of whole blocks of numbers, none below 0; only 0 gets code 0."""
    nearest = _nearest_codes(numbers.copy(), scales, UNSIGNED_VALUES)
    np.maximum(nearest, numbers > 0, out=codes, casting="unsafe")


def _nearest_codes(
    magnitudes: FloatArray, scales: FloatArray, values: FloatArray
) -> NDArray[np.intp]:
    """Write the scales and return the codes of the magnitudes, which are divided by the scales."""
    blocks = magnitudes.reshape(-1, BLOCK)
    np.max(blocks, axis=1, out=scales)
    blocks /= np.maximum(scales, _SMALLEST_NORMAL)[:, None]
    # The nearest value of each code: search among the middles between neighbouring values.
    middles = (values[:-1] + values[1:]) / 2
    return np.searchsorted(middles, magnitudes)


@dataclass(frozen=True)
class CodedMoments(WeightState):
    """Moments in 8 bits per element; `second` holds codes of the square root."""

    first: BlockCodes
    second: BlockCodes

    @classmethod
    def make(cls, operations: Operations, weight: Tensor) -> CodedMoments:
        """Make the moments of a weight, zeros at first."""
        return cls(
            block_codes(operations, f"{weight.name}.first", weight.size),
            block_codes(operations, f"{weight.name}.second", weight.size),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Codes and scales of both moments."""
        return self.first.codes, self.first.scales, self.second.codes, self.second.scales

    def compute(self, update: WeightUpdate) -> None:
        """Decode, update and encode one piece, of whole blocks, after the other."""
        parameter, gradient = (x.array.reshape(-1) for x in (update.parameter, update.gradient))
        for start in range(0, len(parameter), PIECE):
            part = slice(start, start + PIECE)
            p, g = parameter[part], gradient[part] * update.clip_scale
            m = decode(*_piece(self.first, start), SIGNED_VALUES)
            v = decode(*_piece(self.second, start), UNSIGNED_VALUES)
            np.square(v, out=v)
            # The last block may reach beyond the weight; its codes there stay 0.
            adamw(p, g, m[: len(g)], v[: len(g)], update.hyper.array, decays=update.decays)
            encode_signed(m, *_piece(self.first, start))
            encode_unsigned(np.sqrt(v, out=v), *_piece(self.second, start))

    def dispatch(self, operations: GpuRecorder, update: WeightUpdate) -> None:
        """Append the kernel that updates a block a workgroup."""
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
    """Return views of the codes of PIECE elements from `start` on, and of their blocks' scales."""
    blocks = slice(start // BLOCK, (start + PIECE) // BLOCK)
    return moment.codes.array[start : start + PIECE], moment.scales.array[blocks]


ADAMW_8BIT = Optimizer("adamw-8bit", CodedMoments.make, keeps_codes=True)
