"""A record as one page of HTML that needs nothing else: no script, no other file, no network.

It is XML as well. All text of the record is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources
from string import Template

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

_PARTS: dict[str, tuple[str, ...]] = {
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
    lines = [*_head(record)]
    if len(parts) > 1:
        links = [f'<a href="#{escape_text(what)}">{_about(what)[0]}</a>' for what in parts]
        lines.append(f"<nav>{''.join(links)}</nav>")
    for what in parts:
        lines += _part(what, [table for table in tables if table.what == what], record)
    page, style = (resources.files(__package__) / name for name in ("page.html", "style.css"))
    title = escape_text(f"llmgpu bench: {record.machine.cpu}")
    return Template(page.read_text(encoding="utf-8")).substitute(
        title=title, style=style.read_text(encoding="utf-8"), body="\n".join(lines)
    )


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


def _about(what: str) -> list[str]:
    """Return the title of a part, and the introduction to one that is known."""
    return [escape_text(text) for text in _PARTS.get(what, (what,))]


def _part(what: str, tables: Sequence[ResultTable], record: Record) -> list[str]:
    title, *introduction = _about(what)
    lines = [f'<h2 id="{escape_text(what)}">{title}</h2>']
    lines += [f"<p>{text}</p>" for text in introduction]
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
    dots = {k: dot for k, result in enumerate(table.results) if (dot := dot_of(result))}
    if limits is None or not dots:
        return share_bars(table)
    results = [table.results[k] for k in dots]
    columns = [
        Column("number", "number", [str(k) for k in range(1, len(dots) + 1)]),
        Column("kernel", "name", [*map(table.row_name, results)]),
        Column("FLOP per byte", "number", [three_digits(across) for across, _ in dots.values()]),
        Column("reached", "number", [*map(OPERATION_RATE.text, results)]),
    ]
    roofline = draw_roofline([*dots.values()], limits, f"Roofline of {table.title}")
    return [*roofline, *_folded("What the numbers are", _draw_table(columns)), *share_bars(table)]


def _details(result: Result) -> list[str]:
    """Return the time in kernels as a chart, and start-up and phases."""
    kernels, chart = result.kernels, []
    if kernels is not None and len(kernels.seconds) > 1:
        of = f"the first {kernels.merges:,} merges" if kernels.merges else "one run"
        caption = f"time per kernel: {seconds_text(kernels.total)} for {of}"
        chart = kernel_bars(kernels.seconds, caption)
    times = [f"<p>{escape_text(f'{name}: {text}')}</p>" for name, text in time_lines(result)]
    is_open = bool(chart) and result.what != KERNELS
    return _folded(f"Where the time of {result.name} goes", [*chart, *times], is_open=is_open)


def _folded(summary: str, lines: Sequence[str], *, is_open: bool = False) -> list[str]:
    """Return lines that unfold at a click on a summary; none for none."""
    begin = '<details open="open">' if is_open else "<details>"
    said = f"<summary>{escape_text(summary)}</summary>"
    return [begin, said, *lines, "</details>"] if lines else []


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
