"""Numbers as 8-bit codes in blocks of 256 with one scale each: the moments of 8-bit AdamW.

Block-wise quantisation: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via
Block-wise Quantization, arXiv 2110.02861. With a the largest magnitude of a block, a signed code c
stands for a * sign(c) * (c / 127)^4 and an unsigned one for a * (c / 255)^4.

Codes are those of the nearest values. With L = 127 or 255 and u the fourth root of |x| / a, that
changes x by at most a / 2 * ((u + 1 / L)^4 - u^4); an x too small for an unsigned code of 1 grows
by less than a / L^4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import Recorder
from llmgpu.lm.ops.tensor import Tensor

Array = NDArray[np.float32]
Codes = NDArray[np.uint8]

BLOCK = 256
SIGNED_LEVELS = 127
UNSIGNED_LEVELS = 255

_SMALLEST_NORMAL = np.finfo(np.float32).tiny
_BYTES = np.arange(256, dtype=np.uint8)
_SIGNED = _BYTES.view(np.int8).astype(np.float32) / np.float32(SIGNED_LEVELS)
_UNSIGNED = _BYTES.astype(np.float32) / np.float32(UNSIGNED_LEVELS)
UNSIGNED_VALUES: Array = _UNSIGNED**4  # by the code
SIGNED_VALUES: Array = np.sign(_SIGNED) * _SIGNED**4  # by the code's byte


@dataclass(frozen=True)
class BlockCodes:
    """Codes, (blocks * BLOCK,) uint8, 0 behind the last number, and scales, (blocks,) float32."""

    codes: Tensor
    scales: Tensor


def block_codes(operations: Recorder[Any], name: str, size: int) -> BlockCodes:
    """Make the codes of `size` numbers, zeros at first."""
    blocks = -(-size // BLOCK)
    return BlockCodes(
        operations.tensor(f"{name} codes", (blocks * BLOCK,), np.uint8),
        operations.tensor(f"{name} scales", (blocks,)),
    )


def decode(codes: Codes, scales: Array, values: Array) -> Array:
    """Return the numbers that codes of whole blocks stand for; values: of the 256 codes."""
    numbers = values[codes].reshape(-1, BLOCK)
    numbers *= scales[:, None]
    return numbers.reshape(-1)


def encode_signed(numbers: Array, codes: Codes, scales: Array) -> None:
    """Write codes and scales of whole blocks of numbers."""
    magnitudes = _nearest_codes(np.abs(numbers), scales, SIGNED_VALUES[: SIGNED_LEVELS + 1])
    np.multiply(magnitudes, np.sign(numbers), out=codes.view(np.int8), casting="unsafe")


def encode_unsigned(numbers: Array, codes: Codes, scales: Array) -> None:
    """Write codes and scales of whole blocks of numbers, none below 0; only 0 gets code 0."""
    nearest = _nearest_codes(numbers.copy(), scales, UNSIGNED_VALUES)
    np.maximum(nearest, numbers > 0, out=codes, casting="unsafe")


def _nearest_codes(magnitudes: Array, scales: Array, values: Array) -> NDArray[np.intp]:
    """Write the scales; return codes of the magnitudes, which become shares of the scales."""
    blocks = magnitudes.reshape(-1, BLOCK)
    np.max(blocks, axis=1, out=scales)
    blocks /= np.maximum(scales, _SMALLEST_NORMAL)[:, None]
    middles = (values[:-1] + values[1:]) / 2
    return np.searchsorted(middles, magnitudes)
