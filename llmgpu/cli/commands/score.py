"""``llmgpu score``: how likely a model finds texts."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import corpus_options, device_option, output_options
from llmgpu.cli.source_options import source_options
from llmgpu.cli.values import COUNT


@click.command()
@click.argument("model", metavar="FOLDER")
@click.argument("paths", nargs=-1, metavar="[FILE...|-]")
@click.option(
    "--window",
    type=COUNT,
    help="Tokens that the model sees at a time.  [default: its longest sequence, up to 2048]",
)
@click.option(
    "--stride",
    type=COUNT,
    help="Tokens between two windows of a longer document.  [default: half a window]",
)
@click.option("--per-token", is_flag=True, help="Add the ids and the log-likelihood of each.")
@source_options
@corpus_options
@device_option
@output_options
def score(**options: Any) -> None:
    """Score documents with the model in FOLDER: of a run, or a Hugging Face checkpoint.

    Writes a JSON line for each document: its tokens, their log-likelihood (natural logarithm),
    perplexity and bits per byte. The sums over all documents go to stderr.

    \b
    Example:
      llmgpu score run held-out.txt
      llmgpu score SmolLM2-135M 'data/*.jsonl' --window 1024 --stride 256 > scores.jsonl
    """
    from llmgpu.cli import score

    score.score(**options)
