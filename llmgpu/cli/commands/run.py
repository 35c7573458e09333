"""``llmgpu run``: a command in parts on the workers of an engine."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import output_options


@click.command("run")
@click.option(
    "--ray",
    required=True,
    metavar="auto|ADDRESS|local:N",
    help="The Ray cluster: the one that this machine is part of (auto), that at an address, or one "
    "of N workers that is started here and ends with the command (local:2).",
)
@click.option(
    "--parts",
    type=click.IntRange(min=1, max=999_999),
    metavar="N",
    show_default="4 for each worker",
    help="Number of parts to cut the work into.",
)
@click.option(
    "--cpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processors, and threads, of a part.",
)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@output_options
def run(**options: Any) -> None:
    """Run tokenize or bpe-train in parts on a Ray cluster, and put the parts together.

    All machines need the same files at the same paths, and llmgpu with Ray: pip install
    'llmgpu[ray]'. A part whose worker is lost is done again. The command is interrupted and run
    again as it is: parts that are finished are not done again. The files are those of --part and
    merge-shards or merge-word-counts.

    \b
    Example:
      llmgpu run --ray local:2 -- tokenize --vocab v.bin data -o t.bin --shard-tokens 100M
      llmgpu run --ray auto --parts 64 -- bpe-train data -o v.bin --vocab-size 32768
    """
    from llmgpu.cli import run

    run.run(**options)
