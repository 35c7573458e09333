"""A record as one page of HTML that needs nothing else: no script, no other file, no network.

It is XML as well. All text of the record is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmgpu.bench.record import (
    KERNELS,
    Record,
    Result,
    ResultTable,
    is_peer,
    name_of,
    tables_of,
)
from llmgpu.bench.reports.bars import kernel_bars, result_bars, share_bars
from llmgpu.bench.reports.measures import OPERATION_RATE
from llmgpu.bench.reports.roofline import draw_roofline, has_place, intensity
from llmgpu.bench.reports.style import STYLE
from llmgpu.bench.reports.tables import Column, draw_table, is_wrong, result_table
from llmgpu.bench.reports.units import quantity, seconds_text, three_digits
from llmgpu.charts import escape_text

_PARTS = {
    "bpe-train": (
        "Training tokenizers",
        "From a text file in the page cache to a vocabulary file. Merges are compared with "
        "NumPy's first.",
    ),
    "tokenize": (
        "Tokenizing",
        "From a text file in the page cache to a file of ids. Ids are compared with NumPy's first.",
    ),
    "embedding": (
        "Embedding",
        "Looking up rows of a table by tokens, and adding gradients to them. Rows and gradients "
        "are compared with NumPy's first.",
    ),
    "kernels": (
        "Kernels of a language model",
        "One operation at a time. Outputs are compared first. The limit is what the measured "
        "bandwidth or the measured arithmetic allows; small sizes, which fit into caches, may be "
        "faster than memory.",
    ),
    "train": (
        "Training a language model",
        "Whole steps: forward, backward, optimizer. Losses are compared first.",
    ),
}


def draw_report(record: Record) -> str:
    """Return the page of a record, as `load_record` returns it."""
    tables = tables_of(record)
    parts = list(dict.fromkeys(table.what for table in tables))
    title = f"llmgpu bench: {record['machine']['cpu']}"
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en" xmlns="http://www.w3.org/1999/xhtml">',
        "<head>",
        '<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape_text(title)}</title>",
        f"<style>{STYLE}</style>",
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
    if not record["complete"]:
        yield '<p class="warning">Interrupted: these are the results up to then.</p>'
    if any(is_wrong(result) for result in record["results"]):
        yield '<p class="warning">An engine gave a wrong answer; see the results.</p>'
    yield "<dl>"
    for name, text in _facts(record):
        yield f"<dt>{escape_text(name)}</dt><dd>{escape_text(text)}</dd>"
    yield "</dl>"


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    machine = record["machine"]
    if "measured" in record:
        yield "measured", record["measured"]
    yield "processor", f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['platform']}"
    for adapter in machine["adapters"]:
        yield "adapter", f"{adapter['name']} ({adapter['kind']}), {adapter['driver']}"
    for name, limits in record.get("limits", {}).items():
        bandwidth = quantity(limits["bytes_per_second"], "B/s")
        rate = quantity(limits["operations_per_second"], "FLOP/s")
        yield "limits", f"{name}: {bandwidth} copying, {rate} in float32, both measured"
    commit = f" ({machine['commit'][:12]})" if machine.get("commit") else ""
    versions = [f"{name} {machine[name]}" for name in ("numpy", "wgpu") if machine.get(name)]
    yield (
        "software",
        f"llmgpu {machine['llmgpu']}{commit}, Python {machine['python']}, " + ", ".join(versions),
    )
    text, vocabulary = record.get("text"), record.get("vocabulary")
    if text is not None:
        size = f"{text['bytes']:,} bytes"
        yield "text", f"{text['source']}, {size}, SHA-256 {text['sha256'][:12]}"
    if vocabulary is not None:
        yield "vocabulary", f"{vocabulary['source']}, {vocabulary['fingerprint'][:12]}"
    for name, reason in record["not_opened"].items():
        yield "not opened", f"{name}: {reason}"
    for name, reason in record.get("missing_peers", {}).items():
        yield "not compared with", f"{name}: {reason}"


def _contents(parts: Sequence[str]) -> list[str]:
    links = "".join(
        f'<a href="#{escape_text(what)}">{escape_text(_title_of(what))}</a>' for what in parts
    )
    return [f"<nav>{links}</nav>"] if len(parts) > 1 else []


def _title_of(what: str) -> str:
    return _PARTS[what][0] if what in _PARTS else what


def _part(what: str, tables: Sequence[ResultTable], record: Record) -> list[str]:
    lines = [f'<h2 id="{escape_text(what)}">{escape_text(_title_of(what))}</h2>']
    if what in _PARTS:
        lines.append(f"<p>{escape_text(_PARTS[what][1])}</p>")
    if what == KERNELS:
        lines += _beside_peers(tables, record)
    for table in tables:
        lines.append(f"<h3>{escape_text(table.title)}</h3>")
        if what == KERNELS:
            lines += _engine_charts(table, record)
        else:
            lines += result_bars(table, record)
        lines += result_table(table)
        for result in table.results:
            lines += _details(result)
    return lines


def _beside_peers(tables: Sequence[ResultTable], record: Record) -> list[str]:
    """Return a chart for each kernel that another program was measured at."""
    kernels: dict[str, dict[str, Result]] = {}
    for table in tables:
        for result in table.results:
            by_engine = kernels.setdefault(table.row_name(result), {})
            by_engine.setdefault(str(result["engine"]), {**result, "variant": None})
    lines: list[str] = []
    for title, by_engine in kernels.items():
        results = [result for result in by_engine.values() if "seconds" in result]
        if any(is_peer(result, record) for result in results):
            lines.append(f"<h4>{escape_text(title)}</h4>")
            lines += result_bars(ResultTable(KERNELS, title, results), record)
    return ["<h3>Beside other programs</h3>", *lines] if lines else []


def _engine_charts(table: ResultTable, record: Record) -> list[str]:
    """Return the roofline of an engine whose limits are known, and how near kernels are to it."""
    lines = share_bars(table)
    limits = record.get("limits", {}).get(table.title)
    placed = [result for result in table.results if has_place(result)]
    if limits is None or not placed:
        return lines
    return [
        *draw_roofline(placed, limits, f"Roofline of {table.title}"),
        "<details>",
        "<summary>What the numbers are</summary>",
        *draw_table(
            [
                Column("number", "number", [str(k) for k in range(1, len(placed) + 1)]),
                Column("kernel", "name", [table.row_name(result) for result in placed]),
                Column("FLOP per byte", "number", [three_digits(intensity(r)) for r in placed]),
                Column("reached", "number", [OPERATION_RATE.text(r) for r in placed]),
            ]
        ),
        "</details>",
        *lines,
    ]


def _details(result: Result) -> list[str]:
    """Return the time in kernels as a chart, and start-up and phases."""
    lines: list[str] = []
    kernels = (result.get("kernels") or {}).get("seconds", {})
    if len(kernels) > 1:
        lines += kernel_bars(kernels, _kernel_caption(result))
    for name, times in (
        ("start-up", result.get("start_up", {})),
        ("phases", {k: v["median"] for k, v in result.get("phases", {}).items()}),
    ):
        spent = {phase: seconds for phase, seconds in times.items() if seconds}
        if spent:
            text = ", ".join(f"{phase} {seconds_text(s)}" for phase, s in spent.items())
            lines.append(f"<p>{escape_text(f'{name}: {text}')}</p>")
    if not lines:
        return []
    summary = f"Where the time of {name_of(result)} goes"
    is_open = ' open="open"' if len(kernels) > 1 and result["what"] != KERNELS else ""
    return [
        f"<details{is_open}>",
        f"<summary>{escape_text(summary)}</summary>",
        *lines,
        "</details>",
    ]


def _kernel_caption(result: Result) -> str:
    kernels = result["kernels"]
    of = f"the first {kernels['merges']:,} merges" if "merges" in kernels else "one run"
    return f"time per kernel: {seconds_text(kernels['total'])} for {of}"
