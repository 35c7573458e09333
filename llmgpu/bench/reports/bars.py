"""Bar charts of the report: a name, a bar and a value a row.

A bar is an SVG as wide as there is room for, whose rectangle has a part of that in per cent, so
that text has one size on all screens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmgpu.bench.record import Record, Result, ResultTable, is_peer, job_of
from llmgpu.bench.reports.measures import SHARE_OF_FLOOR, Measure, common_rate
from llmgpu.bench.reports.units import seconds_text
from llmgpu.charts import escape_text

MOST_KERNELS = 12  # in a chart; the others are added up
_LEAST_PERCENT = 0.3  # of a bar that is to be seen

_KEYS = (
    '<span class="keys"><span class="key own"></span>llmgpu '
    '<span class="key peer"></span>other programs</span>'
)


@dataclass(frozen=True)
class Bar:
    """A row: what it is called, with a second line; a number or the reason why there is none.

    kind: class of the bar, which decides its colour. value: the number for people.
    """

    name: str
    kind: str
    value: str
    number: float | None = None
    variant: str = ""


def draw_bars(bars: Sequence[Bar], caption: str, largest: float | None = None) -> list[str]:
    """Return a chart as lines of HTML; largest: of the scale, by default the largest number."""
    if largest is None:
        largest = max((bar.number or 0.0 for bar in bars), default=0.0)
    keys = _KEYS if any(bar.kind == "peer" for bar in bars) else ""
    said = f"<figcaption><span>{escape_text(caption)}</span>{keys}</figcaption>"
    lines = ["<figure>", said, '<div class="bars">']
    for bar in bars:
        lines += _row(bar, largest or 1.0)
    return [*lines, "</div>", "</figure>"]


def result_bars(table: ResultTable, record: Record) -> list[str]:
    """Return the chart of a job: who is how fast at it, by a rate or else by time."""
    results = table.results
    if not any("seconds" in result for result in results):
        return []
    rate = common_rate(results)
    what = f"{rate.meaning}: more is better" if rate else "median time: less is better"
    return draw_bars([_bar(result, table.way(result), rate, record) for result in results], what)


def _bar(result: Result, way: str, rate: Measure | None, record: Record) -> Bar:
    """Return the row of a result, by a rate or, without one, by its median."""
    number: float | None = None
    value = str(result.get("note") or result.get("answer") or "not measured")
    if "seconds" in result:
        number = result[rate.key] if rate else result["seconds"]["median"]
        value = rate.full_text(result) if rate else seconds_text(result["seconds"]["median"])
    kind = "peer" if is_peer(result, record) else "own"
    return Bar(str(result["engine"]), kind, value, number, way)


def share_bars(table: ResultTable) -> list[str]:
    """Return the chart of how near an engine's kernels are to what it can do."""
    shares = [(result, result.get(SHARE_OF_FLOOR.key)) for result in table.results]
    bars = [
        Bar(
            str(result.get("variant") or "kernel"),
            "own",
            SHARE_OF_FLOOR.text(result),
            share,
            job_of(result),
        )
        for result, share in shares
        if share is not None
    ]
    if not bars:
        return []
    largest = max([1.0, *(bar.number or 0.0 for bar in bars)])
    caption = "part of what bandwidth or arithmetic allows: more is better"
    return draw_bars(bars, caption, largest)


def kernel_bars(seconds: Mapping[str, float], caption: str) -> list[str]:
    """Return the chart of the time in each kernel, the longest first; by their names."""
    longest = sorted(seconds.items(), key=lambda item: -item[1])
    total = sum(seconds.values()) or 1.0
    shown, others = longest[:MOST_KERNELS], longest[MOST_KERNELS:]
    if others:
        shown.append((f"{len(others)} others", sum(spent for _, spent in others)))
    bars = [
        Bar(name, "time", f"{seconds_text(spent)}, {100 * spent / total:.0f} %", spent)
        for name, spent in shown
    ]
    return draw_bars(bars, caption)


def _row(bar: Bar, largest: float) -> list[str]:
    variant = f'<span class="variant">{escape_text(bar.variant)}</span>' if bar.variant else ""
    name = f'<div class="name">{escape_text(bar.name)}{variant}</div>'
    if bar.number is None:
        return [name, f'<div class="no-bar">{escape_text(bar.value)}</div>']
    percent = min(100.0, max(_LEAST_PERCENT, 100 * bar.number / largest))
    return [
        name,
        '<svg width="100%" height="16" aria-hidden="true">'
        '<rect class="track" width="100%" height="16" rx="3"/>'
        f'<rect class="{bar.kind}" width="{percent:.2f}%" height="16" rx="3"/></svg>',
        f'<div class="value">{escape_text(bar.value)}</div>',
    ]
