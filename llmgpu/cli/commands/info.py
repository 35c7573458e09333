"""``llmgpu info``: the adapters of this machine, or what is in a file."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import force_option, option_group, output_options
from llmgpu.cli.values import TEXT

_options = option_group(
    click.option("--tokens", is_flag=True, help="List the tokens: id and text."),
    click.option("--merges", is_flag=True, help="List the merges in order: id and both parts."),
    click.option("--first", type=click.IntRange(min=1), metavar="N",
                 help="List only N tokens or merges."),
    click.option("--search", type=TEXT, metavar="REGEX",
                 help="List only tokens whose text matches this regular expression anywhere."),
    click.option("--id", "ids", type=click.IntRange(min=0), multiple=True, metavar="ID",
                 help="List only this token. Repeatable."),
    click.option("--report", metavar="PAGE",
                 help="Write an HTML page about the vocabulary: token lengths, scripts and the "
                 "longest tokens."),
    click.option("--on", "texts", multiple=True, metavar="PATH",
                 help="Text for --report, which then plots bytes per token by number of merges. "
                 "Repeatable."),
    force_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("file", required=False)
@_options
def info(**options: Any) -> None:
    """Show the GPUs of this machine, or describe FILE.

    FILE is a vocabulary (in any supported format, or a name such as cl100k), a run folder or model
    folder, a file of word counts, a token file or a manifest of shards.

    \b
    Examples:
      llmgpu info
      llmgpu info v.bin
      llmgpu info cl100k --tokens --search '(?i)^ ?the' --first 20
      llmgpu info v.bin --id 264 --json
      llmgpu info v.bin --merges --first 100
      llmgpu info v.bin --report v.html --on corpus.txt
      llmgpu info corpus.bin
      llmgpu info run
    """
    from llmgpu.cli import info

    info.info(**options)
