"""Rooflines: what memory and arithmetic allow, and what kernels reach.

Across: operations per byte that has to be moved. Up: operations per second. No kernel is above the
roof, which is the lower of bandwidth times operations per byte and the arithmetic's rate. Places
across are in per cent, so that text has the same size on all screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from llmgpu.charts.axes import Axis, value_axis
from llmgpu.charts.page import escape_text

HEIGHT = 380
_TOP, _BOTTOM = 14, 330
_LEFT = 58  # pixels for numbers
_MARGIN = 4.0  # of the numbers on an axis, beyond the roof's edge: a ratio
_GIGA = 1e9
Dot = tuple[float, float]  # a kernel: operations for each byte, and a second


@dataclass(frozen=True)
class Roof:
    """The limits: bandwidth in bytes per second, rates in operations per second, one at least.

    The highest rate is that of the picture's edge; each has a level line.
    """

    bandwidth: float
    rates: Sequence[float]

    @property
    def rate(self) -> float:
        """The highest rate."""
        return max(self.rates)


def draw_roofline(dots: Sequence[Dot], roof: Roof, title: str, caption: str) -> list[str]:
    """Return the chart as lines of HTML; dots are numbered from 1."""
    edge = roof.rate / roof.bandwidth  # operations per byte from which on arithmetic is the limit
    corners = [(edge / _MARGIN, roof.rate / _MARGIN), (edge * _MARGIN, roof.rate)]
    across, up = np.array([*dots, *corners]).T
    x, y = value_axis(across, 0, 100), value_axis(up / _GIGA, _BOTTOM, _TOP)
    return [
        f"<figure>\n<figcaption>{escape_text(caption)}</figcaption>",
        '<div class="plot">',
        *_vertical_axis(y),
        f'<svg class="across" width="100%" height="{HEIGHT}" role="img">',
        f"<title>{escape_text(title)}</title>",
        *_grid(x, y),
        *_roof(x, y, roof),
        *_dots(dots, x, y),
        "</svg>\n</div>\n</figure>",
    ]


def _vertical_axis(y: Axis) -> list[str]:
    middle = (_TOP + _BOTTOM) / 2
    lines = [
        f'<svg class="down" width="{_LEFT}" height="{HEIGHT}">',
        f'<text class="x" transform="translate(12 {middle:.1f}) rotate(-90)">GFLOP/s</text>',
    ]
    for at, label in y.marks():
        lines.append(f'<text class="y" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>')
    return [*lines, "</svg>"]


def _grid(x: Axis, y: Axis) -> list[str]:
    lines = [
        f'<line class="grid" x1="0" y1="{at:.1f}" x2="100%" y2="{at:.1f}"/>' for at, _ in y.marks()
    ]
    for at, label in x.marks():
        lines.append(
            f'<line class="axis" x1="{at:.2f}%" y1="{_BOTTOM}" x2="{at:.2f}%" y2="{_BOTTOM + 5}"/>'
        )
        lines.append(f'<text class="x" x="{at:.2f}%" y="{_BOTTOM + 20}">{label}</text>')
    return [
        *lines,
        f'<line class="axis" x1="0" y1="{_BOTTOM}" x2="100%" y2="{_BOTTOM}"/>',
        f'<text class="x" x="50%" y="{_BOTTOM + 42}">FLOP per byte</text>',
    ]


def _roof(x: Axis, y: Axis, roof: Roof) -> list[str]:
    """Return the slope, from where it enters the picture, and the level parts."""
    lines, bandwidth = [], roof.bandwidth
    for rate in roof.rates:
        corners = [rate / bandwidth, x.high]
        if rate == roof.rate:
            corners = [max(x.low, y.low * _GIGA / bandwidth), *corners]
        places = [(x.at(at), y.at(min(bandwidth * at, rate) / _GIGA)) for at in corners]
        lines += [
            f'<line class="roof" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'
            for (x1, y1), (x2, y2) in pairwise(places)
        ]
    return lines


def _dots(dots: Sequence[Dot], x: Axis, y: Axis) -> list[str]:
    lines = []
    for number, (across, up) in enumerate(dots, 1):
        across, up = x.at(across), y.at(up / _GIGA)
        lines.append(f'<circle cx="{across:.2f}%" cy="{up:.1f}" r="8.5"/>')
        lines.append(f'<text class="number" x="{across:.2f}%" y="{up + 3.5:.1f}">{number}</text>')
    return lines
