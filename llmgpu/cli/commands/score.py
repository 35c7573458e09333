"""``llmgpu score``: how likely a model finds texts."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.backend import select_early
from llmgpu.cli.options import corpus_options, device_option, option_group, output_options
from llmgpu.cli.source_options import source_options
from llmgpu.cli.values import COUNT

_options = option_group(
    click.option("--window", type=COUNT,
                 help="Tokens the model sees at a time.  [default: its sequence length, up to "
                 "2048]"),
    click.option("--stride", type=COUNT,
                 help="Tokens between the starts of two windows.  [default: half of --window]"),
    click.option("--per-token", is_flag=True,
                 help="Also write each token's id and log-likelihood."),
    source_options,
    corpus_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("model", metavar="FOLDER")
@click.argument("paths", nargs=-1, metavar="[FILE...|-]")
@_options
def score(**options: Any) -> None:
    """Score documents with the model in FOLDER, a run folder or a Hugging Face checkpoint.

    Writes one JSON line per document: number of tokens, log-likelihood (natural logarithm),
    perplexity and bits per byte. The totals go to stderr.

    \b
    Examples:
      llmgpu score run held-out.txt
      llmgpu score SmolLM2-135M 'data/*.jsonl' --window 1024 --stride 256 > scores.jsonl
    """
    select_early(options["device"], auto=True, matrices=True)
    from llmgpu.cli import score

    score.score(**options)
