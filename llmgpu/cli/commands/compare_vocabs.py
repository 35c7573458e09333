"""``llmgpu compare-vocabs``: what two vocabularies share, and what they make of a text."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import corpus_options, device_option, option_group, output_options

_options = option_group(
    click.option("--on", "texts", multiple=True, metavar="PATH",
                 help="Also compare on this text: a file, folder or glob, or - for standard input. "
                 "Repeatable."),
    corpus_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command("compare-vocabs")
@click.argument("first", metavar="VOCAB")
@click.argument("second", metavar="VOCAB")
@_options
def compare_vocabs(**options: Any) -> None:
    """Compare two vocabularies: tokens by script and length and, with --on, bytes per token.

    Each VOCAB is anything that --vocab takes in other commands.

    \b
    Examples:
      llmgpu compare-vocabs v.bin cl100k
      llmgpu compare-vocabs old.bin new.bin --on data --json
    """
    from llmgpu.cli import compare_vocabs

    compare_vocabs.compare_vocabs(**options)
