"""``llmgpu tokenize``: text to ids, and back."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.backend import TOKENIZING_FROM
from llmgpu.bpe.vocabulary import MATCH_RULES
from llmgpu.cli.options import (
    chat_options,
    corpus_options,
    device_option,
    encoding_threads_option,
    force_option,
    open_device_early,
    option_group,
    output_options,
    part_option,
    special_options,
    token_dtype_option,
    vocab_option,
)
from llmgpu.cli.source_options import source_options
from llmgpu.cli.values import SHARE, TOKEN_COUNT
from llmgpu.tokens.formats import FORMATS, SHOWN, describe_formats
from llmgpu.tokens.layouts import LAYOUTS, describe_layouts

_options = option_group(
    vocab_option,
    click.option("--output", "-o", default="-", show_default=True, metavar="FILE",
                 help="Output file; - for stdout."),
    click.option("--format", "format_name", type=click.Choice([*FORMATS, SHOWN]),
                 help=f"Format of the ids: {describe_formats()}; or {SHOWN}, one line per token "
                 "with its id and text (on a terminal, the text with its tokens in color).  "
                 "[default: by the extension of -o, else ids; detected with --decode]"),
    click.option("--match", type=click.Choice(MATCH_RULES),
                 help="How words become tokens: longest token first (greedy) or merges in order "
                 "(bpe).  [default: the vocabulary's rule]"),
    click.option("--decode", is_flag=True, help="Convert files of ids back to text."),
    click.option("--count", is_flag=True, help="Print only the number of tokens."),
    click.option("--line-documents", is_flag=True,
                 help="Make each line a document, and write it as it arrives."),
    encoding_threads_option,
    click.option("--layout", type=click.Choice(list(LAYOUTS)), default="raw", show_default=True,
                 help=f"Layout for --format bin: {describe_layouts()}."),
    click.option("--shard-tokens", type=TOKEN_COUNT, metavar="N",
                 help="Write shards of N tokens (100M, 1B): OUT-000000.bin, OUT-000001.bin, ..., "
                 "and the manifest OUT.json."),
    click.option("--split", type=SHARE, multiple=True, metavar="NAME=SHARE",
                 help="Write a random share of the documents to a separate file: val=0.01 puts 1% "
                 "of them into OUT-val.bin (val.bin next to train.bin). Repeatable."),
    click.option("--split-by", type=click.Choice(["documents", "position"]), default="documents",
                 show_default=True,
                 help="How --split selects text: random documents, or by position, for a text in "
                 "one file (val=0.1 is its last tenth, starting at a line)."),
    click.option("--chunk-tokens", type=TOKEN_COUNT, metavar="N",
                 help="Cut documents into chunks of N tokens; each chunk becomes a document."),
    click.option("--overlap", type=click.IntRange(min=0), default=0, show_default=True, metavar="K",
                 help="Start each chunk with the last K tokens of the previous one."),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True,
                 help="Random seed for --split and --shuffle."),
    click.option("--shuffle", is_flag=True,
                 help="Write documents in random order; needs 4 extra bytes of disk space per "
                 "token."),
    click.option("--max-tokens", type=TOKEN_COUNT, metavar="N",
                 help="Stop after N tokens (4096, 100M), even in the middle of a document."),
    click.option("--resume", is_flag=True,
                 help="Resume an interrupted run. The text is re-tokenized and compared with "
                 "finished shards, which are not rewritten."),
    token_dtype_option,
    part_option,
    force_option,
    special_options,
    source_options,
    corpus_options,
    chat_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE...|-]")
@_options
def tokenize(**options: Any) -> None:
    """Tokenize files, folders or globs; reads stdin by default. Each file is a document.

    \b
    Examples:
      llmgpu tokenize --vocab v.bin corpus.txt -o corpus.bin
      llmgpu tokenize --vocab v.bin 'data/*.jsonl' -o o.bin --shard-tokens 100M
      llmgpu tokenize --vocab v.bin docs.jsonl -o train.bin --split val=0.01
      llmgpu tokenize --vocab v.bin input.txt -o train.bin --split val=0.1 --split-by position
      llmgpu tokenize --vocab v.bin docs -o chunks.jsonl --chunk-tokens 512 --overlap 64
      llmgpu tokenize --vocab v.bin data -o o-%P.bin --shard-tokens 100M --part 3/8
      echo 'Hello world' | llmgpu tokenize --vocab v.bin --format tokens
      echo 'a line' | llmgpu tokenize --vocab v.bin
      tail -f log | llmgpu tokenize --vocab v.bin --line-documents
      llmgpu tokenize --vocab v.bin --decode -o text corpus.bin
    """
    open_device_early(options, options["files"], TOKENIZING_FROM)
    from llmgpu.cli import tokenize

    tokenize.tokenize(**options)
