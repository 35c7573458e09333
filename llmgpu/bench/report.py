"""A record as one page of HTML that needs nothing else: no script, no other file, no network.

It is XML as well. All text of the record is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmgpu.bench.record import Record, Result, by_job, name_of
from llmgpu.bench.report_bars import kernel_bars, result_bars
from llmgpu.bench.report_roofline import draw_roofline, has_place, intensity
from llmgpu.bench.report_style import STYLE
from llmgpu.bench.report_tables import (
    Column,
    draw_table,
    is_wrong,
    number_columns,
    result_table,
)
from llmgpu.bench.units import quantity, seconds_text, three_digits
from llmgpu.charts.markup import escape_text

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
        "One operation at a time. Outputs are compared first. The limit is the time that the "
        "measured bandwidth or the measured arithmetic allows.",
    ),
    "train": (
        "Training a language model",
        "Whole steps: forward, backward, optimizer. Losses are compared first.",
    ),
}


def draw_report(record: Record) -> str:
    """Return the page of a record, as `llmgpu.bench.record.load_record` returns it."""
    jobs = by_job(record)
    parts = list(dict.fromkeys(what for what, _ in jobs))
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
        groups = {job: results for (part, job), results in jobs.items() if part == what}
        lines += _part(what, groups, record)
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
        yield f"measured limits of {name}", f"{bandwidth} copying, {rate} in float32"
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


def _part(what: str, groups: dict[str, list[Result]], record: Record) -> list[str]:
    lines = [f'<h2 id="{escape_text(what)}">{escape_text(_title_of(what))}</h2>']
    if what in _PARTS:
        lines.append(f"<p>{escape_text(_PARTS[what][1])}</p>")
    results = [result for group in groups.values() for result in group]
    lines += _rooflines(results, record)
    for job, group in groups.items():
        lines.append(f"<h3>{escape_text(job)}</h3>")
        lines += result_bars(group, record)
        lines += result_table(group)
        for result in group:
            lines += _details(result)
    return lines


def _rooflines(results: Sequence[Result], record: Record) -> list[str]:
    """Return the roofline of each engine whose limits are known, and what its numbers mean."""
    lines: list[str] = []
    for engine, limits in record.get("limits", {}).items():
        placed = [r for r in results if r["engine"] == engine and has_place(r)]
        if not placed or not all(limits.values()):
            continue
        lines.append(f"<h3>Roofline of {escape_text(engine)}</h3>")
        lines += draw_roofline(placed, limits, f"{engine}: kernels under the roof")
        lines += ["<details>", "<summary>What the numbers are</summary>"]
        lines += draw_table(
            [
                Column("number", "number", [str(k) for k in range(1, len(placed) + 1)]),
                Column("kernel", "name", [str(r.get("variant") or r["job"]) for r in placed]),
                Column("FLOP per byte", "number", [three_digits(intensity(r)) for r in placed]),
                *number_columns(placed)[:-1],
            ]
        )
        lines.append("</details>")
    return lines


def _details(result: Result) -> list[str]:
    """Return the time in kernels as a chart, and start-up and phases."""
    lines: list[str] = []
    kernels = result.get("kernels")
    if kernels and kernels["seconds"]:
        lines += kernel_bars(kernels["seconds"], _kernel_caption(result))
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
    return ["<details>", f"<summary>{escape_text(summary)}</summary>", *lines, "</details>"]


def _kernel_caption(result: Result) -> str:
    kernels = result["kernels"]
    of = f"the first {kernels['merges']:,} merges" if "merges" in kernels else "one run"
    return f"time per kernel: {seconds_text(kernels['total'])} for {of}"
