"""The results of ``llmgpu bench`` as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.bench.report.compare import Change, Comparison
from llmgpu.bench.report.tables import NARROW, columns_of, facts_of, time_lines
from llmgpu.bench.results import KERNELS, Record, Result, ResultTable
from llmgpu.bench.units import seconds_text

NARROWEST = 100  # columns; less would break the tables' cells
_NAME_WIDTH = 20


def print_results(record: Record, console: Console) -> None:
    """Print what was measured on, a table for each job, and where the time goes."""
    console.width = max(console.width, NARROWEST)
    for name, text in facts_of(record):
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for table in record.tables():
        console.print()
        console.print(_table(table))
        for line in _lines_below(table):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if not record.complete:
        console.print("\ninterrupted: these are the results up to then")


def print_comparison(comparison: Comparison, path: str, console: Console) -> None:
    """Print what got slower or faster than in the record at `path`."""
    console.width = max(console.width, NARROWEST)
    console.print()
    for line in comparison.notes:
        console.print(f"since {path}: {line}", markup=False, soft_wrap=True)
    if comparison.changes:
        table = Table(title=f"compared with {path}", title_justify="left")
        for name in ("part", "job", "engine"):
            table.add_column(name)
        for name in ("then", "now", "change"):
            table.add_column(name, justify="right", no_wrap=True)
        for change in comparison.changes:
            table.add_row(*map(escape, _change_row(change, comparison)))
        console.print(table)
    else:
        console.print(f"nothing is comparable with {path}", markup=False, soft_wrap=True)
    for line in comparison.not_compared:
        console.print(f"not compared: {line}", markup=False, soft_wrap=True)


def _table(results: ResultTable) -> Table:
    table = Table(title=escape(f"{results.what}: {results.title}"), title_justify="left")
    columns = columns_of(results, narrow=True)
    for column in columns:
        is_number = column.kind == "number"
        table.add_column(
            column.title,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            min_width=_NAME_WIDTH if column.kind == "name" else None,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(escape, row))
    return table


def _change_row(change: Change, comparison: Comparison) -> list[str]:
    words = f"{100 * change.relative:+.1f} %"
    if comparison.is_slower(change):
        words += " SLOWER"
    name = f"{change.name} (peer)" if change.is_peer else change.name
    times = [seconds_text(change.old), seconds_text(change.new)]
    return [change.what, change.job, name, *times, words]


def _lines_below(table: ResultTable) -> Iterator[str]:
    """Yield lines on what answers were, on notes, and on where the time goes."""
    if table.what in NARROW and table.answers:
        yield f"answers: {table.answers}"
    if table.what == KERNELS:
        return
    for result in table.results:
        for name, text in (*time_lines(result), *_kernel_times(result)):
            yield f"{result.name}, {name}: {text}"


def _kernel_times(result: Result) -> Iterator[tuple[str, str]]:
    kernels = result.kernels
    if kernels is None or len(kernels.seconds) < 2:
        return
    times = ", ".join(f"{name} {seconds_text(s)}" for name, s in kernels.seconds.items())
    total = seconds_text(kernels.total)
    if kernels.merges is not None:
        total += f" for the first {kernels.merges} merges"
    elif kernels.mb_per_second:
        total += f" ({kernels.mb_per_second:.0f} MB/s)"
    yield "kernels", f"{total}: {times}"
