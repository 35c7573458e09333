"""``llmgpu bench``: how fast this machine trains and tokenizes, with and beside its peers."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from llmgpu.bench import suite
from llmgpu.bench.corpus import text_blocks
from llmgpu.bench.engines import ALL
from llmgpu.bpe.patterns.pattern import PATTERNS
from llmgpu.cli.bench_table import print_results
from llmgpu.cli.console import Reporter, print_json
from llmgpu.cli.options import ByteSize, output_options
from llmgpu.errors import LlmgpuError
from llmgpu.files import atomic_output


@click.command()
@click.argument("what", nargs=-1, metavar="[bpe-train|tokenize]...", type=click.Choice(suite.PARTS))
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
@click.option(
    "--peers/--no-peers", default=True, show_default=True, help="Measure other tokenizers."
)
@click.option("--quick", is_flag=True, help="1MB, 1024 ids and 2 runs where nothing else is said.")
@click.option(
    "--write-corpus",
    metavar="FILE",
    help="Write the text that would be measured on, and measure nothing.",
)
@click.option("--output", "-o", metavar="FILE", help="Write all results as JSON.")
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
    output: str | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Measure training and tokenizing: median and spread, end to end, by phase and by kernel.

    Answers are compared before any time is given. An interrupted run shows what it measured. Peers
    are Hugging Face's tokenizers, rustbpe, gigatoken and tiktoken, those that are installed.

    \b
    Example:
      llmgpu bench --quick
      llmgpu bench tokenize --device gpu --corpus text.txt --limit 1GB -o results.json
      llmgpu bench tokenize --vocab cl100k.bin --corpus text.txt
      llmgpu bench bpe-train --vocab-size 32768 --no-peers --json
      llmgpu bench bpe-train --corpus generated --limit 2GB
      llmgpu bench --corpus generated --limit 10GB --write-corpus 10GB.txt
    """
    options = suite.BenchOptions(
        parts=what or suite.PARTS,
        devices=devices,
        corpus=corpus,
        limit=limit or (suite.QUICK_LIMIT if quick else suite.DEFAULT_LIMIT),
        vocab_size=_first(vocab_size, quick, suite.QUICK_VOCAB_SIZE, suite.DEFAULT_VOCAB_SIZE),
        runs=_first(runs, quick, suite.QUICK_RUNS, suite.DEFAULT_RUNS),
        pattern=pattern,
        peers=peers,
        vocabulary=vocab,
    )
    if write_corpus is not None:
        _write_corpus(options, write_corpus)
        return
    record: dict[str, Any] = {}
    report = Reporter(quiet=quiet)
    try:
        suite.run_benchmark(options, record, report)
    finally:
        report.close()
        if record.get("results"):
            _hand_over(record, output, as_json, quiet)
    if not suite.all_correct(record):
        raise LlmgpuError("an engine gave a wrong answer; see the results")


def _write_corpus(options: suite.BenchOptions, path: str) -> None:
    with atomic_output(path) as file:
        for block in text_blocks(options.corpus, options.limit):
            file.write(block)


def _first(given: int | None, quick: bool, quick_value: int, default: int) -> int:
    if given is not None:
        return given
    return quick_value if quick else default


def _hand_over(record: dict[str, Any], output: str | None, as_json: bool, quiet: bool) -> None:
    """Write the file, print the table, print the JSON: whatever of it is wanted."""
    if output is not None:
        with atomic_output(output) as file:
            file.write(json.dumps(record, indent=1).encode() + b"\n")
    if not (as_json and quiet) and output != "-":
        print_results(record, Console(stderr=as_json, highlight=False))
    if as_json:
        print_json(record, to_stderr=output == "-")
