"""Measured numbers as people read them: three digits and a unit."""

from __future__ import annotations

_LARGE = ("", "K", "M", "G", "T", "P")
_SMALL = ("", "m", "µ", "n")
_HIGHEST = 999.5  # from here on three digits need the next prefix


def three_digits(number: float) -> str:
    """Return a number with three digits, or all those before the point."""
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:.3g}"


def quantity(number: float, unit: str) -> str:
    """Return a number with a prefix of powers of 1000: 1.23 GB/s, without a unit 1.23 G."""
    power = 0
    while abs(number) >= _HIGHEST and power < len(_LARGE) - 1:
        number, power = number / 1000, power + 1
    return f"{three_digits(number)} {_LARGE[power]}{unit}".rstrip()


def seconds_text(seconds: float) -> str:
    """Return a time in s, ms, µs or ns: 1.23 ms."""
    scale, unit = _second_unit(seconds)
    return f"{three_digits(seconds * scale)} {unit}"


def spread_text(median: float, fastest: float, slowest: float) -> str:
    """Return the fastest and the slowest of several runs in the unit of their median."""
    scale, unit = _second_unit(median)
    return f"{three_digits(fastest * scale)}-{three_digits(slowest * scale)} {unit}"


def _second_unit(seconds: float) -> tuple[float, str]:
    """Return how many of the unit that suits a time make a second, and the unit."""
    power = 0
    while seconds * 1000**power < 0.9995 and power < len(_SMALL) - 1:
        power += 1
    return 1000.0**power, f"{_SMALL[power]}s"
