"""``llmgpu merge-word-counts`` and ``llmgpu merge-shards``: the work of parts put together."""

from __future__ import annotations

import re
from typing import Any

import click

from llmgpu.cli.options import force_option, output_options
from llmgpu.input_files import quote


class FileWeight(click.ParamType[tuple[str, int]]):
    """A file and how many times it counts: code.counts=3. The last = counts."""

    name = "file weight"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Parse the name and the number."""
        if isinstance(value, tuple):
            return value
        file, _, number = str(value).rpartition("=")
        if not file or not re.fullmatch(r"0*[1-9][0-9]{0,8}", number):
            shown = quote(str(value))
            self.fail(f"{shown} is not a file and a number; write code.counts=3", param, ctx)
        return file, int(number)


@click.command("merge-word-counts")
@click.argument("counts", nargs=-1, required=True, metavar="COUNTS...")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE",
    help="File of word counts to write.",
)
@click.option(
    "--weight",
    "weights",
    type=FileWeight(),
    multiple=True,
    metavar="COUNTS=N",
    help="Count what is in this file N times. Repeatable.",
)
@force_option
@output_options
def merge_word_counts(**options: Any) -> None:
    """Add up files of word counts, as bpe-train --counts-only writes them.

    Memory does not grow with the number of words; a temporary file takes as much as the result.

    \b
    Example:
      llmgpu merge-word-counts 1-of-2.counts 2-of-2.counts -o all.counts
      llmgpu merge-word-counts web.counts code.counts --weight code.counts=3 -o mix.counts
    """
    from llmgpu.cli import merging

    merging.merge_word_counts(**options)


@click.command("merge-shards")
@click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="MANIFEST",
    help="Manifest to write, in the folder of the shards.",
)
@force_option
@output_options
def merge_shards(**options: Any) -> None:
    """Write one manifest for the shards of all parts that tokenize --part wrote.

    The shards stay as they are. Read in order, their ids are those of one run over the whole text.

    \b
    Example:
      llmgpu merge-shards tokens-*-of-8.json -o tokens.json
    """
    from llmgpu.cli import merging

    merging.merge_shards(**options)
