"""``llmgpu train``: train a language model on text or token files."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from llmgpu.cli import groups
from llmgpu.cli.groups import ChatOptions, FileOptions, ReadingOptions
from llmgpu.cli.option_files import ConfiguredCommand
from llmgpu.cli.options import command
from llmgpu.lm.config import PRESETS, ModelConfig
from llmgpu.lm.options import Intervals, TrainOptions
from llmgpu.option_fields import argument, group, option


@command("train", "train:train", ConfiguredCommand)
class TrainCommand:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`.

    The run folder receives the log (log.jsonl), the loss curve (loss.svg), checkpoints
    (step-00000100 and so on), which Hugging Face transformers can open as Llama models, and the
    options (options.toml) that --resume reads.

    \b
    Examples:
      llmgpu train --vocab v.bin corpus.txt -o run
      llmgpu train --vocab v.bin tokens.json -o run --preset small --steps 5000
      llmgpu train -o run --resume
      llmgpu train --init SmolLM2-135M corpus.txt -o tuned --steps 200
      mpiexec -n 2 llmgpu train --vocab v.bin tokens.json -o run --grad-accum 8
      llmgpu train --config run.toml -o run --lr 1e-3
      llmgpu train --vocab v.bin 'data/*.jsonl' -o run --dim 512 --heads 8 --layers 8 --lr 3e-4
    """

    # fmt: off
    corpus: tuple[str, ...] = argument(many=True)
    vocab: str | None = option(
        None, str, groups.VOCAB_HELP, metavar="VOCAB", default_words="the model's, with --init")
    init: str | None = option(
        None, str, "Start from this model: a run folder or a Hugging Face checkpoint.",
        metavar="FOLDER")
    config: str | None = option(
        None, str,
        "Read options from this TOML file, without the dashes: lr = 3e-4; CORPUS is corpus.",
        metavar="FILE")
    output: str = option(MISSING, str, "Run folder.", "--output", "-o", metavar="FOLDER")
    resume: bool = option(
        False, bool, "Resume from the newest checkpoint in --output, with the run's options.")
    eval_corpus: str | None = option(
        None, str, "Evaluate on this text or token file instead of a share of CORPUS.",
        metavar="FILE")
    force: bool = option(False, bool, "Replace the run in --output.")
    eos: str | None = option(
        None, "text", "Token to append to each document.", metavar="ID|TEXT",
        default_words="<|endoftext|> or similar, if present")
    preset: str = option("tiny", PRESETS, "Model sizes to start from.")
    model: dict[str, Any] = group(ModelConfig, as_values=True)
    training: dict[str, Any] = group(TrainOptions, as_values=True)
    intervals: Intervals = group(Intervals)
    token_dtype: str | None = groups.token_dtype()
    files: FileOptions = group(FileOptions)
    reading: ReadingOptions = group(ReadingOptions)
    chat: ChatOptions = group(ChatOptions)
    device: str = groups.device()
    # fmt: on
