"""A record as one page of HTML that needs nothing else: no script, no other file, no network.

It is XML as well. All text of the record is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources

from llmgpu.bench.report.charts import dot_of, draw_roofline, kernel_bars, result_bars, share_bars
from llmgpu.bench.report.tables import (
    NOTHING,
    OPERATION_RATE,
    Column,
    columns_of,
    facts_of,
    time_lines,
)
from llmgpu.bench.results import (
    BPE_TRAIN,
    EMBEDDING,
    KERNELS,
    TOKENIZE,
    TRAIN,
    Record,
    Result,
    ResultTable,
)
from llmgpu.bench.units import quantity, seconds_text, three_digits
from llmgpu.charts import escape_text

_PARTS = {
    BPE_TRAIN: (
        "Training tokenizers",
        "From a text file in the page cache to a vocabulary file. The merges are compared with "
        "NumPy's first.",
    ),
    TOKENIZE: (
        "Tokenizing",
        "From a text file in the page cache to a file of ids. The ids are compared with NumPy's "
        "first.",
    ),
    EMBEDDING: (
        "Embedding",
        "Looking up rows of a table by tokens, and adding gradients to them. Rows and gradients "
        "are compared with NumPy's first.",
    ),
    KERNELS: (
        "Kernels of a language model",
        "One operation at a time. The outputs are compared first. The limit is what the measured "
        "bandwidth or the measured arithmetic allows; small sizes, which fit into caches, may be "
        "faster than memory.",
    ),
    TRAIN: (
        "Training a language model",
        "Whole steps: forward, backward, optimizer. The losses are compared first.",
    ),
}


def draw_report(record: Record) -> str:
    """Return the page of a record."""
    tables = record.tables()
    parts = list(dict.fromkeys(table.what for table in tables))
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en" xmlns="http://www.w3.org/1999/xhtml">',
        "<head>",
        '<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape_text(f'llmgpu bench: {record.machine.cpu}')}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        "<h1>llmgpu bench</h1>",
        *_head(record),
        *_contents(parts),
    ]
    for what in parts:
        lines += _part(what, [table for table in tables if table.what == what], record)
    return "\n".join([*lines, "</body>", "</html>", ""])


def _head(record: Record) -> Iterator[str]:
    """Yield what was measured on, and what could not be."""
    if not record.complete:
        yield '<p class="warning">Interrupted: these are the results up to then.</p>'
    if not record.is_correct:
        yield '<p class="warning">An engine gave a wrong answer; see the results.</p>'
    facts = [("measured", record.measured)] if record.measured is not None else []
    facts += facts_of(record)
    for name, limits in record.limits.items():
        bandwidth = quantity(limits.bytes_per_second, "B/s")
        rate = quantity(limits.operations_per_second, "FLOP/s")
        facts.append(("limits", f"{name}: {bandwidth} copying, {rate} in float32, both measured"))
    facts += [("not compared with", f"{k}: {why}") for k, why in record.missing_peers.items()]
    yield "<dl>"
    for name, text in facts:
        yield f"<dt>{escape_text(name)}</dt><dd>{escape_text(text)}</dd>"
    yield "</dl>"


def _contents(parts: Sequence[str]) -> list[str]:
    links = "".join(f'<a href="#{escape_text(what)}">{_title_of(what)}</a>' for what in parts)
    return [f"<nav>{links}</nav>"] if len(parts) > 1 else []


def _title_of(what: str) -> str:
    return escape_text(_PARTS[what][0] if what in _PARTS else what)


def _part(what: str, tables: Sequence[ResultTable], record: Record) -> list[str]:
    lines = [f'<h2 id="{escape_text(what)}">{_title_of(what)}</h2>']
    if what in _PARTS:
        lines.append(f"<p>{escape_text(_PARTS[what][1])}</p>")
    if what == KERNELS:
        lines += _next_to_peers(tables, record)
    for table in tables:
        lines.append(f"<h3>{escape_text(table.title)}</h3>")
        lines += _engine_charts(table, record) if what == KERNELS else result_bars(table, record)
        wrong = [result.correct is False for result in table.results]
        lines += _draw_table(columns_of(table), wrong)
        if table.answers:
            lines.append(f'<p class="small">answers: {escape_text(table.answers)}</p>')
        for result in table.results:
            lines += _details(result)
    return lines


def _next_to_peers(tables: Sequence[ResultTable], record: Record) -> list[str]:
    """Return a chart for each kernel that another program was measured at."""
    kernels: dict[str, dict[str, Result]] = {}
    for table in tables:
        for result in table.results:
            by_engine = kernels.setdefault(table.row_name(result), {})
            by_engine.setdefault(result.engine, replace(result, variant=""))
    lines: list[str] = []
    for title, by_engine in kernels.items():
        results = [result for result in by_engine.values() if result.seconds is not None]
        if any(map(record.is_peer, results)):
            lines.append(f"<h4>{escape_text(title)}</h4>")
            lines += result_bars(ResultTable(KERNELS, title, results), record)
    return ["<h3>Next to other programs</h3>", *lines] if lines else []


def _engine_charts(table: ResultTable, record: Record) -> list[str]:
    """Return the roofline of an engine whose limits are known, and how near kernels are to it."""
    limits = record.limits.get(table.title)
    placed = [(result, dot) for result in table.results if (dot := dot_of(result)) is not None]
    if limits is None or not placed:
        return share_bars(table)
    results, dots = zip(*placed, strict=True)
    columns = [
        Column("number", "number", [str(k) for k in range(1, len(placed) + 1)]),
        Column("kernel", "name", [table.row_name(result) for result in results]),
        Column("FLOP per byte", "number", [three_digits(dot.across) for dot in dots]),
        Column("reached", "number", [OPERATION_RATE.text(result) for result in results]),
    ]
    return [
        *draw_roofline(dots, limits, f"Roofline of {table.title}"),
        "<details>",
        "<summary>What the numbers are</summary>",
        *_draw_table(columns),
        "</details>",
        *share_bars(table),
    ]


def _details(result: Result) -> list[str]:
    """Return the time in kernels as a chart, and start-up and phases."""
    lines: list[str] = []
    kernels = result.kernels
    has_chart = kernels is not None and len(kernels.seconds) > 1
    if kernels is not None and has_chart:
        of = f"the first {kernels.merges:,} merges" if kernels.merges else "one run"
        caption = f"time per kernel: {seconds_text(kernels.total)} for {of}"
        lines += kernel_bars(kernels.seconds, caption)
    lines += [f"<p>{escape_text(f'{name}: {text}')}</p>" for name, text in time_lines(result)]
    if not lines:
        return []
    is_open = ' open="open"' if has_chart and result.what != KERNELS else ""
    return [
        f"<details{is_open}>",
        f"<summary>{escape_text(f'Where the time of {result.name} goes')}</summary>",
        *lines,
        "</details>",
    ]


def _draw_table(columns: Sequence[Column], wrong: Sequence[bool] | None = None) -> list[str]:
    """Return a table as lines of HTML; wrong: which rows are to stand out.

    On a phone a row becomes a block of lines, each with its title.
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
