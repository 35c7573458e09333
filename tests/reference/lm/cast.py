"""Rounding to half precision by exact arithmetic, apart from any hardware's conversion."""

from __future__ import annotations

import math

LARGEST = 65504.0


def nearest_half(value: float) -> float:
    """Return the half nearest to a number, ties to even, saturating at +-LARGEST; NaN stays NaN."""
    if math.isnan(value):
        return value
    if abs(value) >= LARGEST:
        return math.copysign(LARGEST, value)
    # Halves are multiples of 2^(e - 10) in [2^e, 2^(e + 1)), and of 2^-24 below 2^-14.
    exponent = max(math.frexp(value)[1] - 1, -14)
    spacing = math.ldexp(1.0, exponent - 10)
    return math.copysign(round(value / spacing) * spacing, value)
