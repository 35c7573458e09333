"""What ``llmgpu bench`` does: measure, or read a record; show it, write it, compare it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmgpu.bench import (
    ALL,
    DEFAULT_LIMIT,
    DEFAULT_RUNS,
    DEFAULT_VOCAB_SIZE,
    GENERATED,
    KERNELS,
    PARTS,
    QUICK_LIMIT,
    QUICK_RUNS,
    QUICK_VOCAB_SIZE,
    BenchOptions,
)
from llmgpu.bench.page import draw_report
from llmgpu.bench.report import columns_of, compare_records, facts_of, headlines, time_lines
from llmgpu.bench.results import Record, Result, ResultTable, load_record, seconds_text
from llmgpu.bench.suite import Benchmark
from llmgpu.bench.tokenizers import text_blocks
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.charts import Column
from llmgpu.cli.commands.bench import BenchCommand
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.interrupts import last_act
from llmgpu.cli.options import refuse_given
from llmgpu.errors import LlmgpuError
from llmgpu.files import STANDARD_OUTPUT, atomic_output
from llmgpu.outputs import PAGE, RECORD, TEXT, Output, check_outputs
from llmgpu.text.sources import resolve_sources

NARROWEST = 80  # columns; less would break the tables' cells
_NAME_WIDTH = 16
# Options that say what to do with a record, measured or read; all others say what to measure.
_FOR_RECORDS = {"record_path", "output", "page", "compare", "threshold", "force"}
_FOR_RECORDS |= {"as_json", "quiet", "debug"}


@dataclass(frozen=True)
class Outputs:
    """Where a record goes: files of JSON and HTML, JSON and tables on the terminal."""

    asked: BenchCommand

    @property
    def as_json(self) -> bool:
        """Whether the record is printed as JSON."""
        return self.asked.report.as_json

    @property
    def quiet(self) -> bool:
        """Whether progress and, with JSON, tables are left out."""
        return self.asked.report.quiet

    @property
    def takes_stdout(self) -> bool:
        """Whether a file goes to standard output, which then has no place for anything else."""
        return STANDARD_OUTPUT in (self.asked.output, self.asked.page)

    @property
    def shows_tables(self) -> bool:
        """Whether to print tables for people."""
        return not (self.as_json and self.quiet) and not self.takes_stdout

    def hand_over(self, record: Record) -> None:
        """Write the files, print the tables and print the JSON, as far as they are wanted."""
        plain = record.to_json()
        if self.asked.output is not None:
            with atomic_output(self.asked.output) as file:
                file.write(json.dumps(plain, indent=1).encode() + b"\n")
        if self.asked.page is not None:
            with atomic_output(self.asked.page) as file:
                file.write(draw_report(record).encode())
        if self.shows_tables:
            print_results(record, Console(stderr=self.as_json, highlight=False))
        if self.as_json:
            print_json(plain, to_stderr=self.takes_stdout)


def bench(asked: BenchCommand) -> None:
    """Measure this machine, or read what was measured; show it, write it and compare it."""
    corpus, record_path, compare = asked.corpus, asked.record_path, asked.compare
    if record_path is not None:
        parameters = {str(each.name) for each in click.get_current_context().command.params}
        reason = "has no effect with --from, which measures nothing"
        refuse_given(parameters - _FOR_RECORDS, reason)
    kinds = ((asked.output, RECORD), (asked.page, PAGE), (asked.write_corpus, TEXT))
    written = [Output(path, kind) for path, kind in kinds if path is not None]
    sources = resolve_sources(corpus).files if corpus and GENERATED not in corpus else []
    read = [*(source.path for source in sources), *filter(None, (record_path, compare))]
    read += find_vocabulary(asked.vocab).inputs if asked.vocab else []
    check_outputs(written, read, force=asked.force)
    baseline = None if compare is None else load_record(compare)
    outputs = Outputs(asked)
    if record_path is not None:
        record = load_record(record_path)
        outputs.hand_over(record)
    else:
        options = _options(asked)
        if asked.write_corpus is not None:
            with atomic_output(asked.write_corpus) as file:
                file.writelines(text_blocks(corpus, options.limit))
            return
        record = _measure(options, outputs)
    if baseline is not None and compare is not None:
        _compare(baseline, compare, record, asked.threshold, outputs)
    if not record.is_correct:
        raise LlmgpuError("an engine gave a wrong answer; see the results")


def _options(asked: BenchCommand) -> BenchOptions:
    """Return what to measure; --quick gives smaller sizes where no option names one."""
    sizes = (QUICK_LIMIT, QUICK_VOCAB_SIZE, QUICK_RUNS)
    if not asked.quick:
        sizes = (DEFAULT_LIMIT, DEFAULT_VOCAB_SIZE, DEFAULT_RUNS)
    return BenchOptions(
        parts=PARTS if not asked.what or ALL in asked.what else tuple(dict.fromkeys(asked.what)),
        devices=asked.devices,
        corpus=asked.corpus,
        limit=asked.limit or sizes[0],
        vocab_size=sizes[1] if asked.vocab_size is None else asked.vocab_size,
        pattern=asked.pattern,
        runs=sizes[2] if asked.runs is None else asked.runs,
        peers=asked.peers,
        vocabulary=asked.vocab,
        match=asked.match,
        quick=asked.quick,
    )


def _measure(options: BenchOptions, outputs: Outputs) -> Record:
    """Return the record of a run, handed over even if the run is interrupted."""
    benchmark = Benchmark(options)
    reporter = Reporter(quiet=outputs.quiet)
    first = threading.Lock()

    def hand_over() -> None:
        if benchmark.record.results and first.acquire(blocking=False):
            outputs.hand_over(benchmark.record)
            sys.stdout.flush()

    with last_act(hand_over):
        try:
            benchmark.run(reporter)
        finally:
            reporter.close()
            hand_over()
    return benchmark.record


def _compare(old: Record, path: str, new: Record, threshold: float, outputs: Outputs) -> None:
    """Print the changes since the record at `path`; LlmgpuError if something got slower."""
    comparison = compare_records(old, new, threshold)
    if not (outputs.quiet and outputs.as_json):
        to_stderr = outputs.as_json or outputs.takes_stdout
        console = Console(stderr=to_stderr, highlight=False)
        console.width = max(console.width, NARROWEST)
        console.print()
        for line in comparison.notes:
            _print_line(console, f"since {path}: {line}")
        if comparison.changes:
            _print_table(console, f"compared with {path}", comparison.columns())
        else:
            _print_line(console, f"nothing is comparable with {path}")
        for line in comparison.not_compared:
            _print_line(console, f"not compared: {line}")
    if slower := comparison.slower:
        most = slower[0]
        raise LlmgpuError(
            f"{len(slower)} of {len(comparison.changes)} medians grew by more than "
            f"{100 * threshold:g} % since {path}; most of all {most.new.what}, {most.new.name}: "
            f"{100 * most.relative:+.1f} %"
        )


def print_results(record: Record, console: Console) -> None:
    """Print headlines and facts, a table for each job, and where the time goes."""
    console.width = max(console.width, NARROWEST)
    for name, text in (*headlines(record), *facts_of(record)):
        _print_line(console, f"{name}: {text}")
    for table in record.tables():
        console.print()
        _print_table(console, f"{table.what}: {table.title}", columns_of(table, narrow=True))
        for line in _lines_below(table):
            _print_line(console, f"  {line}")
    if not record.complete:
        console.print("\ninterrupted: these are the results so far")


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def _print_table(console: Console, title: str, columns: Sequence[Column]) -> None:
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
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
    console.print(table)


def _lines_below(table: ResultTable) -> Iterator[str]:
    """Yield lines on what answers were, on notes, and on where the time goes."""
    if table.answers:
        yield f"answers: {table.answers}"
    for result in table.results if table.what != KERNELS else ():
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
