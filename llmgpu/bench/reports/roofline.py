"""The roofline of an engine: what its memory and its arithmetic allow, and what kernels reach.

Across: operations for each byte that has to be moved. Up: operations a second. No kernel is above
the roof, which is the lower of bandwidth times operations a byte and the arithmetic's rate, both
measured on the engine. Places across are in per cent of the width that there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from llmgpu.bench.record import Result
from llmgpu.bench.reports.units import quantity
from llmgpu.charts import Axis, escape_text, tick_labels, value_axis

HEIGHT = 380
_TOP, _BOTTOM = 14, 330
_LEFT = 58  # pixels for numbers
_MARGIN = 4.0  # of the numbers on an axis, beyond the roof's edge: a ratio
_GIGA = 1e9

Limits = Mapping[str, float]  # bytes_per_second and operations_per_second


def has_place(result: Result) -> bool:
    """Whether a result has a place on the chart."""
    keys = ("bytes", "operations", "operations_per_second")
    return "seconds" in result and all((result.get(key) or 0) > 0 for key in keys)


def intensity(result: Result) -> float:
    """Return operations for each byte."""
    return float(result["operations"] / result["bytes"])


def draw_roofline(results: Sequence[Result], limits: Limits, caption: str) -> list[str]:
    """Return the chart as lines of HTML; dots have the numbers of the results, from 1."""
    bandwidth, rate = limits["bytes_per_second"], limits["operations_per_second"]
    edge = rate / bandwidth  # operations a byte from which on arithmetic is the limit
    across = [intensity(result) for result in results] + [edge / _MARGIN, edge * _MARGIN]
    up = [result["operations_per_second"] for result in results] + [rate / _MARGIN, rate]
    x = value_axis(np.array(across), 0, 100)
    y = value_axis(np.array(up) / _GIGA, _BOTTOM, _TOP)
    said = f"{caption}; copies move {quantity(bandwidth, 'B/s')}, multiply-adds do "
    return [
        "<figure>",
        f"<figcaption>{escape_text(said + quantity(rate, 'FLOP/s'))}</figcaption>",
        '<div class="plot">',
        *_vertical_axis(y),
        f'<svg class="across" width="100%" height="{HEIGHT}" role="img">',
        f"<title>{escape_text(caption)}</title>",
        *_grid(x, y),
        *_roof(x, y, bandwidth, rate),
        *_dots(results, x, y),
        "</svg>",
        "</div>",
        "</figure>",
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
    name = f'<text class="x" x="50%" y="{_BOTTOM + 42}">FLOP per byte</text>'
    return [
        *lines,
        f'<line class="axis" x1="0" y1="{_BOTTOM}" x2="100%" y2="{_BOTTOM}"/>',
        name,
    ]


def _roof(x: Axis, y: Axis, bandwidth: float, rate: float) -> list[str]:
    """Return the slope, from where it enters the picture, and the level part."""
    begin = max(x.low, y.low * _GIGA / bandwidth)
    corners = [begin, rate / bandwidth, x.high]
    heights = [min(bandwidth * corner, rate) / _GIGA for corner in corners]
    places = [
        (_at(x, corner), _at(y, height)) for corner, height in zip(corners, heights, strict=True)
    ]
    return [
        f'<line class="roof" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'
        for (x1, y1), (x2, y2) in pairwise(places)
    ]


def _dots(results: Sequence[Result], x: Axis, y: Axis) -> list[str]:
    lines = []
    for number, result in enumerate(results, 1):
        across = _at(x, intensity(result))
        up = _at(y, result["operations_per_second"] / _GIGA)
        lines.append(f'<circle cx="{across:.2f}%" cy="{up:.1f}" r="8.5"/>')
        lines.append(f'<text class="number" x="{across:.2f}%" y="{up + 3.5:.1f}">{number}</text>')
    return lines
