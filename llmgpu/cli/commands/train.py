"""``llmgpu train``: text or token files in, a language model out."""

from __future__ import annotations

from typing import Any

import click

from llmgpu.cli.option_files import ConfiguredCommand
from llmgpu.cli.options import (
    VOCAB_HELP,
    chat_options,
    corpus_options,
    device_option,
    option_group,
    options_of,
    output_options,
    token_dtype_option,
)
from llmgpu.cli.source_options import source_options
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
    "precision",
    "learning_rate",
    "min_learning_rate",
    "warmup_steps",
    "decay_steps",
    "lora_alpha",
    "lora_targets",
    "corpus_weights",
    "table_rate",
)  # their defaults follow from others

_PRESET_STEPS, _PRESET_BATCHES = (
    ", ".join(f"{name}: {count}" for name, count in of_preset.items())
    for of_preset in (PRESET_STEPS, PRESET_BATCHES)
)
_OPTIMIZERS = "; ".join(f"{name} {summary}" for name, summary in OPTIMIZERS.summaries.items())

# Names, fields of `TrainOptions`, types and help.
_TRAINING_OPTIONS = (
    ("--steps", "steps", COUNT,
     f"Number of optimizer steps.  [default: {TrainOptions.steps}; {_PRESET_STEPS}]"),
    ("--batch-size", "batch_size", COUNT,
     f"Sequences per batch.  [default: {TrainOptions.batch_size}; {_PRESET_BATCHES}]"),
    ("--grad-accum", "grad_accum", COUNT,
     "Batches per step; more tokens per step in the same memory."),
    ("--lr", "learning_rate", click.FLOAT,
     "Peak learning rate.  [default: 0.5 / --dim, up to 0.01]"),
    ("--min-lr", "min_learning_rate", click.FLOAT,
     "Final learning rate.  [default: 0]"),
    ("--table-rate", "table_rate", click.FLOAT,
     "Learning rate of the embedding table and output layer, as a multiple of --lr.  "
     "[default: 10 with muon, else 1; 1 with --init]"),
    ("--schedule", "schedule", click.Choice(SCHEDULES),
     "Learning-rate schedule: cosine decay, or constant until the last --decay-steps (wsd)."),
    ("--decay-steps", "decay_steps", COUNT,
     "Length of the decay, for wsd.  [default: a fifth of --steps]"),
    ("--initialisation", "initialisation", click.Choice(INITIALISATIONS),
     "Initial weights: one scale for all, or scaled by fan-in, output projections zero."),
    ("--sync-every", "sync_every", click.IntRange(min=0),
     "Steps each worker takes alone between exchanges of weights; 0: exchange gradients in "
     "every step."),
    ("--outer-lr", "outer_learning_rate", click.FLOAT,
     "With --sync-every, learning rate of the outer step."),
    ("--outer-momentum", "outer_momentum", click.FLOAT,
     "With --sync-every, momentum of the outer step."),
    ("--warmup-steps", "warmup_steps", click.IntRange(min=0),
     "Linear warm-up steps.  [default: a tenth of --steps, up to 100]"),
    ("--weight-decay", "weight_decay", click.FLOAT, "Weight decay, applied to matrices only."),
    ("--beta1", "beta1", click.FLOAT, "Decay of the mean of gradients."),
    ("--beta2", "beta2", click.FLOAT, "Decay of the mean of squared gradients."),
    ("--grad-clip", "grad_clip", click.FLOAT,
     "Clip the global gradient norm to this; 0 disables it."),
    ("--label-smoothing", "label_smoothing", click.FLOAT,
     "Share of each target's probability to spread over all tokens."),
    ("--z-loss", "z_loss", click.FLOAT,
     "Weight of the penalty on the squared log-sum-exp of logits."),
    ("--optimizer", "optimizer", click.Choice(list(OPTIMIZERS)),
     f"{_OPTIMIZERS}.  [default: muon; adamw with --init]"),
    ("--lora-rank", "lora_rank", click.IntRange(min=0),
     "With --init, train adapters of this rank instead of the weights; 0: no adapters."),
    ("--lora-alpha", "lora_alpha", click.FLOAT,
     "Scale adapters by this divided by --lora-rank.  [default: twice --lora-rank]"),
    ("--lora-targets", "lora_targets", TEXT,
     f"Matrices to adapt, separated by commas: {', '.join(LORA_TARGETS)}.  [default: all]"),
    ("--precision", "precision", click.Choice(PRECISIONS),
     "f16 uses half-precision matrix products (needs shader-f16).  [default: f16 for all but small "
     "models on matrix units (llmgpu[dawn]), else f32]"),
    ("--weights", "corpus_weights", TEXT,
     "Share of the sequences to draw from each name in CORPUS: 0.7,0.3."),
    ("--seed", "seed", click.IntRange(min=0),
     "Random seed for the initial weights and the order of the text."),
    ("--eval-fraction", "evaluation_fraction", click.FLOAT,
     "Share of the text to hold out for evaluation."),
    ("--eval-parts", "evaluation_parts", COUNT,
     "Take the held-out text from up to this many places."),
    ("--eval-batches", "evaluation_batches", COUNT,
     "Evaluate on at most this many batches."),
)  # fmt: skip


# The preset gives those that are left out.
_model_options = option_group(
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
                 help="Activation function. Other tools can't open gelu models (no gate)."),
)  # fmt: skip


_INTERVALS = (
    ("--log-interval", "log", COUNT, "Log every N steps."),
    ("--eval-interval", "evaluation", COUNT, "Evaluate every N steps."),
    ("--save-interval", "save", COUNT, "Save a checkpoint every N steps."),
    ("--keep", "keep", COUNT, "Keep this many of the newest checkpoints."),
    ("--sample-every", "sample", COUNT,
     "Generate a sample every N steps (also written to samples.jsonl)."),
    ("--peak-tflops", "peak_teraflops", click.FloatRange(min=0, min_open=True),
     "Peak speed of the device, in TFLOPS; logs the share in use (mfu)."),
)  # fmt: skip

_options = option_group(
    click.option("--vocab", metavar="VOCAB",
                 help=f"{VOCAB_HELP}  [default: the model's, with --init]"),
    click.option("--init", metavar="FOLDER",
                 help="Start from this model: a run folder or a Hugging Face checkpoint."),
    click.option("--config", metavar="FILE",
                 help="Read options from this TOML file, without the dashes: lr = 3e-4; CORPUS is "
                 "corpus."),
    click.option("--output", "-o", required=True, metavar="FOLDER", help="Run folder."),
    click.option("--resume", is_flag=True,
                 help="Resume from the newest checkpoint in --output, with the run's options."),
    click.option("--eval-corpus", metavar="FILE",
                 help="Evaluate on this text or token file instead of a share of CORPUS."),
    click.option("--force", is_flag=True, help="Replace the run in --output."),
    click.option("--eos", type=TEXT, metavar="ID|TEXT",
                 help="Token to append to each document.  [default: <|endoftext|> or similar, if "
                 "present]"),
    _model_options,
    options_of(TrainOptions, _TRAINING_OPTIONS, _DERIVED),
    click.option("--sparse-embedding", is_flag=True,
                 help="Update only the embedding rows of tokens in the batch (needs --untied)."),
    click.option("--document-mask/--no-document-mask", default=TrainOptions.document_mask,
                 show_default=True, help="Keep attention within documents."),
    click.option("--recompute", is_flag=True,
                 help="Recompute activations in the backward pass: less memory, more time, same "
                 "result."),
    options_of(Intervals, _INTERVALS, ("sample", "peak_teraflops")),
    token_dtype_option,
    source_options,
    corpus_options,
    chat_options,
    device_option,
    output_options,
)  # fmt: skip


@click.command(cls=ConfiguredCommand)
@click.argument("corpus", nargs=-1)
@_options
def train(**options: Any) -> None:
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
    from llmgpu.cli import train

    train.train(**options)
