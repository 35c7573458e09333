"""``llmgpu generate``: continue a prompt with a trained model."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.options import (
    COUNT,
    TEXT,
    Decorated,
    add_options,
    device_option,
    options_of,
    output_options,
)
from llmgpu.lm.options import SamplingOptions


def _sampling_options(command: Decorated) -> Decorated:
    """Add how tokens are sampled; the defaults are those of `SamplingOptions`."""
    table = (
        ("--temperature", "temperature", click.FLOAT,
         "Lower values are more predictable; 0 always takes the most likely token."),
        ("--top-k", "top_k", click.INT,
         "Sample from this many of the most likely tokens; 0: from all."),
        ("--top-p", "top_p", click.FLOAT,
         "Sample from the most likely tokens that together reach this probability."),
        ("--seed", "seed", click.INT,
         "Seed of the sampling; the same seed repeats a text on the same device."),
    )  # fmt: skip
    return add_options(command, options_of(SamplingOptions, table))


@click.command()
@click.argument("run", metavar="FOLDER")
@click.option(
    "--prompt",
    type=TEXT,
    metavar="TEXT",
    help="Text to continue; - reads it from standard input.  [default: start a new document]",
)
@click.option(
    "--max-new-tokens",
    type=COUNT,
    default=200,
    show_default=True,
    help="Generate at most this many tokens.",
)
@_sampling_options
@click.option("--ignore-eos", is_flag=True, help="Continue after the token that ends a document.")
@device_option
@output_options
def generate(**options: Any) -> None:
    """Continue a prompt with the model in FOLDER, a run folder or one of its checkpoints.

    Writes the prompt and then the text to stdout as it is generated. Tokens may end inside a
    character, which is written once it is complete.

    \b
    Example:
      llmgpu generate run --prompt 'Once upon a time'
      llmgpu generate run --prompt 'Once upon a time' --temperature 0 --max-new-tokens 50
      llmgpu generate run/step-00000100 --top-k 0 --top-p 0.9 --seed 1
    """
    from llmgpu.cli import generate

    generate.generate(**options)
