"""``llmgpu run``: a command in parts on the workers of an engine."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import option_group, output_options

_options = option_group(
    click.option("--ray", required=True, metavar="auto|ADDRESS|local:N",
                 help="Ray cluster: the one this machine belongs to (auto), the one at ADDRESS, or "
                 "a temporary one with N workers on this machine (local:2)."),
    click.option("--parts", type=click.IntRange(min=1, max=999_999), metavar="N",
                 help="Number of parts to split the work into.  [default: 4 per worker]"),
    click.option("--cpus", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                 help="CPUs and threads per part."),
    output_options,
)  # fmt: skip


@click.command("run")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@_options
def run(**options: Any) -> None:
    """Run tokenize or bpe-train in parts on a Ray cluster, and combine the results.

    All machines need the same files at the same paths, and llmgpu with Ray: pip install
    'llmgpu[ray]'. If a worker is lost, its part is retried. You can interrupt the command and run
    it again; finished parts are not repeated. It writes the same files as --part followed by
    merge-shards or merge-word-counts.

    \b
    Examples:
      llmgpu run --ray local:2 -- tokenize --vocab v.bin data -o t.bin --shard-tokens 100M
      llmgpu run --ray auto --parts 64 -- bpe-train data -o v.bin --vocab-size 32768
    """
    from llmgpu.cli import run

    run.run(**options)
