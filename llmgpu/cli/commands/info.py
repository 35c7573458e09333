"""``llmgpu info``: the adapters of this machine, or the content of a vocabulary."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import TEXT, output_options


@click.command()
@click.argument("vocab", required=False)
@click.option("--tokens", is_flag=True, help="List the tokens: id and bytes.")
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="List only N tokens.")
@click.option("--search", type=TEXT, metavar="TEXT", help="List only tokens that contain TEXT.")
@output_options
def info(**options: Any) -> None:
    """Show the adapters of this machine, or facts about the vocabulary VOCAB.

    \b
    Example:
      llmgpu info
      llmgpu info v.bin
      llmgpu info cl100k
      llmgpu info v.bin --tokens --search the --first 20
    """
    from llmgpu.cli import info

    info.info(**options)
