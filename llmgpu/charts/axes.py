"""Axes of charts, with their ticks and labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOG_RATIO = 10.0  # of the largest to the smallest number, from which an axis is logarithmic

_LEAST = 1e-30  # smaller numbers are 0 for a picture
_LEAST_RANGE = 1e-4  # share of the largest number; closer numbers would get equal labels
_TOLERANCE = 1e-9  # a number may be this far outside the ticks: rounding errors are smaller
_STEPS = (1, 2, 5, 10)  # of ticks, in powers of ten
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_FINE_POWERS = 3
_MOST_POWERS = 8


@dataclass(frozen=True)
class Axis:
    """One axis.

    low, high: the numbers at its ends. ticks: marked numbers, ascending. is_log: whether the axis
    is logarithmic. begin, end: positions of its ends, in units of the picture.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool
    begin: float
    end: float

    @np.errstate(under="ignore")  # differences far below a pixel
    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the positions of numbers in the picture, float64 of the same shape."""
        low, high, at = self.low, self.high, values
        if self.is_log:
            low, high, at = math.log(low), math.log(high), np.log(values)
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)

    def at(self, value: float) -> float:
        """Return the position of a number in the picture."""
        return float(self.place(np.array([value]))[0])

    def marks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and the readable form of each tick: 0.25, 2,500 or 250k."""
        largest = max(map(abs, self.ticks))
        # A unit for all ticks of a logarithmic axis would make some too small.
        in_own_unit = self.is_log and largest >= 10 * _UNITS[-1][0]
        for at, tick in zip(self.place(np.array(self.ticks)), self.ticks, strict=True):
            yield float(at), _label(tick, tick if in_own_unit else largest / 10)


def value_axis(values: NDArray[np.float64], begin: float, end: float) -> Axis:
    """Return an axis that starts and ends at ticks around `values` (n,), n >= 1."""
    low, high = float(values.min()), float(values.max())
    if low > _LEAST and high >= LOG_RATIO * low:
        ticks = _log_ticks(low, high)
        return Axis(ticks[0], ticks[-1], ticks, True, begin, end)
    largest = max(abs(low), abs(high))
    if high - low <= _LEAST_RANGE * largest or largest < _LEAST:  # labels would all be the same
        margin = 0.1 * largest if largest >= _LEAST else 1.0
        low, high = low - margin, high + margin
    step = _nice_step((high - low) / 5)
    first, last = _floor(low / step), _ceil(high / step)
    ticks = tuple(step * index for index in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks, False, begin, end)


def step_axis(last: int, begin: float, end: float) -> Axis:
    """Return an axis for whole numbers from 0 to `last`."""
    high = max(1, last)
    step = max(1.0, _nice_step(high / 6))
    ticks = tuple(step * index for index in range(int(high / step) + 1))
    return Axis(0.0, float(high), ticks, False, begin, end)


def _label(tick: float, most: float) -> str:
    """Return a number in the largest unit that is not above `most`."""
    size, unit = next(((size, unit) for size, unit in _UNITS if most >= size), (1.0, ""))
    return f"{tick / size:,.6g}{unit}" if tick else "0"


def _nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = math.floor(math.log10(least))
    factor = next((step for step in _STEPS if step * 10.0**power >= least), _STEPS[-1])
    # Dividing keeps 0.2 what it is; 2 times 0.1, rounded already, would not be.
    return factor * 10.0**power if power >= 0 else factor / 10.0**-power


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return ticks around a range: 1, 2 and 5 times powers of ten, or for a wide one only these."""
    first, last = _floor(math.log10(low)), _ceil(math.log10(high))
    if last - first > _MOST_FINE_POWERS:
        every = -(-(last - first) // _MOST_POWERS)
        return tuple(10.0**power for power in range(first, last + every, every))
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    below, above = low * (1 + _TOLERANCE), high * (1 - _TOLERANCE)
    begin = max(index for index, tick in enumerate(ticks) if tick <= below)
    end = min(index for index, tick in enumerate(ticks) if tick >= above)
    return tuple(ticks[begin : end + 1])


def _floor(number: float) -> int:
    return math.floor(number + _TOLERANCE)


def _ceil(number: float) -> int:
    return math.ceil(number - _TOLERANCE)
