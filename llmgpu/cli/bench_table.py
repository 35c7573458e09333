"""The results of ``llmgpu bench`` as tables for people."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.bench.record import (
    KERNELS,
    Record,
    Result,
    ResultTable,
    answer_of,
    answers_of,
    name_of,
    tables_of,
    verdict_of,
)
from llmgpu.bench.reports.compare import Change, Comparison
from llmgpu.bench.reports.measures import (
    BYTE_RATE,
    OPERATION_RATE,
    SHARE_OF_COPY,
    SHARE_OF_FLOOR,
    SPEED_UP,
    SPEED_UP_OVER_TORCH,
    TOKEN_RATE,
    measures_of,
)
from llmgpu.bench.reports.units import seconds_text, spread_text

NARROWEST = 100  # columns; less would break the tables' cells
_NAME_WIDTH = 20
# Of parts with more numbers than fit: those that are shown.
_SHOWN = {
    "embedding": (BYTE_RATE, SHARE_OF_COPY, SPEED_UP, SPEED_UP_OVER_TORCH),
    KERNELS: (BYTE_RATE, OPERATION_RATE, SHARE_OF_FLOOR, SPEED_UP),
    "train": (TOKEN_RATE, SHARE_OF_FLOOR, SPEED_UP, SPEED_UP_OVER_TORCH),
}


def print_results(record: Record, console: Console) -> None:
    """Print what the results were measured on, a table for each job, and the kernels' times."""
    console.width = max(console.width, NARROWEST)
    for line in machine_lines(record):
        console.print(line, markup=False, soft_wrap=True)
    for table in tables_of(record):
        console.print()
        console.print(_table(table))
        for line in _lines_below(table):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if not record["complete"]:
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


def machine_lines(record: Record) -> list[str]:
    """Return lines on what was measured on: machine, versions, text."""
    machine = record["machine"]
    commit = f" ({machine['commit'][:12]})" if machine.get("commit") else ""
    versions = [f"{name} {machine[name]}" for name in ("numpy", "wgpu") if machine.get(name)]
    return [
        f"machine: {machine['cpu']}, {machine['cpus']} CPUs; {machine['platform']}",
        *(f"adapter: {a['name']} ({a['kind']}), {a['driver']}" for a in machine["adapters"]),
        *(f"not opened: {name}: {reason}" for name, reason in record["not_opened"].items()),
        ", ".join(
            [f"llmgpu {machine['llmgpu']}{commit}", f"Python {machine['python']}", *versions]
        ),
        *_source_lines(record),
    ]


def _source_lines(record: Record) -> list[str]:
    text, given = record.get("text"), record.get("vocabulary")
    lines = []
    if text is not None:
        digest = text["sha256"][:12]
        lines.append(f"text: {text['source']}, {text['bytes']:,} bytes, SHA-256 {digest}")
    if given is not None:
        lines.append(f"vocabulary: {given['source']}, fingerprint {given['fingerprint'][:12]}")
    return lines


def _table(results: ResultTable) -> Table:
    is_narrow = results.what in _SHOWN  # with so many numbers that answers go below
    table = Table(title=escape(f"{results.what}: {results.title}"), title_justify="left")
    table.add_column("kernel" if results.what == KERNELS else "engine", min_width=_NAME_WIDTH)
    columns = _number_columns(results)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("answer")
    for result in results.results:
        numbers = [text_of(result) for text_of in columns.values()]
        answer = verdict_of(result) if is_narrow else answer_of(result)
        table.add_row(*map(escape, [results.row_name(result), *numbers, answer]))
    return table


def _number_columns(results: ResultTable) -> dict[str, Callable[[Result], str]]:
    """Return what is in the columns of a table, by their titles."""
    columns: dict[str, Callable[[Result], str]] = {"median": _median, "min-max": _spread}
    measures = measures_of(results.results)
    for measure in _SHOWN.get(results.what, measures):
        if measure in measures:
            columns[measure.title] = measure.text
    if results.what == "tokenize":
        peers = [r.get("mb_per_second") or 0 for r in results.results if r.get("peer")]
        columns["tokens"] = lambda result: f"{result['tokens']:,}" if "tokens" in result else "-"
        columns["vs peers"] = lambda result: _ratio(result, max(peers, default=0))
    return columns


def _median(result: Result) -> str:
    return seconds_text(result["seconds"]["median"]) if "seconds" in result else "-"


def _spread(result: Result) -> str:
    return spread_text(result["seconds"]) if "seconds" in result else "-"


def _ratio(result: Result, fastest_peer: float) -> str:
    """Compare a rate with that of the fastest peer, 0 if there is none."""
    rate = result.get("mb_per_second")
    return f"{rate / fastest_peer:.2f}x" if rate and fastest_peer else "-"


def _change_row(change: Change, comparison: Comparison) -> list[str]:
    words = f"{100 * change.relative:+.1f} %"
    if comparison.is_slower(change):
        words += " SLOWER"
    name = f"{change.name} (peer)" if change.is_peer else change.name
    times = [seconds_text(change.old), seconds_text(change.new)]
    return [change.what, change.job, name, *times, words]


def _lines_below(results: ResultTable) -> list[str]:
    """Return lines on what answers were, on notes, and on where the time goes."""
    if results.what not in _SHOWN:
        return [line for result in results.results for line in _details(result)]
    said = answers_of(results.results)
    lines = [f"answers: {said}"] if said else []
    if results.what == KERNELS:
        return lines
    return lines + [line for result in results.results for line in _details(result)]


def _details(result: Result) -> list[str]:
    """Return lines on start-up, phases and kernels, as far as there are any."""
    start_up = result.get("start_up", {}).items()
    phases = result.get("phases", {}).items()
    parts = {
        "start-up": ", ".join(f"{name} {seconds_text(spent)}" for name, spent in start_up if spent),
        "phases": ", ".join(f"{name} {seconds_text(times['median'])}" for name, times in phases),
        "kernels": _kernel_text(result),
    }
    return [f"{name_of(result)}, {name}: {text}" for name, text in parts.items() if text]


def _kernel_text(result: Result) -> str:
    kernels = result.get("kernels")
    if not kernels:
        return ""
    times = ", ".join(f"{name} {seconds_text(s)}" for name, s in kernels["seconds"].items())
    total = seconds_text(kernels["total"])
    if "merges" in kernels:
        return f"{total} for the first {kernels['merges']} merges: {times}"
    rate = kernels.get("mb_per_second")
    return f"{total}{f' ({rate:.0f} MB/s)' if rate else ''}: {times}"
