"""The results of ``llmgpu bench`` as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.cli.console import human_bytes

NARROWEST = 100  # columns; less would break the tables' cells


def print_results(record: dict[str, Any], console: Console) -> None:
    """Print what the results were measured on, a table for each job, and the kernels' times."""
    console.width = max(console.width, NARROWEST)
    for line in _machine_lines(record):
        console.print(line, markup=False, soft_wrap=True)
    jobs: dict[tuple[str, int, int, str | None], list[dict[str, Any]]] = {}
    for result in record["results"]:
        key = (result["what"], result["text_bytes"], result["vocab_size"], result.get("pattern"))
        jobs.setdefault(key, []).append(result)
    for (what, text_bytes, vocab_size, pattern), results in jobs.items():
        title = f"{what}: {human_bytes(text_bytes)} of text, {vocab_size:,} ids"
        if pattern is not None:  # early records don't name it
            title += f", pattern {pattern}"
        console.print()
        console.print(_job_table(title, results))
        for result in results:
            for line in _details(result):
                console.print(line, markup=False, soft_wrap=True)
    if not record["complete"]:
        console.print("\ninterrupted: these are the results up to then")


def _machine_lines(record: dict[str, Any]) -> list[str]:
    machine, text = record["machine"], record["text"]
    commit = f" ({machine['commit'][:12]})" if machine["commit"] else ""
    return [
        f"machine: {machine['cpu']}, {machine['cpus']} CPUs; {machine['platform']}",
        *(f"adapter: {a['name']} ({a['kind']}), {a['driver']}" for a in machine["adapters"]),
        *(f"not opened: {name}: {reason}" for name, reason in record["not_opened"].items()),
        f"llmgpu {machine['llmgpu']}{commit}, Python {machine['python']}, "
        f"numpy {machine['numpy']}, wgpu {machine['wgpu']}",
        f"text: {text['source']}, {text['bytes']:,} bytes, SHA-256 {text['sha256'][:12]}",
        *_vocabulary_lines(record),
    ]


def _vocabulary_lines(record: dict[str, Any]) -> list[str]:
    given = record.get("vocabulary")
    if given is None:
        return []
    return [f"vocabulary: {given['source']}, fingerprint {given['fingerprint'][:12]}"]


def _job_table(title: str, results: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    is_training = results[0]["what"] == "bpe-train"
    table.add_column("engine")
    for name in ("median", "min-max", "MB/s", "merges/s" if is_training else "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    if not is_training:
        table.add_column("vs peers", justify="right", no_wrap=True)
    table.add_column("answer")
    peers = [r["mb_per_second"] for r in results if r.get("peer") and "seconds" in r]
    for result in results:
        table.add_row(*map(escape, _row(result, is_training, max(peers, default=0))))
    return table


def _row(result: dict[str, Any], is_training: bool, fastest_peer: float) -> list[str]:
    """Return a result's cells; fastest_peer: MB/s, 0 if there is none to compare with."""
    times = result.get("seconds")
    cells = [result["engine"]]
    if times:
        cells += [
            f"{times['median']:.3f} s",
            f"{times['min']:.3f}-{times['max']:.3f}",
            _three_digits(result["mb_per_second"]),
        ]
    else:
        cells += ["-", "-", "-"]
    if is_training:
        cells.append(f"{result['merges_per_second']:,.0f}" if times else "-")
    else:
        cells.append(f"{result['tokens']:,}" if "tokens" in result else "-")
        compared = times and fastest_peer
        cells.append(f"{result['mb_per_second'] / fastest_peer:.2f}x" if compared else "-")
    return [*cells, result.get("answer") or result["note"]]


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _details(result: dict[str, Any]) -> list[str]:
    """Return lines on start-up, phases and kernels, as far as there are any."""
    start_up = ", ".join(f"{k} {v:.3f} s" for k, v in result.get("start_up", {}).items() if v)
    phases = ", ".join(f"{k} {v['median']:.3f} s" for k, v in result.get("phases", {}).items())
    parts = {"start-up": start_up, "phases": phases, "kernels": _kernel_text(result)}
    return [f"  {result['engine']}, {name}: {text}" for name, text in parts.items() if text]


def _kernel_text(result: dict[str, Any]) -> str:
    kernels = result.get("kernels")
    if not kernels:
        return ""
    times = ", ".join(f"{name} {seconds:.4f}" for name, seconds in kernels["seconds"].items())
    if "merges" in kernels:
        return f"{kernels['total']:.3f} s for the first {kernels['merges']} merges: {times}"
    rate = f" ({kernels['mb_per_second']:.0f} MB/s)" if kernels["mb_per_second"] else ""
    return f"{kernels['total']:.3f} s{rate}: {times}"
