"""Numbers as 8-bit codes in blocks of 256 with one scale each: the moments of 8-bit AdamW.

Block-wise quantisation: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, 8-bit Optimizers via
Block-wise Quantization, arXiv 2110.02861. With a the largest magnitude of a block, a signed code c
stands for a * sign(c) * (c / 127)^2 and an unsigned one for a * (c / 255)^2. Rounding to the
nearest code changes x by at most sqrt(a |x|) / L + a / (2 L)^2 with L = 127 or 255; an x too small
for an unsigned code of 1 grows by less than a / L^2.
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
_SIGNED = np.arange(256).astype(np.uint8).view(np.int8).astype(np.float32) / np.float32(
    SIGNED_LEVELS
)
SIGNED_VALUES: Array = _SIGNED * np.abs(_SIGNED)  # by the code's byte
UNSIGNED_VALUES: Array = (np.arange(256, dtype=np.float32) / np.float32(UNSIGNED_LEVELS)) ** 2


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
    shares = _roots_of_shares(np.abs(numbers), scales)
    shares *= SIGNED_LEVELS
    np.copysign(np.rint(shares, out=shares), numbers, out=shares)
    codes.view(np.int8)[...] = shares


def encode_unsigned(numbers: Array, codes: Codes, scales: Array) -> None:
    """Write codes and scales of whole blocks of numbers, none below 0; only 0 gets code 0."""
    shares = _roots_of_shares(numbers.copy(), scales)
    shares *= UNSIGNED_LEVELS
    np.rint(shares, out=shares)
    np.maximum(shares, numbers > 0, out=shares)
    codes[...] = shares


def _roots_of_shares(magnitudes: Array, scales: Array) -> Array:
    """Write the scales; turn magnitudes into the square roots of their shares of these."""
    blocks = magnitudes.reshape(-1, BLOCK)
    np.max(blocks, axis=1, out=scales)
    blocks /= np.maximum(scales, _SMALLEST_NORMAL)[:, None]
    return np.sqrt(magnitudes, out=magnitudes)
