"""Pages of HTML that need no scripts, other files or network. The pages are valid XML, too.

All text is escaped. A bar is an SVG of the full width. The width of its rectangle is in per cent,
so that text has the same size on all screens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template

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
