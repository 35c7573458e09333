"""Pages of HTML, their tables and bars; axes of charts, with ticks and labels; and rooflines.

Pages need no scripts, other files or network, and are valid XML, too. All text is escaped. A bar is
an SVG of the full width. The width of its rectangle is in per cent, so that text has the same size
on all screens.

A roofline shows the rates of kernels below the limits of memory and arithmetic. The horizontal axis
has operations per byte moved, the vertical axis operations per second. The roof, above all kernels,
is the lower of two limits: bandwidth times operations per byte, and the rate of the arithmetic.
Horizontal positions are in per cent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import pairwise
from string import Template

import numpy as np
from numpy.typing import NDArray

from llmgpu.input_files import printable

NOTHING = "-"  # text of a cell without a value
_LEAST_PERCENT = 0.3  # width of the shortest bar, so that it stays visible
_KEYS = (
    '<span class="keys"><span class="key own"></span>llmgpu '
    '<span class="key peer"></span>other programs</span>'
)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape_text(text: str) -> str:
    """Return a text escaped for elements and quoted attributes of XML and HTML.

    Characters that control a terminal or a browser, such as marks of direction, become escapes.
    """
    return escape(printable(_NOT_XML.sub("\ufffd", text), keep="\t\n\r"))


def draw_page(heading: str, title: str, lines: Sequence[str]) -> str:
    """Return a page of HTML.

    title: title of the window. lines: content of the page as HTML.
    """
    page, style = (resources.files(__package__) / name for name in ("page.html", "style.css"))
    return Template(page.read_text(encoding="utf-8")).substitute(
        heading=escape_text(heading),
        title=escape_text(title),
        style=style.read_text(encoding="utf-8"),
        body="\n".join(lines),
    )


def draw_facts(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return a list of names and values as lines of HTML."""
    entries = (f"<dt>{escape_text(name)}</dt><dd>{escape_text(text)}</dd>" for name, text in facts)
    return ["<dl>", *entries, "</dl>"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    title: head of the column. kind: "name", "number" or "". cells: texts of the cells.
    """

    title: str
    kind: str
    cells: Sequence[str]


def folded(summary: str, lines: Sequence[str], *, is_open: bool = False) -> list[str]:
    """Return lines that unfold when the summary is clicked; nothing if `lines` is empty."""
    begin = '<details open="open">' if is_open else "<details>"
    said = f"<summary>{escape_text(summary)}</summary>"
    return [begin, said, *lines, "</details>"] if lines else []


def draw_table(columns: Sequence[Column], wrong: Sequence[bool] | None = None) -> list[str]:
    """Return a table as lines of HTML; wrong: for each row, whether to highlight it.

    On a phone a row becomes a block of lines, each with the title of its column.
    """
    heads = "".join(f"<th{_class(c.kind)}>{escape_text(c.title)}</th>" for c in columns)
    lines = ["<table>", f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for k in range(len(columns[0].cells)):
        cells = "".join(_cell(column, column.cells[k]) for column in columns)
        lines.append(f"<tr{_class('wrong' if wrong and wrong[k] else '')}>{cells}</tr>")
    return [*lines, "</tbody>", "</table>"]


def _cell(column: Column, text: str) -> str:
    kinds = " ".join(filter(None, [column.kind, "none" if text == NOTHING else ""]))
    return f'<td{_class(kinds)} data-title="{escape_text(column.title)}">{escape_text(text)}</td>'


def _class(kinds: str) -> str:
    return f' class="{kinds}"' if kinds else ""


@dataclass(frozen=True)
class Bar:
    """A row of a chart: a name, a second line below it (variant), and a bar if there is a number.

    kind: CSS class of the bar, which sets its colour. value: the number as text, or the reason why
    there is no number.
    """

    name: str
    kind: str
    value: str
    number: float | None = None
    variant: str = ""


def draw_bars(bars: Sequence[Bar], caption: str, least: float = 0.0) -> list[str]:
    """Return a chart as lines of HTML. The scale ends at the largest number, or at `least` if all
    numbers are smaller.
    """
    largest = max([least, *(bar.number or 0.0 for bar in bars)]) or 1.0
    keys = _KEYS if any(bar.kind == "peer" for bar in bars) else ""
    said = f"<figcaption><span>{escape_text(caption)}</span>{keys}</figcaption>"
    lines = ["<figure>", said, '<div class="bars">']
    for bar in bars:
        lines += _row(bar, largest)
    return [*lines, "</div>", "</figure>"]


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


# Axes

LOG_RATIO = 10.0  # least ratio of the ends of a logarithmic axis

_LEAST = 1e-30  # smaller numbers are drawn as 0
# Relative range of numbers below which the labels of all ticks would be equal.
_LEAST_RANGE = 1e-4
_TOLERANCE = 1e-9  # a number may lie this far outside the ticks; larger than any rounding error
_STEPS = (1, 2, 5, 10)  # distances of ticks, to be multiplied by a power of ten
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_MOST_FINE_POWERS = 3  # most powers of ten of an axis with ticks at 1, 2 and 5
_MOST_POWERS = 8  # most powers of ten of an axis with a tick at each power

# Sizes of a roofline, in pixels.
HEIGHT = 380
_TOP, _BOTTOM = 14, 330
_LEFT = 58  # width of the labels of the vertical axis
_MARGIN = 4.0  # least ratio by which the axes extend beyond the roof's edge
_GIGA = 1e9
Dot = tuple[float, float]  # operations per byte and operations per second of a kernel


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    low, high: the numbers at its ends. ticks: marked numbers, ascending. is_log: whether the axis
    is logarithmic. begin, end: positions of its ends, in units of the picture.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool
    begin: float
    end: float

    @np.errstate(under="ignore")  # differences far below a pixel may underflow
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
        # With one unit for all ticks, some labels of a logarithmic axis would be tiny fractions.
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
    if high - low <= _LEAST_RANGE * largest or largest < _LEAST:  # all labels would be equal
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
    """Return a number as text, in the largest unit not above `most`."""
    size, unit = next(((size, unit) for size, unit in _UNITS if most >= size), (1.0, ""))
    return f"{tick / size:,.6g}{unit}" if tick else "0"


def _nice_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = math.floor(math.log10(least))
    factor = next((step for step in _STEPS if step * 10.0**power >= least), _STEPS[-1])
    # The division gives exactly 0.2. A product with 0.1, a rounded number, would not.
    return factor * 10.0**power if power >= 0 else factor / 10.0**-power


def _log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return ticks around a range: 1, 2 and 5 times powers of ten.

    A wide range has ticks only at powers of ten.
    """
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


def draw_roofline(
    dots: Sequence[Dot], bandwidth: float, rates: Sequence[float], title: str, caption: str
) -> list[str]:
    """Return a roofline as lines of HTML.

    dots: kernels, numbered from 1. bandwidth: bytes per second. rates: one or more limits in
    operations per second, each drawn as a level line; the highest rate is the roof.
    """
    highest = max(rates)
    edge = highest / bandwidth  # operations per byte above which arithmetic is the limit
    corners = [(edge / _MARGIN, highest / _MARGIN), (edge * _MARGIN, highest)]
    across, up = np.array([*dots, *corners]).T
    x, y = value_axis(across, 0, 100), value_axis(up / _GIGA, _BOTTOM, _TOP)
    # The labels of the vertical axis, in a picture of fixed width.
    middle = (_TOP + _BOTTOM) / 2
    lines = [
        f"<figure>\n<figcaption>{escape_text(caption)}</figcaption>",
        '<div class="plot">',
        f'<svg class="down" width="{_LEFT}" height="{HEIGHT}">',
        f'<text class="x" transform="translate(12 {middle:.1f}) rotate(-90)">GFLOP/s</text>',
    ]
    lines += [
        f'<text class="y" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>'
        for at, label in y.marks()
    ]
    # The grid and the horizontal axis, in a picture of the remaining width.
    lines += [
        "</svg>",
        f'<svg class="across" width="100%" height="{HEIGHT}" role="img">',
        f"<title>{escape_text(title)}</title>",
    ]
    lines += (_line("grid", ("0", f"{at:.1f}"), ("100%", f"{at:.1f}")) for at, _ in y.marks())
    for at, label in x.marks():
        lines.append(_line("axis", (f"{at:.2f}%", _BOTTOM), (f"{at:.2f}%", _BOTTOM + 5)))
        lines.append(f'<text class="x" x="{at:.2f}%" y="{_BOTTOM + 20}">{label}</text>')
    lines.append(_line("axis", ("0", _BOTTOM), ("100%", _BOTTOM)))
    lines.append(f'<text class="x" x="50%" y="{_BOTTOM + 42}">FLOP per byte</text>')
    for rate in rates:
        # A level line for each rate. The highest one begins with the slope of the bandwidth.
        ends = [rate / bandwidth, x.high]
        if rate == highest:
            ends = [max(x.low, y.low * _GIGA / bandwidth), *ends]
        places = [
            (f"{x.at(at):.2f}%", f"{y.at(min(bandwidth * at, rate) / _GIGA):.1f}") for at in ends
        ]
        lines += (_line("roof", *both) for both in pairwise(places))
    # The kernels.
    for number, (across, up) in enumerate(dots, 1):
        across, up = x.at(across), y.at(up / _GIGA)
        lines.append(f'<circle cx="{across:.2f}%" cy="{up:.1f}" r="8.5"/>')
        lines.append(f'<text class="number" x="{across:.2f}%" y="{up + 3.5:.1f}">{number}</text>')
    return [*lines, "</svg>\n</div>\n</figure>"]


def _line(kind: str, begin: tuple[object, object], end: tuple[object, object]) -> str:
    (x1, y1), (x2, y2) = begin, end
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
