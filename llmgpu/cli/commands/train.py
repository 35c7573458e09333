"""``llmgpu train``: text or token files in, a language model out."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.chat_options import chat_options
from llmgpu.cli.option_files import ConfiguredCommand
from llmgpu.cli.options import (
    VOCAB_HELP,
    Decorated,
    add_options,
    corpus_options,
    device_option,
    options_of,
    output_options,
)
from llmgpu.cli.source_options import source_options, token_dtype_option
from llmgpu.cli.values import COUNT, TEXT
from llmgpu.lm.config import ACTIVATIONS, PRESETS
from llmgpu.lm.optimizers import OPTIMIZERS
from llmgpu.lm.options import (
    INITIALISATIONS,
    LORA_TARGETS,
    PRECISIONS,
    PRESET_BATCHES,
    PRESET_STEPS,
    SCHEDULES,
    Intervals,
    TrainOptions,
)

_DERIVED = (
    "steps",
    "batch_size",
    "optimizer",
    "learning_rate",
    "min_learning_rate",
    "warmup_steps",
    "decay_steps",
    "lora_alpha",
    "lora_targets",
    "corpus_weights",
)  # their defaults follow from others


def _model_options(command: Decorated) -> Decorated:
    """Add the sizes of the model; the preset gives those that are left out."""
    options = (
        click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny",
                     show_default=True, help="Model sizes to start from."),
        click.option("--dim", type=COUNT, help="Width of the model."),
        click.option("--layers", type=COUNT, help="Number of layers."),
        click.option("--heads", type=COUNT, help="Attention heads; must divide --dim."),
        click.option("--kv-heads", type=COUNT,
                     help="Key/value heads.  [default: same as --heads]"),
        click.option("--ffn-dim", type=COUNT, help="Width of the feed-forward network."),
        click.option("--seq-len", type=COUNT, help="Tokens per sequence."),
        click.option("--tied/--untied", default=None,
                     help="Use the embedding table as the output layer.  [default: tied]"),
        click.option("--activation", type=click.Choice(ACTIVATIONS),
                     help="Activation; gelu has no gate, and other tools can't open such a model."),
    )  # fmt: skip
    return add_options(command, options)


def _training_options(command: Decorated) -> Decorated:
    """Add how the model is trained; the defaults are those of `TrainOptions`."""
    number = click.FLOAT
    steps, batches = (
        ", ".join(f"{name}: {count}" for name, count in of_preset.items())
        for of_preset in (PRESET_STEPS, PRESET_BATCHES)
    )
    optimizers = "; ".join(f"{name} {summary}" for name, summary in OPTIMIZERS.summaries.items())
    table = (
        ("--steps", "steps", COUNT,
         f"Number of optimizer steps.  [default: {TrainOptions.steps}; {steps}]"),
        ("--batch-size", "batch_size", COUNT,
         f"Sequences per batch.  [default: {TrainOptions.batch_size}; {batches}]"),
        ("--grad-accum", "grad_accum", COUNT,
         "Batches per step: more tokens per step in the same memory."),
        ("--lr", "learning_rate", number,
         "Peak learning rate.  [default: 0.5 / width, up to 0.01]"),
        ("--min-lr", "min_learning_rate", number,
         "Final learning rate.  [default: 0]"),
        ("--schedule", "schedule", click.Choice(SCHEDULES),
         "How the learning rate falls: by a cosine, or stays up to the last --decay-steps (wsd)."),
        ("--decay-steps", "decay_steps", COUNT,
         "Steps that the rate falls in, with wsd.  [default: a fifth of --steps]"),
        ("--initialisation", "initialisation", click.Choice(INITIALISATIONS),
         "Initial matrices of layers: all alike, or by their inputs and with zeros (fan-in)."),
        ("--sync-every", "sync_every", click.IntRange(min=0),
         "Let each worker take this many steps by itself between exchanges; 0: exchange in each."),
        ("--outer-lr", "outer_learning_rate", number,
         "With --sync-every, learning rate of the workers' mean change."),
        ("--outer-momentum", "outer_momentum", number,
         "With --sync-every, how much of the outer step's momentum is kept."),
        ("--warmup-steps", "warmup_steps", click.IntRange(min=0),
         "Steps of linear warm-up.  [default: a tenth of --steps, up to 100]"),
        ("--weight-decay", "weight_decay", number, "Weight decay, applied to matrices only."),
        ("--beta1", "beta1", number, "Decay of the mean of gradients."),
        ("--beta2", "beta2", number, "Decay of the mean of squared gradients."),
        ("--grad-clip", "grad_clip", number,
         "Clip the global gradient norm to this; 0 disables it."),
        ("--label-smoothing", "label_smoothing", number,
         "Share of each target spread over all tokens."),
        ("--z-loss", "z_loss", number,
         "Weight of the penalty on the squared log-sum-exp of the logits."),
        ("--optimizer", "optimizer", click.Choice(list(OPTIMIZERS)),
         f"{optimizers}.  [default: muon; with --init adamw]"),
        ("--lora-rank", "lora_rank", click.IntRange(min=0),
         "With --init, train adapters of this rank in place of the weights; 0: none."),
        ("--lora-alpha", "lora_alpha", number,
         "Adapters count this divided by --lora-rank.  [default: twice --lora-rank]"),
        ("--lora-targets", "lora_targets", TEXT,
         f"Matrices that have adapters.  [default: {','.join(LORA_TARGETS)}]"),
        ("--precision", "precision", click.Choice(PRECISIONS),
         "f16 rounds the factors of matrix products (needs shader-f16; fast with llmgpu[dawn])."),
        ("--weights", "corpus_weights", TEXT,
         "Draw sequences from token files in these shares, one for each CORPUS: 0.7,0.3."),
        ("--seed", "seed", click.IntRange(min=0),
         "Seed of the initial weights and of the order of the text."),
    )  # fmt: skip
    evaluation = (
        ("--eval-fraction", "evaluation_fraction", number,
         "Share of the text held out for evaluation."),
        ("--eval-parts", "evaluation_parts", COUNT,
         "Take what is held out from up to this many places of the text."),
        ("--eval-batches", "evaluation_batches", COUNT,
         "Evaluate on at most this many batches."),
    )  # fmt: skip
    sparse = click.option(
        "--sparse-embedding",
        is_flag=True,
        help="Update only the embedding rows of tokens in the batch (needs --untied).",
    )
    mask = click.option(
        "--document-mask/--no-document-mask",
        default=TrainOptions.document_mask,
        show_default=True,
        help="Attention does not reach back beyond the token between documents.",
    )
    recompute = click.option(
        "--recompute",
        is_flag=True,
        help="Compute activations again in the backward pass: less memory, more time, same result.",
    )
    options = options_of(TrainOptions, (*table, *evaluation), _DERIVED)
    return add_options(command, [*options, sparse, mask, recompute])


def _interval_options(command: Decorated) -> Decorated:
    """Add how often to log, evaluate and save, in steps."""
    table = (
        ("--log-interval", "log", COUNT, "Log every NUMBER steps."),
        ("--eval-interval", "evaluation", COUNT, "Evaluate every NUMBER steps."),
        ("--save-interval", "save", COUNT, "Save a checkpoint every NUMBER steps."),
        ("--keep", "keep", COUNT, "Keep this many of the newest checkpoints."),
        (
            "--sample-every",
            "sample",
            COUNT,
            "Let the model write a text every NUMBER steps, to samples.jsonl, too.",
        ),
        (
            "--peak-tflops",
            "peak_teraflops",
            click.FloatRange(min=0, min_open=True),
            "10^12 operations a second that the device can do: logs the share in use (mfu).",
        ),
    )
    return add_options(command, options_of(Intervals, table, ("sample", "peak_teraflops")))


@click.command(cls=ConfiguredCommand)
@click.argument("corpus", nargs=-1)
@click.option("--vocab", metavar="VOCAB", help=f"{VOCAB_HELP}  [default: the model's, with --init]")
@click.option(
    "--init",
    metavar="FOLDER",
    help="Begin with the weights of this model: a run, or a Hugging Face checkpoint.",
)
@click.option(
    "--config",
    metavar="FILE",
    help="Read options from this TOML file, by the names here (lr = 3e-4); corpus is CORPUS.",
)
@click.option("--output", "-o", required=True, metavar="FOLDER", help="Run folder.")
@click.option(
    "--resume",
    is_flag=True,
    help="Resume from the newest checkpoint in --output, with the options that the run was given.",
)
@click.option(
    "--eval-corpus",
    metavar="FILE",
    help="Evaluate on this text, or token file, instead of a part of CORPUS.",
)
@click.option("--force", is_flag=True, help="Replace the run in --output.")
@click.option(
    "--eos",
    type=TEXT,
    metavar="ID|TEXT",
    help="Token to put after each document.  [default: <|endoftext|> or similar, if present]",
)
@_model_options
@_training_options
@_interval_options
@token_dtype_option
@source_options
@corpus_options
@chat_options
@device_option
@output_options
def train(**options: Any) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`.

    The run folder receives the log (log.jsonl), the loss curve (loss.svg) and checkpoints
    (step-00000100 and so on), which Hugging Face transformers opens as Llama models. It keeps the
    options (options.toml), so that --resume needs nothing but the folder.

    \b
    Example:
      llmgpu train --vocab v.bin corpus.txt -o run
      llmgpu train --vocab v.bin tokens.json -o run --preset small --steps 5000
      llmgpu train -o run --resume
      llmgpu train --init SmolLM2-135M corpus.txt -o tuned --steps 200
      mpiexec -n 2 llmgpu train --vocab v.bin tokens.json -o run --grad-accum 8
      llmgpu train --config run.toml -o run --lr 1e-3
      llmgpu train --vocab v.bin 'data/*.jsonl' -o run --dim 512 --heads 8 --layers 8 --lr 3e-4
    """
    from llmgpu.cli import train

    train.train(**options)
