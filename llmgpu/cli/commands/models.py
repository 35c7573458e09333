"""``llmgpu generate`` and ``llmgpu score``: write texts with a model, and score texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgpu.backend import Opening
from llmgpu.cli import groups
from llmgpu.cli.groups import FileOptions, ReadingOptions
from llmgpu.cli.options import command
from llmgpu.lm.options import PRECISIONS, Precision, SamplingOptions
from llmgpu.option_fields import argument, group, option


def _open_device(values: Mapping[str, Any]) -> Opening:
    """Open the device that runs a model."""
    opening = Opening(values["device"], matrices=True)
    opening.begin()
    return opening


@command("generate", "generate:generate", opens=_open_device)
class GenerateCommand:
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

    # fmt: off
    run: str = argument("FOLDER")
    prompt: str | None = option(
        None, "text",
        "Text to continue; - reads standard input, the default if it is a pipe.",
        "-p", "--prompt", metavar="TEXT", default_words="start a new document")
    max_new_tokens: int = option(
        200, "count", "Generate at most this many tokens.", "-n", "--max-new-tokens")
    prompts: str | None = option(
        None, str,
        "Continue each line of FILE, or of standard input (-), or each object of a .jsonl file; "
        "writes JSON lines.", metavar="FILE")
    prompt_field: str | None = option(
        None, "text", "Read --prompts as JSON lines with the prompt in this field.", metavar="NAME",
        default_words="prompt, for .jsonl", needs=("prompts",))
    batch_size: int = option(
        8, "count", "Number of --prompts to continue at a time.", needs=("prompts",))
    chat: bool = option(
        False, bool,
        "Treat each prompt as a user message, or as the messages in --prompts, and print only the "
        "reply.")
    chat_template: str | None = option(
        None, str, "Jinja template for --chat.", metavar="FILE",
        default_words="the model's, else ChatML")
    stop: tuple[str, ...] = option(
        (), "text", "Stop before this text. Repeatable.", metavar="TEXT", many=True)
    sampling: SamplingOptions = group(SamplingOptions)
    precision: Precision = option(
        "f32", PRECISIONS, "f16 rounds weights to half precision: half the memory traffic.")
    ignore_eos: bool = option(False, bool, "Continue past the end-of-document token.")
    device: str = groups.device()
    # fmt: on


@command("score", "score:score", opens=_open_device)
class ScoreCommand:
    """Score documents with the model in FOLDER, a run folder or a Hugging Face checkpoint.

    Writes one JSON line per document: number of tokens, log-likelihood (natural logarithm),
    perplexity and bits per byte. The totals go to stderr.

    \b
    Examples:
      llmgpu score run held-out.txt
      llmgpu score SmolLM2-135M 'data/*.jsonl' --window 1024 --stride 256 > scores.jsonl
    """

    # fmt: off
    model: str = argument("FOLDER")
    paths: tuple[str, ...] = argument("[FILE...|-]", many=True)
    window: int | None = option(
        None, "count", "Tokens the model sees at a time.",
        default_words="its sequence length, up to 2048")
    stride: int | None = option(
        None, "count", "Tokens between the starts of two windows.",
        default_words="half of --window")
    per_token: bool = option(False, bool, "Also write each token's id and log-likelihood.")
    files: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    device: str = groups.device()
    # fmt: on
