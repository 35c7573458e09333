"""The README.md of a checkpoint, which Hugging Face's hub shows as the model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgpu.input_files import printable
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.runs.records import StepRecord
from llmgpu.version import __version__

_LISTED = 10  # names of files


@dataclass(frozen=True)
class Origin:
    """What a model was made from: the command, the files of text or tokens, and the model."""

    command: str
    data: Sequence[str]
    init: str | None = None


def model_card(config: ModelConfig, origin: Origin, last: StepRecord) -> str:
    """Return the text; last: the record of the checkpoint's step."""
    numbers = [
        ("steps", f"{last.step:,}"),
        ("tokens", f"{last.tokens:,}"),
        ("training loss", f"{last.loss:.4f}"),
    ]
    for name, value in (
        ("validation loss", last.validation_loss),
        ("bits per byte of held-out text", last.bits_per_byte),
    ):
        if value is not None:
            numbers.append((name, f"{value:.4f}"))
    base = [] if origin.init is None else [f"It began with the weights of `{origin.init}`.", ""]
    more = len(origin.data) - _LISTED
    data = [f"- `{name}`" for name in origin.data[:_LISTED]]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- llmgpu",
        "---",
        "",
        f"A language model of {config.parameters:,} parameters, trained by llmgpu {__version__}.",
        "",
        *base,
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in numbers),
        "",
        "Trained on:",
        "",
        *data,
        *([f"- and {more:,} more"] if more > 0 else []),
        "",
        "The command:",
        "",
        "```sh",
        origin.command,
        "```",
    ]
    return "".join(f"{printable(line)}\n" for line in lines)
