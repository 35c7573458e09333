"""A record as one page of HTML: tables, bars, and the rooflines of engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from llmgpu.bench import BPE_TRAIN, EMBEDDING, GENERATE, IDEAS, KERNELS, STARTUP, TOKENIZE, TRAIN
from llmgpu.bench.report import (
    OPERATION_RATE,
    SHARE_OF_FLOOR,
    columns_of,
    common_rate,
    facts_of,
    headlines,
    runs_line,
    time_lines,
)
from llmgpu.bench.results import Record, Result, ResultTable, quantity, seconds_text, three_digits
from llmgpu.charts import (
    Bar,
    Column,
    draw_bars,
    draw_facts,
    draw_page,
    draw_table,
    escape_text,
    folded,
)
from llmgpu.charts.axes import Dot, draw_roofline

MOST_KERNELS = 12  # bars of kernels in a chart; all other kernels share one more bar
_SOFTWARE = "software adapter"  # kind of an adapter
_PARTS: dict[str, tuple[str, ...]] = {
    BPE_TRAIN: (
        "Training tokenizers",
        "From a text file in the page cache to a vocabulary file. The merges are compared with "
        "those of the CPU first.",
    ),
    TOKENIZE: (
        "Tokenizing",
        "From a text file in the page cache to a file of ids. The ids are compared with those "
        "of the CPU first.",
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
    GENERATE: (
        "Generating",
        "The likeliest ids after prompts, one sequence alone and many together. The ids of a tiny "
        "model are compared first. The limit is reading all weights once for each step.",
    ),
    STARTUP: ("Starting", "Whole commands with little to do, each a process of its own."),
    IDEAS: (
        "What each idea is worth",
        "Ideas of the kernels, each switched off alone. The first way of an idea is the product's. "
        "The answers of all ways are compared with the CPU's first.",
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
    return draw_page("llmgpu bench", f"llmgpu bench: {record.machine.cpu}", lines)


def _head(record: Record) -> Iterator[str]:
    """Yield the lines at the top of the page: warnings, headlines and facts."""
    if not record.complete:
        yield '<p class="warning">Interrupted: these are the results so far.</p>'
    if not record.is_correct:
        yield '<p class="warning">An engine gave a wrong answer; see the results.</p>'
    for what, text in headlines(record):
        yield f'<p class="headline"><b>{_about(what)[0]}</b>: {escape_text(text)}.</p>'
    facts = [("measured", record.measured)] if record.measured is not None else []
    facts += facts_of(record)
    for name, limits in record.limits.items():
        bandwidth = quantity(limits.bytes_per_second, "B/s")
        rate = quantity(limits.operations_per_second, "FLOP/s")
        text = f"{name}: {bandwidth} copying, {rate} in float32"
        if limits.matrix_operations_per_second is not None:
            text += f", {quantity(limits.matrix_operations_per_second, 'FLOP/s')} on matrix units"
        facts.append(("limits", f"{text}, measured"))
    facts += [("not compared with", f"{k}: {why}") for k, why in record.missing_peers.items()]
    yield from draw_facts(facts)


def _about(what: str) -> list[str]:
    """Return the title of a part of the benchmark, then its introduction if there is one."""
    return [escape_text(text) for text in _PARTS.get(what, (what,))]


def _part(what: str, tables: Sequence[ResultTable], record: Record) -> list[str]:
    title, *introduction = _about(what)
    lines = [f'<h2 id="{escape_text(what)}">{title}</h2>']
    lines += [f"<p>{text}</p>" for text in introduction]
    if what == KERNELS:
        lines += _next_to_peers(tables)
    software = {a.name for a in record.machine.adapters if a.kind == _SOFTWARE}
    for table in tables:
        lines.append(f"<h3>{escape_text(table.title)}</h3>")
        drawn = _table(table, record, software)
        is_folded = what == KERNELS and table.title in software
        lines += folded("Of a software adapter", drawn) if is_folded else drawn
    return lines


def _table(table: ResultTable, record: Record, software: Set[str]) -> list[str]:
    """Return charts, a table and details; software: the names of software adapters."""
    is_kernels = table.what == KERNELS
    lines = _engine_charts(table, record) if is_kernels else result_bars(table)
    lines += draw_table(columns_of(table), [result.correct is False for result in table.results])
    if runs := runs_line(table):
        lines.append(f'<p class="small">median of: {runs}</p>')
    if table.answers:
        lines.append(f'<p class="small">answers: {escape_text(table.answers)}</p>')
    for result in table.results:
        is_software = result.engine.removeprefix("recount on ") in software
        lines += _details(result, is_open=not (is_kernels or is_software))
    return lines


def _next_to_peers(tables: Sequence[ResultTable]) -> list[str]:
    """Return a chart for each kernel whose work was also measured in another program."""
    kernels: dict[str, dict[str, Result]] = {}
    for table in tables:
        for result in table.results:
            by_engine = kernels.setdefault(table.row_name(result), {})
            by_engine.setdefault(result.engine, replace(result, variant=""))
    lines: list[str] = []
    for title, by_engine in kernels.items():
        results = [result for result in by_engine.values() if result.seconds is not None]
        if any(result.peer for result in results):
            lines.append(f"<h4>{escape_text(title)}</h4>")
            lines += result_bars(ResultTable(KERNELS, title, results))
    return ["<h3>Next to other programs</h3>", *lines] if lines else []


def _engine_charts(table: ResultTable, record: Record) -> list[str]:
    """Return the roofline of an engine whose limits are known, and a chart of shares of limits."""
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
    bandwidth, rates = limits.bytes_per_second, [limits.operations_per_second]
    measured = (
        f"copies move {quantity(bandwidth, 'B/s')}, multiply-adds do {quantity(rates[0], 'FLOP/s')}"
    )
    if limits.matrix_operations_per_second is not None:
        rates.append(limits.matrix_operations_per_second)
        measured += f", matrix units {quantity(rates[1], 'FLOP/s')}"
    title = f"Roofline of {table.title}"
    roofline = draw_roofline([*dots.values()], bandwidth, rates, title, f"{title}; {measured}")
    return [*roofline, *folded("What the numbers are", draw_table(columns)), *share_bars(table)]


def _details(result: Result, *, is_open: bool) -> list[str]:
    """Return a folded section: a chart of the time in kernels, then start-up and phases.

    is_open: unfold the section if it has a chart.
    """
    kernels, chart = result.kernels, []
    if kernels is not None and len(kernels.seconds) > 1:
        longest = sorted(kernels.seconds.items(), key=lambda item: -item[1])
        shown, others = longest[:MOST_KERNELS], longest[MOST_KERNELS:]
        if others:
            shown.append((f"{len(others)} others", sum(spent for _, spent in others)))
        total = sum(kernels.seconds.values()) or 1.0
        texts = [f"{seconds_text(spent)}, {100 * spent / total:.0f} %" for _, spent in shown]
        bars = [Bar(name, "time", text, s) for (name, s), text in zip(shown, texts, strict=True)]
        of = f"the first {kernels.merges:,} merges" if kernels.merges else "one run"
        chart = draw_bars(bars, f"time per kernel: {seconds_text(kernels.total)} for {of}")
    times = [f"<p>{escape_text(f'{name}: {text}')}</p>" for name, text in time_lines(result)]
    is_open = bool(chart) and is_open
    return folded(f"Where the time of {result.name} goes", [*chart, *times], is_open=is_open)


def result_bars(table: ResultTable) -> list[str]:
    """Return the chart of a job. It shows a rate that all results have, or else median times."""
    rate = common_rate(table.results)
    bars = []
    for result in table.results:
        number, value = None, result.note or result.answer or "not measured"
        if result.seconds is not None:
            number = rate.of(result) if rate else result.median
            value = rate.full_text(result) if rate else seconds_text(result.median)
        kind = "peer" if result.peer else "own"
        bars.append(Bar(result.engine, kind, value, number, result.kind_and_way[1]))
    if all(bar.number is None for bar in bars):
        return []
    if rate is None:
        return draw_bars(bars, "median time: less is better")
    return draw_bars(bars, f"{rate.title}{' per second' * bool(rate.unit)}: more is better")


def share_bars(table: ResultTable) -> list[str]:
    """Return the chart of kernels' speeds as shares of the engine's limits."""
    bars = [
        Bar(r.variant or "kernel", "own", SHARE_OF_FLOOR.text(r), r.share_of_floor, r.sizes)
        for r in table.results
        if r.share_of_floor is not None
    ]
    caption = "part of what bandwidth or arithmetic allows: more is better"
    return draw_bars(bars, caption, 1.0) if bars else []


def dot_of(result: Result) -> Dot | None:
    """Return the position of a result on a roofline; None without times, bytes or operations."""
    numbers = (result.bytes or 0, result.operations or 0, result.operations_per_second or 0)
    nbytes, operations, rate = numbers
    return (operations / nbytes, rate) if result.seconds and min(numbers) > 0 else None
