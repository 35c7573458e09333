"""``llmgpu merge-word-counts`` and ``llmgpu merge-shards``: the work of parts put together."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import force_option, option_group, output_options
from llmgpu.cli.values import FILE_WEIGHT

_merge_word_counts_options = option_group(
    click.option("--output", "-o", required=True, metavar="FILE", help="Output file."),
    click.option("--weight", "weights", type=FILE_WEIGHT, multiple=True, metavar="COUNTS=N",
                 help="Count this file N times. Repeatable."),
    force_option,
    output_options,
)  # fmt: skip


@click.command("merge-word-counts")
@click.argument("counts", nargs=-1, required=True, metavar="COUNTS...")
@_merge_word_counts_options
def merge_word_counts(**options: Any) -> None:
    """Add up word counts written by bpe-train --counts-only.

    Memory use does not grow with the number of words; a temporary file is as large as the result.

    \b
    Examples:
      llmgpu merge-word-counts 1-of-2.counts 2-of-2.counts -o all.counts
      llmgpu merge-word-counts web.counts code.counts --weight code.counts=3 -o mix.counts
    """
    from llmgpu.cli import merging

    merging.merge_word_counts(**options)


_merge_shards_options = option_group(
    click.option("--output", "-o", required=True, metavar="MANIFEST",
                 help="Manifest to write, in the same folder as the shards."),
    force_option,
    output_options,
)  # fmt: skip


@click.command("merge-shards")
@click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...")
@_merge_shards_options
def merge_shards(**options: Any) -> None:
    """Write one manifest for the shards of all parts written by tokenize --part.

    The shards are not changed. Read in order, they hold the same ids as one run over all the text.

    \b
    Example:
      llmgpu merge-shards tokens-*-of-8.json -o tokens.json
    """
    from llmgpu.cli import merging

    merging.merge_shards(**options)
