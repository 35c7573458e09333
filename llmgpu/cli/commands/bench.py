"""``llmgpu bench``: how fast this machine does each part of the work, next to other programs."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.bench import (
    ALL,
    DEFAULT_PATTERN,
    DEFAULT_RUNS,
    DEFAULT_THRESHOLD,
    DEFAULT_VOCAB_SIZE,
    PARTS,
)
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary import MATCH_RULES
from llmgpu.cli.options import force_option, option_group, output_options
from llmgpu.cli.values import BYTE_SIZE, PERCENTAGE, VOCABULARY_SIZE

_options = option_group(
    click.option("--device", "devices", multiple=True, default=(ALL,), metavar="all|cpu|gpu|NAME",
                 help="Device to measure; all, the default, is the CPU and every GPU. Repeatable."),
    click.option("--corpus", multiple=True, metavar="PATH",
                 help="Text to measure on; generated: text of any size, with a realistic number of "
                 "distinct words. Repeatable.  [default: the source of Python's standard library]"),
    click.option("--limit", type=BYTE_SIZE, metavar="SIZE",
                 help="Use at most this much text.  [default: 20MB]"),
    click.option("--vocab-size", type=VOCABULARY_SIZE, metavar="N",
                 help=f"Size to train to.  [default: {DEFAULT_VOCAB_SIZE}]"),
    click.option("--pattern", type=click.Choice(list(PATTERNS)), default=DEFAULT_PATTERN,
                 show_default=True, help="Pattern that splits text into pre-tokens."),
    click.option("--vocab", metavar="VOCAB",
                 help="Tokenize with this vocabulary and its pattern instead of training one."),
    click.option("--match", type=click.Choice(MATCH_RULES),
                 help="Tokenize with this rule only: merges in order (bpe) or longest token first "
                 "(greedy).  [default: the vocabulary's rule, and greedy]"),
    click.option("--runs", type=int, metavar="N",
                 help=f"Runs per measurement.  [default: {DEFAULT_RUNS}]"),
    click.option("--peers/--no-peers", default=True, show_default=True,
                 help="Also measure other programs."),
    click.option("--quick", is_flag=True,
                 help="Use smaller sizes unless set otherwise: 1MB of text, 1024 ids and 2 runs."),
    click.option("--write-corpus", metavar="FILE",
                 help="Only write the text to this file; measure nothing."),
    click.option("--from", "record_path", metavar="FILE",
                 help="Read results written by -o instead of measuring."),
    click.option("--output", "-o", metavar="FILE", help="Write all results to this JSON file."),
    click.option("--report", metavar="FILE", help="Write an HTML page with charts and tables."),
    click.option("--compare", metavar="FILE",
                 help="Compare with results written by -o; exit with code 1 if any part of llmgpu "
                 "is slower by more than --threshold."),
    click.option("--threshold", type=PERCENTAGE, default=DEFAULT_THRESHOLD, metavar="PERCENT",
                 help="Largest slowdown of a median that --compare accepts.  [default: 10%]"),
    force_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("what", nargs=-1, metavar="[WHAT]...", type=click.Choice((*PARTS, ALL)))
@_options
def bench(**options: Any) -> None:
    """Benchmark this machine: median and spread, end to end, by phase and by kernel.

    WHAT is bpe-train (training a tokenizer), tokenize, embedding (row lookups), kernels (each
    language-model kernel by itself), train (training a language model), generate (continuing
    prompts with one), startup (whole commands with little to do) or all, the default.

    Every result is checked before its time is shown. An interrupted run reports what it measured.
    The other programs are Hugging Face tokenizers, rustbpe, gigatoken, tiktoken and torch, if
    installed.

    With --compare, the exit code is 1 if the median of any part of llmgpu grew by more than the
    threshold. Results from another machine or with other sizes are listed but not compared.

    \b
    Examples:
      llmgpu bench --quick
      llmgpu bench tokenize --device gpu --corpus text.txt --limit 1GB -o results.json
      llmgpu bench tokenize --vocab cl100k --corpus text.txt
      llmgpu bench tokenize --match greedy
      llmgpu bench bpe-train --vocab-size 32768 --no-peers --json
      llmgpu bench --report report.html --compare yesterday.json --threshold 20%
      llmgpu bench --from results.json --report report.html
      llmgpu bench --corpus generated --limit 10GB --write-corpus 10GB.txt
    """
    from llmgpu.cli import bench

    bench.bench(**options)
