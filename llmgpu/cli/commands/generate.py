"""``llmgpu generate``: continue a prompt with a trained model."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.backend import select_early
from llmgpu.cli.options import device_option, option_group, options_of, output_options
from llmgpu.cli.values import COUNT, TEXT
from llmgpu.lm.options import PRECISIONS, SamplingOptions

_SAMPLING = (
    ("--temperature", "temperature", click.FLOAT,
     "Lower values are more predictable; 0 always takes the most likely token."),
    ("--top-k", "top_k", click.INT,
     "Sample from this many of the most likely tokens; 0: from all tokens."),
    ("--top-p", "top_p", click.FLOAT,
     "Sample from the most likely tokens that add up to this probability."),
    ("--seed", "seed", click.INT,
     "Random seed; the same seed gives the same text on the same device."),
    ("--repetition-penalty", "repetition_penalty", click.FLOAT,
     "Penalize tokens that occurred before: 1.1 slightly; 1: no penalty."),
)  # fmt: skip

_options = option_group(
    click.option("-p", "--prompt", type=TEXT, metavar="TEXT",
                 help="Text to continue; - reads standard input, the default if it is a pipe.  "
                 "[default: start a new document]"),
    click.option("-n", "--max-new-tokens", type=COUNT, default=200, show_default=True,
                 help="Generate at most this many tokens."),
    click.option("--prompts", metavar="FILE",
                 help="Continue each line of FILE, or of standard input (-), or each object of a "
                 ".jsonl file; writes JSON lines."),
    click.option("--prompt-field", type=TEXT, metavar="NAME",
                 help="Read --prompts as JSON lines with the prompt in this field.  [default: "
                 "prompt, for .jsonl]"),
    click.option("--batch-size", type=COUNT, default=8, show_default=True,
                 help="Number of --prompts to continue at a time."),
    click.option("--chat", is_flag=True,
                 help="Treat each prompt as a user message, or as the messages in --prompts, and "
                 "print only the reply."),
    click.option("--chat-template", metavar="FILE",
                 help="Jinja template for --chat.  [default: the model's, else ChatML]"),
    click.option("--stop", type=TEXT, multiple=True, metavar="TEXT",
                 help="Stop before this text. Repeatable."),
    options_of(SamplingOptions, _SAMPLING),
    click.option("--logprobs", "log_probabilities", is_flag=True,
                 help="Include the log-probability of each token in the output of --prompts or "
                 "--json."),
    click.option("--precision", type=click.Choice(PRECISIONS), default="f32", show_default=True,
                 help="f16 rounds weights to half precision: half the memory traffic."),
    click.option("--ignore-eos", is_flag=True, help="Continue past the end-of-document token."),
    device_option,
    output_options,
)  # fmt: skip


@click.command()
@click.argument("run", metavar="FOLDER")
@_options
def generate(**options: Any) -> None:
    """Continue a prompt with the model in FOLDER: a run, a checkpoint or a Hugging Face model.

    Writes the prompt and then the text to stdout as it is generated. A character made of several
    tokens is written once it is complete.

    \b
    Examples:
      llmgpu generate run --prompt 'Once upon a time'
      llmgpu generate run --prompt 'Once upon a time' --temperature 0 --max-new-tokens 50
      echo 'Once upon a time' | llmgpu generate run -n 50
      llmgpu generate run/step-00000100 --top-k 0 --top-p 0.9 --seed 1
      llmgpu generate run --chat --prompt 'What is a token?'
      llmgpu generate run --prompts questions.jsonl --stop 'Question:' --logprobs > answers.jsonl
    """
    select_early(options["device"], auto=True, matrices=True)
    from llmgpu.cli import generate

    generate.generate(**options)
