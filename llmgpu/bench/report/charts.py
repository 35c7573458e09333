"""Charts of the report: bars, and the roofline of an engine.

A bar is an SVG as wide as there is room for, whose rectangle has a part of that in per cent, so
that text has one size on all screens; places across a roofline are in per cent, too.

The roofline shows what an engine's memory and its arithmetic allow, and what kernels reach. Across:
operations for each byte that has to be moved. Up: operations a second. No kernel is above the roof,
which is the lower of bandwidth times operations a byte and the arithmetic's rate, both measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llmgpu.bench.report.tables import SHARE_OF_FLOOR, common_rate
from llmgpu.bench.results import Limits, Record, Result, ResultTable
from llmgpu.bench.units import quantity, seconds_text
from llmgpu.charts import Axis, escape_text, tick_labels, value_axis

MOST_KERNELS = 12  # in a chart; the others are added up
_LEAST_PERCENT = 0.3  # of a bar that is to be seen
_KEYS = (
    '<span class="keys"><span class="key own"></span>llmgpu '
    '<span class="key peer"></span>other programs</span>'
)
HEIGHT = 380
_TOP, _BOTTOM = 14, 330
_LEFT = 58  # pixels for numbers
_MARGIN = 4.0  # of the numbers on an axis, beyond the roof's edge: a ratio
_GIGA = 1e9
Dot = tuple[float, float]  # a kernel on a roofline: operations for each byte, and a second


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


def draw_bars(bars: Sequence[Bar], caption: str, least: float = 0.0) -> list[str]:
    """Return a chart as lines of HTML, whose scale ends at the largest number, or at `least`."""
    largest = max([least, *(bar.number or 0.0 for bar in bars)]) or 1.0
    keys = _KEYS if any(bar.kind == "peer" for bar in bars) else ""
    said = f"<figcaption><span>{escape_text(caption)}</span>{keys}</figcaption>"
    lines = ["<figure>", said, '<div class="bars">']
    for bar in bars:
        lines += _row(bar, largest)
    return [*lines, "</div>", "</figure>"]


def result_bars(table: ResultTable, record: Record) -> list[str]:
    """Return the chart of a job: how fast each is at it, by a rate or else by the median time."""
    rate = common_rate(table.results)
    bars = []
    for result in table.results:
        number, value = None, result.note or result.answer or "not measured"
        if result.seconds is not None:
            number = rate.of(result) if rate else result.median
            value = rate.full_text(result) if rate else seconds_text(result.median)
        kind = "peer" if record.is_peer(result) else "own"
        bars.append(Bar(result.engine, kind, value, number, result.kind_and_way[1]))
    if all(bar.number is None for bar in bars):
        return []
    if rate is None:
        return draw_bars(bars, "median time: less is better")
    return draw_bars(bars, f"{rate.title}{' a second' * bool(rate.unit)}: more is better")


def share_bars(table: ResultTable) -> list[str]:
    """Return the chart of how near an engine's kernels are to what it can do."""
    bars = [
        Bar(r.variant or "kernel", "own", SHARE_OF_FLOOR.text(r), r.share_of_floor, r.sizes)
        for r in table.results
        if r.share_of_floor is not None
    ]
    caption = "part of what bandwidth or arithmetic allows: more is better"
    return draw_bars(bars, caption, 1.0) if bars else []


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
    value = escape_text(bar.value)
    if bar.number is None:
        return [name, f'<div class="no-bar">{value}</div>']
    percent = min(100.0, max(_LEAST_PERCENT, 100 * bar.number / largest))
    return [
        name,
        '<svg width="100%" height="16" aria-hidden="true">'
        '<rect class="track" width="100%" height="16" rx="3"/>'
        f'<rect class="{bar.kind}" width="{percent:.2f}%" height="16" rx="3"/></svg>',
        f'<div class="value">{value}</div>',
    ]


def dot_of(result: Result) -> Dot | None:
    """Return where a result is on a roofline, None if it has no place there."""
    numbers = (result.bytes or 0, result.operations or 0, result.operations_per_second or 0)
    nbytes, operations, rate = numbers
    return (operations / nbytes, rate) if result.seconds and min(numbers) > 0 else None


def draw_roofline(dots: Sequence[Dot], limits: Limits, caption: str) -> list[str]:
    """Return the chart as lines of HTML; dots are numbered from 1."""
    bandwidth, rate = limits.bytes_per_second, limits.operations_per_second
    edge = rate / bandwidth  # operations a byte from which on arithmetic is the limit
    corners = [(edge / _MARGIN, rate / _MARGIN), (edge * _MARGIN, rate)]
    across, up = np.array([*dots, *corners]).T
    x, y = value_axis(across, 0, 100), value_axis(up / _GIGA, _BOTTOM, _TOP)
    said = f"{caption}; copies move {quantity(bandwidth, 'B/s')}, multiply-adds do "
    return [
        f"<figure>\n<figcaption>{escape_text(said + quantity(rate, 'FLOP/s'))}</figcaption>",
        '<div class="plot">',
        *_vertical_axis(y),
        f'<svg class="across" width="100%" height="{HEIGHT}" role="img">',
        f"<title>{escape_text(caption)}</title>",
        *_grid(x, y),
        *_roof(x, y, bandwidth, rate),
        *_dots(dots, x, y),
        "</svg>\n</div>\n</figure>",
    ]


def _at(axis: Axis, value: float) -> float:
    return float(axis.place(np.array([value]))[0])


def _vertical_axis(y: Axis) -> list[str]:
    middle = (_TOP + _BOTTOM) / 2
    lines = [
        f'<svg class="down" width="{_LEFT}" height="{HEIGHT}">',
        f'<text class="x" transform="translate(12 {middle:.1f}) rotate(-90)">GFLOP/s</text>',
    ]
    for at, label in zip(y.place(np.array(y.ticks)), tick_labels(y), strict=True):
        lines.append(f'<text class="y" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>')
    return [*lines, "</svg>"]


def _grid(x: Axis, y: Axis) -> list[str]:
    lines = [
        f'<line class="grid" x1="0" y1="{at:.1f}" x2="100%" y2="{at:.1f}"/>'
        for at in y.place(np.array(y.ticks))
    ]
    for at, label in zip(x.place(np.array(x.ticks)), tick_labels(x), strict=True):
        lines.append(
            f'<line class="axis" x1="{at:.2f}%" y1="{_BOTTOM}" x2="{at:.2f}%" y2="{_BOTTOM + 5}"/>'
        )
        lines.append(f'<text class="x" x="{at:.2f}%" y="{_BOTTOM + 20}">{label}</text>')
    return [
        *lines,
        f'<line class="axis" x1="0" y1="{_BOTTOM}" x2="100%" y2="{_BOTTOM}"/>',
        f'<text class="x" x="50%" y="{_BOTTOM + 42}">FLOP per byte</text>',
    ]


def _roof(x: Axis, y: Axis, bandwidth: float, rate: float) -> list[str]:
    """Return the slope, from where it enters the picture, and the level part."""
    corners = [max(x.low, y.low * _GIGA / bandwidth), rate / bandwidth, x.high]
    places = [(_at(x, corner), _at(y, min(bandwidth * corner, rate) / _GIGA)) for corner in corners]
    return [
        f'<line class="roof" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'
        for (x1, y1), (x2, y2) in pairwise(places)
    ]


def _dots(dots: Sequence[Dot], x: Axis, y: Axis) -> list[str]:
    lines = []
    for number, (across, up) in enumerate(dots, 1):
        across, up = _at(x, across), _at(y, up / _GIGA)
        lines.append(f'<circle cx="{across:.2f}%" cy="{up:.1f}" r="8.5"/>')
        lines.append(f'<text class="number" x="{across:.2f}%" y="{up + 3.5:.1f}">{number}</text>')
    return lines
