"""The options of ``llmgpu tokenize`` for shards and layouts."""

from __future__ import annotations

from dataclasses import dataclass

import click

from llmgpu.bpe.encoding.special_encoding import SpecialOptions, token_id
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli.console import Reporter
from llmgpu.cli.options import Decorated, TokenCount
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.text.corpus import CorpusOptions
from llmgpu.text.sources import Sources
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.layouts import LAYOUTS, describe_layouts
from llmgpu.tokens.shards import ShardNames, ShardWriter
from llmgpu.tokens.sinks import TokenSink
from llmgpu.tokens.tokenizing import encoding_key, require_rereadable


@dataclass(frozen=True)
class Cut:
    """The values of `shard_options`."""

    shard_tokens: int | None
    layout: str
    resume: bool


def shard_options(command: Decorated) -> Decorated:
    """Add the options that `Cut` holds."""
    for option in (
        click.option(
            "--resume",
            is_flag=True,
            help="Resume an interrupted run. The text is tokenized again; finished shards are "
            "compared with it, not written.",
        ),
        click.option(
            "--shard-tokens",
            type=TokenCount(),
            metavar="N",
            help="Write shards of N tokens (100M, 1B): OUT-000000.bin, OUT-000001.bin, ..., and "
            "the manifest OUT.json.",
        ),
        click.option(
            "--layout",
            type=click.Choice(list(LAYOUTS)),
            default="raw",
            show_default=True,
            help=f"Layout of --format bin: {describe_layouts()}.",
        ),
    ):
        command = option(command)
    return command


def check_shard_options(cut: Cut, output: str, format_name: str, is_encoding: bool) -> None:
    """Raise click.UsageError for options that can't be combined."""
    if cut.layout != "raw" and format_name != "bin":
        raise click.UsageError("--layout needs --format bin")
    if cut.resume and cut.shard_tokens is None:
        raise click.UsageError("--resume needs --shard-tokens N")
    if cut.shard_tokens is None:
        return
    if not is_encoding:
        raise click.UsageError("--shard-tokens can't be combined with --decode or --count")
    if format_name != "bin" or output == STANDARD_OUTPUT:
        raise click.UsageError("--shard-tokens needs --format bin and -o OUT.bin")


def open_sink(
    cut: Cut,
    sources: Sources,
    options: CorpusOptions,
    special: SpecialOptions,
    vocabulary: Vocabulary,
    output: str,
    format_name: str,
    report: Reporter,
) -> TokenSink:
    """Open the sink for the ids of a corpus: one file, or shards."""
    if cut.shard_tokens is None:
        return open_writer(
            output,
            format_name,
            vocabulary_size=vocabulary.size,
            fingerprint=vocabulary.fingerprint,
            layout=cut.layout,
        )
    around = [token for token in (special.bos, special.eos) if token is not None]
    if cut.resume:
        require_rereadable(sources)
    shards = ShardWriter(
        output,
        vocabulary,
        cut.shard_tokens,
        layout=cut.layout,
        added={token_id(vocabulary, token) for token in around},
        run=encoding_key(sources, options, special),
        resume=cut.resume,
    )
    if cut.resume:
        progress = ShardNames(output).progress
        report.line(
            f"resuming from {progress}: {shards.kept:,} shards are finished"
            if shards.kept
            else f"note: no finished shard in {progress} to resume from: starting from scratch"
        )
    return shards
