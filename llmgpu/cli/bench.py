"""``llmgpu bench``: how fast this machine does each part of the work, and its peers beside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from llmgpu.bench import suite
from llmgpu.bench.measuring.engines import ALL
from llmgpu.bench.record_file import load_record
from llmgpu.bench.reports.compare import DEFAULT_THRESHOLD, compare_records
from llmgpu.bench.reports.page import draw_report
from llmgpu.bench.text.corpus import text_blocks
from llmgpu.bpe.pretokens.pattern import PATTERNS
from llmgpu.cli.bench_table import print_comparison, print_results
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.options import ByteSize, Percentage, output_options
from llmgpu.errors import LlmgpuError
from llmgpu.files import STANDARD_OUTPUT, atomic_output

ALL_PARTS = "all"
# Options that say what to do with a record, however it came to be; all others say what to measure.
_FOR_RECORDS = ("record_path", "output", "report", "compare", "threshold")


@dataclass(frozen=True)
class Outputs:
    """Where a record goes: files of JSON and HTML, JSON on stdout, a table unless it is taken."""

    json_path: str | None
    report_path: str | None
    as_json: bool
    quiet: bool

    @property
    def takes_stdout(self) -> bool:
        """Whether a file goes to standard output, which has no place for anything else then."""
        return STANDARD_OUTPUT in (self.json_path, self.report_path)

    @property
    def shows_tables(self) -> bool:
        """Whether people are to see tables."""
        return not (self.as_json and self.quiet) and not self.takes_stdout

    @property
    def console(self) -> Console:
        """Where they see them."""
        return Console(stderr=self.as_json, highlight=False)

    def hand_over(self, record: dict[str, Any]) -> None:
        """Write the files, print the tables, print the JSON: whatever of it is wanted."""
        if self.json_path is not None:
            with atomic_output(self.json_path) as file:
                file.write(json.dumps(record, indent=1).encode() + b"\n")
        if self.report_path is not None:
            with atomic_output(self.report_path) as file:
                file.write(draw_report(record).encode())
        if self.shows_tables:
            print_results(record, self.console)
        if self.as_json:
            print_json(record, to_stderr=self.takes_stdout)


@click.command()
@click.argument(
    "what",
    nargs=-1,
    metavar="[WHAT]...",
    type=click.Choice((*suite.PARTS, ALL_PARTS)),
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=(ALL,),
    metavar="all|cpu|gpu|NAME",
    help="What to measure; all (the default) is NumPy and every adapter. Repeatable.",
)
@click.option(
    "--corpus",
    multiple=True,
    metavar="PATH",
    help="Text to measure on; by default the sources of Python's standard library. Repeatable. "
    '"generated" is text of any size, with as many distinct words as real text of that size has.',
)
@click.option("--limit", type=ByteSize(), metavar="SIZE", help="Text at most.  [default: 20MB]")
@click.option("--vocab-size", type=int, help=f"Ids at most.  [default: {suite.DEFAULT_VOCAB_SIZE}]")
@click.option(
    "--pattern",
    type=click.Choice(list(PATTERNS)),
    default=suite.DEFAULT_PATTERN,
    show_default=True,
    help="Where text is cut into pre-tokens.",
)
@click.option(
    "--vocab",
    metavar="FILE",
    help="Tokenize with this vocabulary, whatever its size and pattern, not with one trained here.",
)
@click.option("--runs", type=int, help=f"Runs of each.  [default: {suite.DEFAULT_RUNS}]")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Measure other programs.")
@click.option(
    "--quick",
    is_flag=True,
    help="Smaller sizes: 1MB, 1024 ids and 2 runs where nothing else is said.",
)
@click.option(
    "--write-corpus",
    metavar="FILE",
    help="Write the text that would be measured on, and measure nothing.",
)
@click.option(
    "--from",
    "record_path",
    metavar="FILE",
    help="Measure nothing: take the results that -o has written.",
)
@click.option("--output", "-o", metavar="FILE", help="Write all results as JSON.")
@click.option("--report", metavar="FILE", help="Write a page with charts and tables (HTML).")
@click.option(
    "--compare",
    metavar="FILE",
    help="Say what is slower or faster than in results that -o has written; exit code 1 if "
    "anything of llmgpu's is slower by more than the threshold.",
)
@click.option(
    "--threshold",
    type=Percentage(),
    default=DEFAULT_THRESHOLD,
    metavar="PERCENT",
    help="By how much a median may grow with --compare.  [default: 10%]",
)
@output_options
def bench(
    what: tuple[str, ...],
    devices: tuple[str, ...],
    corpus: tuple[str, ...],
    limit: int | None,
    vocab_size: int | None,
    pattern: str,
    vocab: str | None,
    runs: int | None,
    peers: bool,
    quick: bool,
    write_corpus: str | None,
    record_path: str | None,
    output: str | None,
    report: str | None,
    compare: str | None,
    threshold: float,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Measure this machine: median and spread, end to end, by phase and by kernel.

    WHAT is bpe-train, tokenize, embedding, kernels, train or all, which is the default: training
    tokenizers, using them, and of language models looking up embeddings, each kernel, and training.

    Answers are compared before any time is given. An interrupted run shows what it measured. Peers
    are Hugging Face's tokenizers, rustbpe, gigatoken, tiktoken and torch, those that are installed.

    With --compare the exit code is 1 if the median of anything that llmgpu does grew by more than
    the threshold, else 0; results of other machines or sizes are not compared, which is said.

    \b
    Example:
      llmgpu bench --quick
      llmgpu bench tokenize --device gpu --corpus text.txt --limit 1GB -o results.json
      llmgpu bench tokenize --vocab cl100k.bin --corpus text.txt
      llmgpu bench bpe-train --vocab-size 32768 --no-peers --json
      llmgpu bench --report report.html --compare yesterday.json --threshold 20%
      llmgpu bench --from results.json --report report.html
      llmgpu bench --corpus generated --limit 10GB --write-corpus 10GB.txt
    """
    if record_path is not None:
        _check_measures_nothing()
    baseline = None if compare is None else load_record(compare)
    outputs = Outputs(output, report, as_json, quiet)
    if record_path is not None:
        record = load_record(record_path)
        outputs.hand_over(record)
    else:
        options = suite.BenchOptions(
            parts=_parts(what),
            devices=devices,
            corpus=corpus,
            limit=limit or (suite.QUICK_LIMIT if quick else suite.DEFAULT_LIMIT),
            vocab_size=_first(vocab_size, quick, suite.QUICK_VOCAB_SIZE, suite.DEFAULT_VOCAB_SIZE),
            runs=_first(runs, quick, suite.QUICK_RUNS, suite.DEFAULT_RUNS),
            pattern=pattern,
            peers=peers,
            vocabulary=vocab,
            quick=quick,
        )
        if write_corpus is not None:
            _write_corpus(options, write_corpus)
            return
        record = _measure(options, outputs)
    if baseline is not None and compare is not None:
        _compare(baseline, compare, record, threshold, outputs)
    if not suite.all_correct(record):
        raise LlmgpuError("an engine gave a wrong answer; see the results")


def _measure(options: suite.BenchOptions, outputs: Outputs) -> dict[str, Any]:
    """Return the record of a run, handed over even if the run is interrupted."""
    record: dict[str, Any] = {}
    report = Reporter(quiet=outputs.quiet)
    try:
        suite.run_benchmark(options, record, report)
    finally:
        report.close()
        if record.get("results"):
            outputs.hand_over(record)
    return record


def _compare(
    old: dict[str, Any], path: str, new: dict[str, Any], threshold: float, outputs: Outputs
) -> None:
    """Say what changed; LlmgpuError if something got slower."""
    comparison = compare_records(old, new, threshold)
    console = Console(stderr=True, highlight=False) if outputs.takes_stdout else outputs.console
    if not (outputs.quiet and outputs.as_json):
        print_comparison(comparison, path, console)
    slower = comparison.slower
    if slower:
        most = slower[0]
        raise LlmgpuError(
            f"{len(slower)} of {len(comparison.changes)} medians grew by more than "
            f"{100 * threshold:g} % since {path}; most of all {most.what}, {most.name}: "
            f"{100 * most.relative:+.1f} %"
        )


def _check_measures_nothing() -> None:
    """Raise UsageError for options that say what to measure beside --from."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if given and name not in (*_FOR_RECORDS, "as_json", "quiet", "debug"):
            called = parameter.opts[0] if isinstance(parameter, click.Option) else "WHAT"
            raise click.UsageError(f"{called} is for measuring; --from FILE measures nothing")


def _parts(what: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that are asked for, each once: all if none is."""
    if not what or ALL_PARTS in what:
        return suite.PARTS
    return tuple(dict.fromkeys(what))


def _write_corpus(options: suite.BenchOptions, path: str) -> None:
    with atomic_output(path) as file:
        for block in text_blocks(options.corpus, options.limit):
            file.write(block)


def _first(given: int | None, quick: bool, quick_value: int, default: int) -> int:
    if given is not None:
        return given
    return quick_value if quick else default
