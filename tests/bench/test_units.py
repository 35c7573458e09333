"""Numbers for people: three digits, the right prefix, no change of it by rounding."""

from __future__ import annotations

import pytest

from llmgpu.bench.results import quantity, seconds_text, spread_text


@pytest.mark.parametrize(
    "number, text",
    [
        (0, "0 B/s"),
        (0.5, "0.5 B/s"),
        (1, "1 B/s"),
        (99.94, "99.9 B/s"),
        (99.96, "100 B/s"),
        (999.4, "999 B/s"),
        (999.6, "1 KB/s"),
        (1234, "1.23 KB/s"),
        (999_600, "1 MB/s"),
        (4.8e12, "4.8 TB/s"),
        (1e18, "1,000 PB/s"),
    ],
)
def test_quantities(number: float, text: str) -> None:
    assert quantity(number, "B/s") == text
    assert quantity(1234, "") == "1.23 K"


@pytest.mark.parametrize(
    "seconds, text",
    [
        (100, "100 s"),
        (1, "1 s"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (1.234e-3, "1.23 ms"),
        (5e-6, "5 µs"),
        (12e-9, "12 ns"),
        (1e-12, "0.001 ns"),
        (0, "0 ns"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_spread_has_the_unit_of_the_median() -> None:
    assert spread_text(0.002, 0.0005, 1.5) == "0.5-1,500 ms"
