"""Pages of HTML and their tables, with bars in cells; pictures with two axes; and rooflines.

Pages need no scripts, other files or network, and are valid XML, too. All text is escaped. A bar is
a rectangle below the number of a cell. Its width is in per cent of the cell.

A picture is an SVG of a fixed size. A roofline shows the rates of kernels below the limits of
memory and arithmetic. The horizontal axis has operations per byte moved, the vertical axis
operations per second. The roof, above all kernels, is the lower of two limits: bandwidth times
operations per byte, and the rate of the arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.input_files import printable

NOTHING = "-"  # text of a cell without a value
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape_text(text: str) -> str:
    """Return a text escaped for elements and quoted attributes of XML and HTML.

    Characters that control a terminal or a browser, such as marks of direction, become escapes.
    """
    return escape(printable(_NOT_XML.sub("\ufffd", text), keep="\t\n\r"))


def element(name: str, kind: str = "", text: str = "", inside: str = "", **more: object) -> str:
    """Return an element of HTML or SVG.

    kind: its classes. text: its text, not yet escaped. inside: elements after the text. more: its
    attributes, with "_" in place of "-"; a float gets one decimal.
    """
    begin = name
    for key, value in {"class": kind, **more}.items():
        shown = f"{value:.1f}" if isinstance(value, float) else str(value)
        begin += f' {key.replace("_", "-")}="{escape_text(shown)}"' if shown else ""
    return f"<{begin}>{escape_text(text)}{inside}</{name}>"


def draw_page(heading: str, title: str, lines: Sequence[str]) -> str:
    """Return a page of HTML.

    title: title of the window. lines: content of the page as HTML.
    """
    files = resources.files(__package__)
    page, style = ((files / name).read_text("utf-8") for name in ("page.html", "style.css"))
    texts = {"heading": escape_text(heading), "title": escape_text(title)}
    return Template(page).substitute(texts, style=style, body="\n".join(lines))


def draw_facts(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return a list of names and values as lines of HTML."""
    return ["<dl>", *(element("dt", "", k) + element("dd", "", text) for k, text in facts), "</dl>"]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Return lines of HTML that unfold when the summary is clicked."""
    return ["<details>", element("summary", text=summary), *lines, "</details>"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: head of the column. kind: "name", "number" or "". cells: texts of the cells. bars: for
    each cell the length of its bar, at most 1, or None; empty for a column without bars.
    """

    title: str
    kind: str
    cells: Sequence[str]
    bars: Sequence[float | None] = ()


def draw_table(columns: Sequence[Column], kinds: Sequence[str] = ()) -> list[str]:
    """Return a table as lines of HTML; kinds: for each row, its class.

    On a phone a row becomes a block of lines, each with the title of its column.
    """
    heads = "".join(element("th", column.kind, column.title) for column in columns)
    lines = ["<table>", f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for k in range(len(columns[0].cells)):
        cells = "".join(_cell(column, k) for column in columns)
        lines.append(element("tr", kinds[k] if kinds else "", inside=cells))
    return [*lines, "</tbody>", "</table>"]


def _cell(column: Column, k: int) -> str:
    kind, bar = column.kind, ""
    if column.cells[k] == NOTHING:
        kind += " none"
    if column.bars and (length := column.bars[k]) is not None:
        bar = element("rect", width=f"{100 * length:.2f}%", height="100%")
        bar = element("svg", inside=bar, aria_hidden="true")
    return element("td", kind, column.cells[k], bar, data_title=column.title)


def draw_bars(heads: tuple[str, str], rows: Sequence[tuple[str, str, float]]) -> list[str]:
    """Return a table of names and numbers as lines of HTML, with bars.

    heads: titles of both columns. rows: one or more names, with numbers as text and as floats.
    """
    names, cells, numbers = zip(*rows, strict=True)
    bars = [number / (max(numbers) or 1.0) for number in numbers]
    return draw_table([Column(heads[0], "name", names), Column(heads[1], "number", cells, bars)])


# Pictures with axes

WIDTH, HEIGHT = 860, 480  # size of a picture, in pixels
LEFT, RIGHT, TOP, BOTTOM = 72, 836, 92, 424  # edges of the area between the axes
LOG_RATIO = 10.0  # least ratio of the ends of a logarithmic axis

_LEAST = 1e-30  # smaller numbers are drawn as 0
# Relative range of numbers below which the labels of all ticks would be equal.
_LEAST_RANGE = 1e-4
_TOLERANCE = 1e-9  # a number may lie this far outside the ticks; larger than any rounding error
_FEW_POWERS = 3  # most powers of ten of a logarithmic axis with ticks at 1, 2 and 5
_TICKS = 6  # about so many steps between ticks
_STEPS = (1, 2, 5, 10)  # distances of ticks, to be multiplied by a power of ten
_MARGIN = 4.0  # least ratio by which the axes of a roofline extend beyond the roof's edge
_GIGA = 1e9
Dot = tuple[float, float]  # operations per byte and operations per second of a kernel


@dataclass(frozen=True)
class Axis:
    """An axis of a picture.

    low, high: the numbers at its ends. ticks: marked numbers, ascending. is_log: whether the axis
    is logarithmic. begin, end: positions of its ends, in units of the picture.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool
    begin: float
    end: float

    def place(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the positions of numbers in the picture, float64 of the same shape.

        A number beyond an end of the axis is placed there.
        """
        at, ends = np.clip(values, self.low, self.high), np.array([self.low, self.high])
        if self.is_log:
            at, ends = np.log10(at), np.log10(ends)
        found: NDArray[np.float64] = np.interp(at, ends, (self.begin, self.end))
        return found

    def marks(self) -> Iterator[tuple[float, str]]:
        """Yield the position and the readable form of each tick: 0.25, 2,500,000 or 1e+07."""
        labels = (f"{tick:,.7g}" for tick in self.ticks)
        return zip(self.place(self.ticks).tolist(), labels, strict=True)


def value_axis(values: NDArray[np.float64], begin: float, end: float) -> Axis:
    """Return an axis that starts and ends at ticks around `values` (n,), n >= 1."""
    low, high = float(values.min()), float(values.max())
    is_log = low > _LEAST and high >= LOG_RATIO * low
    if is_log:
        exponents = _ticks(math.log10(low), math.log10(high), 1.0)
        ticks = tuple(10.0**exponent for exponent in exponents)
        if exponents[-1] - exponents[0] <= _FEW_POWERS:
            # Also ticks at 2 and 5, so that the axis is not longer than necessary.
            finer = [factor * tick for tick in ticks for factor in _STEPS[:-1]]
            begun = sum(tick <= low * (1 + _TOLERANCE) for tick in finer) - 1
            ended = sum(tick < high * (1 - _TOLERANCE) for tick in finer) + 1
            ticks = tuple(finer[begun:ended])
    else:
        size = max(abs(low), abs(high))
        if high - low <= max(_LEAST_RANGE * size, _LEAST):  # all labels would be equal
            margin = 0.1 * size if size >= _LEAST else 1.0
            low, high = low - margin, high + margin
        ticks = _ticks(low, high)
    return Axis(ticks[0], ticks[-1], ticks, is_log, begin, end)


def step_axis(last: int, begin: float, end: float) -> Axis:
    """Return an axis for whole numbers from 0 to `last`."""
    high = max(1.0, float(last))
    ticks = tuple(tick for tick in _ticks(0.0, high, 1.0) if tick <= high)
    return Axis(0.0, high, ticks, False, begin, end)


def _ticks(low: float, high: float, least: float = 0.0) -> tuple[float, ...]:
    """Return ticks around a range; their distance is 1, 2 or 5 times a power of ten.

    least: smallest distance.
    """
    wanted = max(least, (high - low) / _TICKS)
    power = math.floor(math.log10(wanted))
    factor = next((step for step in _STEPS if step * 10.0**power >= wanted), _STEPS[-1])
    # The division gives exactly 0.2. A product with 0.1, a rounded number, would not.
    step = factor * 10.0**power if power >= 0 else factor / 10.0**-power
    first, last = math.floor(low / step + _TOLERANCE), math.ceil(high / step - _TOLERANCE)
    return tuple(step * number for number in range(first, last + 1))


def draw_picture(title: str, parts: Sequence[str], **more: str) -> str:
    """Return a picture with a title as an SVG; parts: its elements. more: further attributes."""
    inside = "\n".join(["", element("title", text=title), *parts, ""])
    more |= {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": str(WIDTH), "height": str(HEIGHT)}
    return element("svg", inside=inside, **more, role="img")


def draw_axes(x: Axis, y: Axis, across: str, up: str) -> list[str]:
    """Return both axes with their names, `across` and `up`, and the grid as elements of an SVG."""
    ends: dict[str, Any] = {"x1": LEFT, "x2": RIGHT}
    turned = f"translate(20 {(TOP + BOTTOM) / 2:.1f}) rotate(-90)"
    parts = [
        element("line", "axis", **ends, y1=BOTTOM, y2=BOTTOM),
        element("text", "x", across, x=(LEFT + RIGHT) / 2, y=BOTTOM + 44),
        element("text", "x", up, transform=turned),
    ]
    for at, label in x.marks():
        parts.append(element("line", "axis", x1=at, x2=at, y1=BOTTOM, y2=BOTTOM + 5))
        parts.append(element("text", "x", label, x=at, y=BOTTOM + 21))
    for at, label in y.marks():
        parts.append(element("line", "grid", **ends, y1=at, y2=at))
        parts.append(element("text", "y", label, x=LEFT - 9, y=at + 4.5))
    return parts


def draw_line(kind: str, across: NDArray[np.float64], down: NDArray[np.float64]) -> str:
    """Return a line through positions, float64 (n,), as an element of an SVG."""
    points = zip(across, down, strict=True)
    return element("polyline", kind, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def draw_roofline(
    dots: Mapping[int, Dot], bandwidth: float, rates: Sequence[float], title: str
) -> str:
    """Return a roofline.

    dots: kernels by their numbers. bandwidth: bytes per second. rates: one or more limits in
    operations per second, each drawn as a level line; the highest rate is the roof.
    """
    highest = max(rates)
    edge = highest / bandwidth  # operations per byte above which arithmetic is the limit
    corners = [(edge / _MARGIN, highest / _MARGIN), (edge * _MARGIN, highest)]
    across, up = np.array([*dots.values(), *corners]).T
    x, y = value_axis(across, LEFT, RIGHT), value_axis(up / _GIGA, BOTTOM, TOP)
    parts = draw_axes(x, y, "FLOP per byte", "GFLOP/s")
    for rate in rates:
        # A level line for each rate. The highest one begins with the slope of the bandwidth.
        ends = [rate / bandwidth, x.high]
        if rate == highest:
            ends = [max(x.low, y.low * _GIGA / bandwidth), *ends]
        heights = [min(bandwidth * end, rate) / _GIGA for end in ends]
        parts.append(draw_line("roof", x.place(ends), y.place(heights)))
    places = zip(dots, x.place(across), y.place(up / _GIGA), strict=False)  # without the corners
    for number, left, top in places:
        parts.append(element("circle", cx=left, cy=top, r=8.5))
        parts.append(element("text", "number", str(number), x=left, y=top + 3.5))
    return element("div", "plot", inside=draw_picture(title, parts))
