"""The results of ``llmgpu bench`` as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.bench.compare import Change, Comparison
from llmgpu.bench.measures import measures_of
from llmgpu.bench.record import Record, Result, by_job, name_of
from llmgpu.bench.units import seconds_text, spread_text

NARROWEST = 100  # columns; less would break the tables' cells


def print_results(record: Record, console: Console) -> None:
    """Print what the results were measured on, a table for each job, and the kernels' times."""
    console.width = max(console.width, NARROWEST)
    for line in machine_lines(record):
        console.print(line, markup=False, soft_wrap=True)
    for (what, job), results in by_job(record).items():
        console.print()
        console.print(_job_table(f"{what}: {job}", results))
        for result in results:
            for line in _details(result):
                console.print(line, markup=False, soft_wrap=True)
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


def _job_table(title: str, results: Sequence[Result]) -> Table:
    table = Table(title=escape(title), title_justify="left")
    table.add_column("engine")
    columns = _number_columns(results)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("answer")
    for result in results:
        numbers = [text_of(result) for text_of in columns.values()]
        answer = result.get("answer") or result.get("note") or "-"
        table.add_row(*map(escape, [name_of(result), *numbers, answer]))
    return table


def _number_columns(results: Sequence[Result]) -> dict[str, Callable[[Result], str]]:
    """Return what is in the columns of a job's table, by their titles."""
    columns: dict[str, Callable[[Result], str]] = {"median": _median, "min-max": _spread}
    for measure in measures_of(results):
        columns[measure.title] = measure.text
    peers = [r["mb_per_second"] for r in results if r.get("peer") and "seconds" in r]
    if results[0]["what"] == "tokenize":
        columns["tokens"] = lambda result: f"{result['tokens']:,}" if "tokens" in result else "-"
        columns["vs peers"] = lambda result: _ratio(result, max(peers, default=0))
    return columns


def _median(result: Result) -> str:
    return seconds_text(result["seconds"]["median"]) if "seconds" in result else "-"


def _spread(result: Result) -> str:
    return spread_text(result["seconds"]) if "seconds" in result else "-"


def _ratio(result: Result, fastest_peer: float) -> str:
    """Compare a rate with that of the fastest peer, 0 if there is none."""
    compared = "seconds" in result and fastest_peer
    return f"{result['mb_per_second'] / fastest_peer:.2f}x" if compared else "-"


def _change_row(change: Change, comparison: Comparison) -> list[str]:
    words = f"{100 * change.relative:+.1f} %"
    if comparison.is_slower(change):
        words += " SLOWER"
    name = f"{change.name} (peer)" if change.is_peer else change.name
    times = [seconds_text(change.old), seconds_text(change.new)]
    return [change.what, change.job, name, *times, words]


def _details(result: Result) -> list[str]:
    """Return lines on start-up, phases, kernels and notes, as far as there are any."""
    start_up = ", ".join(
        f"{k} {seconds_text(v)}" for k, v in result.get("start_up", {}).items() if v
    )
    phases = result.get("phases", {}).items()
    parts = {
        "start-up": start_up,
        "phases": ", ".join(f"{k} {seconds_text(v['median'])}" for k, v in phases),
        "kernels": _kernel_text(result),
        "note": result["note"] if result.get("note") and result.get("answer") else "",
    }
    return [f"  {name_of(result)}, {name}: {text}" for name, text in parts.items() if text]


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
