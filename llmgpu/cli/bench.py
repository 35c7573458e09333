"""The command ``llmgpu bench``: measure this machine, or read, show, write and compare a record."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.bench import ALL, GENERATED, PARTS, QUICK_SIZES, BenchOptions
from llmgpu.bench.report import (
    columns_of,
    compare_records,
    draw_report,
    facts_of,
    lines_below,
)
from llmgpu.bench.results import Record, load_record
from llmgpu.bench.suite import Benchmark
from llmgpu.bench.tokenizers import text_blocks
from llmgpu.bpe.interchange.formats import find_vocabulary
from llmgpu.charts import Column
from llmgpu.cli.commands.bench import BenchCommand
from llmgpu.cli.console import Reporter
from llmgpu.cli.interrupts import last_act
from llmgpu.cli.options import refuse_given
from llmgpu.errors import LlmgpuError
from llmgpu.file_kinds import PAGE, RECORD, TEXT
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.option_fields import own_options
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.sources import resolve_sources

NARROWEST = 80  # smallest width of the console; a narrower table would break the text of its cells
# Least widths of columns of text, which are broken into lines, by kind; space between columns.
_WIDTHS, _GAP = {"name": 16, "": 6}, 2
# Parameters that are for measuring. All others apply also to a record read from a file.
_OF_MEASURING = ("what", "write_corpus", *own_options(BenchOptions))


def bench(asked: BenchCommand, report: Reporter) -> None:
    """Measure this machine, or read a record; show the record, write it and compare it."""
    corpus, vocab = asked.measured["corpus"], asked.measured["vocab"]
    if asked.record_path is not None:
        refuse_given(_OF_MEASURING, "has no effect with --from, which measures nothing")
    # An output must not replace an input, or a file of another kind.
    kinds = ((asked.output, RECORD), (asked.page, PAGE), (asked.write_corpus, TEXT))
    written = [Output(path, kind) for path, kind in kinds if path is not None]
    sources = resolve_sources(corpus).files if corpus and GENERATED not in corpus else []
    read = [asked.record_path, asked.compare, *(source.path for source in sources)]
    read += find_vocabulary(vocab).inputs if vocab else []
    check_outputs(written, read, force=asked.force)
    # Read the record to compare with first: a damaged record ends the command at once.
    baseline = None if asked.compare is None else load_record(asked.compare)
    if asked.record_path is not None:
        record = load_record(asked.record_path)
        _hand_over(record, asked, report)
    else:
        sizes = QUICK_SIZES if asked.measured["quick"] else {}
        given = {name: value for name, value in asked.measured.items() if value is not None}
        all_parts = not asked.what or ALL in asked.what
        parts = PARTS if all_parts else tuple(dict.fromkeys(asked.what))
        options = BenchOptions(parts=parts, **sizes | given)
        if asked.write_corpus is not None:
            with atomic_output(asked.write_corpus) as file:
                file.writelines(text_blocks(corpus, options.limit))
            return
        record = _measure(options, asked, report)
    if baseline is not None:
        _compare(baseline, record, asked, report)
    if not record.is_correct:
        raise LlmgpuError("an engine gave a wrong answer; see the results")


def _measure(options: BenchOptions, asked: BenchCommand, report: Reporter) -> Record:
    """Run the benchmark and return its record.

    An interrupt ends the command, but the results so far are written and printed first.
    """
    benchmark = Benchmark(options)
    first = threading.Lock()

    def hand_over() -> None:
        if benchmark.record.results and first.acquire(blocking=False):
            _hand_over(benchmark.record, asked, report)
            sys.stdout.flush()

    with last_act(hand_over):
        try:
            benchmark.run(report)
        finally:
            report.close()
            hand_over()
    return benchmark.record


def _hand_over(record: Record, asked: BenchCommand, report: Reporter) -> None:
    """Write the record's files, and print its tables and JSON, as the options choose."""
    plain = record.to_json()
    if asked.output is not None:
        with atomic_output(asked.output) as file:
            file.write(json.dumps(plain, indent=1).encode() + b"\n")
    if asked.page is not None:
        with atomic_output(asked.page) as file:
            file.write(draw_report(record).encode())
    # If a file is written to standard output, tables and JSON are not printed there.
    if not (report.as_json and report.quiet) and not _takes_stdout(asked):
        print_results(record, Console(stderr=report.as_json, highlight=False))
    report.summarize(plain, to_stderr=_takes_stdout(asked))


def _takes_stdout(asked: BenchCommand) -> bool:
    return STANDARD_OUTPUT in (asked.output, asked.page)


def _compare(old: Record, new: Record, asked: BenchCommand, report: Reporter) -> None:
    """Print the changes since an old record; LlmgpuError if a time of llmgpu has grown."""
    path, comparison = asked.compare, compare_records(old, new, asked.threshold)
    if not (report.quiet and report.as_json):
        to_stderr = report.as_json or _takes_stdout(asked)
        console = Console(stderr=to_stderr, highlight=False)
        console.width = max(console.width, NARROWEST)
        console.print()
        for line in comparison.notes:
            _print_line(console, f"since {path}: {line}")
        if comparison.changes:
            print_table(console, f"compared with {path}", comparison.columns())
        else:
            _print_line(console, f"nothing is comparable with {path}")
        for line in comparison.not_compared:
            _print_line(console, f"not compared: {line}")
    if slower := comparison.slower:
        most, share = slower[0], 100 * asked.threshold
        raise LlmgpuError(
            f"{len(slower)} of {len(comparison.changes)} medians grew by more than {share:g} % "
            f"since {path}; most of all {most.new.what}, {most.new.name}: "
            f"{100 * most.relative:+.1f} %"
        )


def print_results(record: Record, console: Console) -> None:
    """Print facts about the record, and a table for each job with the lines below it."""
    console.width = max(console.width, NARROWEST)
    for name, text in facts_of(record):
        _print_line(console, f"{name}: {text}")
    for table in record.tables():
        console.print()
        print_table(console, f"{table.what}: {table.title}", columns_of(table))
        for name, text in lines_below(table):
            _print_line(console, f"  {name}: {text}")


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def print_table(console: Console, title: str, columns: Sequence[Column]) -> None:
    """Print a table; columns of numbers that don't fit are left out, the last ones first."""
    room, shown, widths = console.width, list[Column](), list[int]()
    for column in columns:
        width = _WIDTHS.get(column.kind) or max(map(len, (column.title, *column.cells)))
        if column.kind == "number" and width + _GAP > room:
            continue
        room -= width + _GAP
        shown.append(column)
        widths.append(width)
    # The columns of text share the rest of the room, first for their longest words.
    for pattern in (r"\S+", ".+"):
        for k, column in enumerate(shown):
            found = re.findall(pattern, "\n".join((column.title, *column.cells)))
            more = max(0, min(room, max(map(len, found)) - widths[k]))
            widths[k], room = widths[k] + more, room - more
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    for column, width in zip(shown, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.kind == "number" else "left"
        table.add_column(column.title, justify=justify, width=width, overflow="fold")
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(escape, row))
    console.print(table)
