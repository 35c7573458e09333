"""``llmgpu count``: the tokens of files, by one vocabulary or several."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.backend import TOKENIZING_FROM
from llmgpu.cli.options import (
    VOCAB_HELP,
    chat_options,
    corpus_options,
    device_option,
    encoding_threads_option,
    open_device_early,
    option_group,
    output_options,
    part_option,
    special_options,
)
from llmgpu.cli.source_options import source_options
from llmgpu.cli.values import TOKEN_COUNT

_options = option_group(
    click.option("--vocab", "vocabs", required=True, multiple=True, metavar="VOCAB",
                 help=f"{VOCAB_HELP} Repeatable: one column each."),
    click.option("--per", type=click.Choice(["file", "folder", "document", "total"]),
                 default="file", show_default=True,
                 help="Print one line per file or folder, or only the total; document prints how "
                 "long documents are: median, 90th and 99th percentile, and the share above powers "
                 "of two."),
    click.option("--line-documents", is_flag=True, help="Make each line a document."),
    click.option("--sort", type=click.Choice(["path", "tokens", "bytes"]),
                 help="Sort by path, or by tokens (of the first VOCAB) or bytes, largest first.  "
                 "[default: input order]"),
    click.option("--budget", type=TOKEN_COUNT, metavar="N",
                 help="Exit with code 3 if there are more than N tokens in total (50K, 2M)."),
    click.option("--budget-per-file", type=TOKEN_COUNT, metavar="N",
                 help="Exit with code 3 if a file has more than N tokens."),
    encoding_threads_option,
    part_option,
    special_options,
    chat_options,
    source_options,
    corpus_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH...|-]")
@_options
def count(**options: Any) -> None:
    """Count the tokens of files, folders or globs, or of a pipe: wc for tokens.

    \b
    Examples:
      llmgpu count --vocab v.bin corpus.txt
      llmgpu count --vocab cl100k --vocab o200k src --per folder --sort tokens
      llmgpu count --vocab v.bin corpus.jsonl --per document
      git diff | llmgpu count --vocab o200k --budget 8K
    """
    open_device_early(options, options["paths"], TOKENIZING_FROM)
    from llmgpu.cli import count

    count.count(**options)
