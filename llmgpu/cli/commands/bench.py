"""``llmgpu bench``: speed of each part of the work on this machine, next to other programs."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.bench import ALL, DEFAULT_THRESHOLD, PARTS, BenchOptions
from llmgpu.cli import groups
from llmgpu.cli.options import command
from llmgpu.option_fields import argument, group, option


@command("bench", "bench:bench")
class BenchCommand:
    """Benchmark this machine: median and spread, end to end, by phase and by kernel.

    WHAT is bpe-train (training a tokenizer), tokenize, embedding (row lookups), kernels (each
    language-model kernel by itself), train (training a language model), generate (continuing
    prompts with one), startup (whole commands with little to do), ideas (ideas of the kernels, each
    switched off alone) or all, the default.

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

    # fmt: off
    what: tuple[str, ...] = argument(
        "[WHAT]...", many=True, type=click.Choice((*PARTS, ALL)))
    measured: dict[str, Any] = group(BenchOptions, as_values=True)
    write_corpus: str | None = option(
        None, str, "Only write the text to this file; measure nothing.", metavar="FILE")
    record_path: str | None = option(
        None, str, "Read results written by -o instead of measuring.", "--from", metavar="FILE")
    output: str | None = option(
        None, str, "Write all results to this JSON file.", "--output", "-o", metavar="FILE")
    page: str | None = option(
        None, str, "Write an HTML page with charts and tables.", "--report", metavar="FILE")
    compare: str | None = option(
        None, str,
        "Compare with results written by -o; exit with code 1 if any part of llmgpu is slower by "
        "more than --threshold.", metavar="FILE")
    threshold: float = option(
        DEFAULT_THRESHOLD, "percentage",
        "Largest slowdown of a median that --compare accepts.  [default: 10%]", metavar="PERCENT",
        settings={"show_default": False})
    force: bool = groups.force()
    # fmt: on
