"""What results state besides their times: which numbers there are, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmgpu.bench.reports.units import quantity, three_digits

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number of a result.

    key: its name in a result. title: of a column. unit: after a number with a prefix; "%" is a
    share, "x" a ratio; without one the title says it. scale: what the number is multiplied by
    before it has that unit.
    """

    key: str
    title: str
    unit: str
    scale: float = 1.0

    @property
    def meaning(self) -> str:
        """What a rate is, in words."""
        return self.title if not self.unit else f"{self.title} a second"

    def full_text(self, result: Result) -> str:
        """Return the result's number with its unit, whatever the title is."""
        return self.text(result) if self.unit else f"{self.text(result)} {self.title}"

    def text(self, result: Result) -> str:
        """Return the result's number for people, "-" if it has none."""
        number = result.get(self.key)
        if number is None:
            return "-"
        if self.unit == "%":
            return f"{three_digits(100 * number)} %"
        if self.unit == "x":
            return f"{three_digits(number)}x"
        return quantity(number * self.scale, self.unit)


TEXT_RATE = Measure("mb_per_second", "text", "B/s", 1e6)
MERGE_RATE = Measure("merges_per_second", "merges/s", "")
TOKEN_RATE = Measure("tokens_per_second", "tokens/s", "")
BYTE_RATE = Measure("bytes_per_second", "memory", "B/s")
OUTPUT_RATE = Measure("output_bytes_per_second", "output", "B/s")
OPERATION_RATE = Measure("operations_per_second", "arithmetic", "FLOP/s")
SHARE_OF_COPY = Measure("share_of_copy", "of copy", "%")
SHARE_OF_FLOOR = Measure("share_of_floor", "of limit", "%")
SPEED_UP = Measure("speed_up", "vs NumPy", "x")
SPEED_UP_OVER_TORCH = Measure("speed_up_over_torch", "vs torch", "x")

MEASURES = (
    TEXT_RATE,
    MERGE_RATE,
    TOKEN_RATE,
    BYTE_RATE,
    OUTPUT_RATE,
    OPERATION_RATE,
    SHARE_OF_COPY,
    SHARE_OF_FLOOR,
    SPEED_UP,
    SPEED_UP_OVER_TORCH,
)
RATES = (TEXT_RATE, BYTE_RATE, TOKEN_RATE)  # what results are best told apart by


def measures_of(results: Sequence[Result]) -> list[Measure]:
    """Return the measures that any of the results has, in the order of columns."""
    return [m for m in MEASURES if any(result.get(m.key) is not None for result in results)]


def common_rate(results: Sequence[Result]) -> Measure | None:
    """Return the rate that all results with times have; None if there is no such rate.

    Where not memory but arithmetic is the limit of one of them, that is their rate.
    """
    timed = [result for result in results if "seconds" in result]
    bound = any(map(_is_bound_by_arithmetic, timed))
    for rate in (OPERATION_RATE, *RATES) if bound else RATES:
        if timed and all(result.get(rate.key) is not None for result in timed):
            return rate
    return None


def _is_bound_by_arithmetic(result: Result) -> bool:
    """Tell whether a kernel is nearer to what arithmetic allows than to what memory does."""
    of_copy, of_limit = result.get(SHARE_OF_COPY.key), result.get(SHARE_OF_FLOOR.key)
    # Where memory is the limit the two differ by rounding.
    return of_copy is not None and of_limit is not None and of_limit > 1.01 * of_copy
