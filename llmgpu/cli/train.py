"""``llmgpu train``: text or token files in, a language model out."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from llmgpu.backend import Backend, select_backend
from llmgpu.bpe.encoding.special_encoding import token_id
from llmgpu.bpe.interchange.open import find_vocabulary
from llmgpu.cli.console import Reporter, human_count, human_time, print_json
from llmgpu.cli.options import (
    TEXT,
    Decorated,
    add_options,
    corpus_options,
    device_option,
    id_or_text,
    make_corpus_options,
    output_options,
    piped_input,
    vocab_option,
)
from llmgpu.errors import InputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from llmgpu.lm.config import ACTIVATIONS, PRESETS
from llmgpu.lm.data.inputs import default_separator, open_tokens
from llmgpu.lm.optimizers import OPTIMIZERS
from llmgpu.lm.options import PRECISIONS, TrainOptions
from llmgpu.lm.runs.memory import host_memory, require_free, training_memory
from llmgpu.lm.runs.records import StepRecord
from llmgpu.lm.runs.run import Intervals, TrainingRun
from llmgpu.lm.runs.run_folder import TOKENS_NAME, RunFolder, open_run_folder
from llmgpu.lm.runs.settings import PRESET_STEPS, RunSettings, new_settings, resumed_settings
from llmgpu.memory import Memory, free_memory
from llmgpu.outputs import Output, check_outputs
from llmgpu.text.sources import resolve_sources

REPLACED = ("log.jsonl", "loss.svg", TOKENS_NAME, "step-*", ".step-*")  # what --force removes

_DERIVED = ("steps", "min_learning_rate", "warmup_steps")  # their defaults follow from others
_DEFAULTS = {
    field.name: field.default for field in fields(TrainOptions) if field.name not in _DERIVED
}
_READING = ("text_field", "encoding_errors", "doc_separators", "limit")
_INTERVALS = tuple(field.name for field in fields(Intervals))


def _model_options(command: Decorated) -> Decorated:
    """Add the sizes of the model; the preset gives those that are left out."""
    positive = click.IntRange(min=1)
    options = (
        click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny",
                     show_default=True, help="Model sizes to start from."),
        click.option("--dim", type=positive, help="Width of the model."),
        click.option("--layers", type=positive, help="Number of layers."),
        click.option("--heads", type=positive, help="Attention heads; must divide --dim."),
        click.option("--kv-heads", type=positive,
                     help="Key/value heads.  [default: same as --heads]"),
        click.option("--ffn-dim", type=positive, help="Width of the feed-forward network."),
        click.option("--seq-len", type=positive, help="Tokens per sequence."),
        click.option("--tied/--untied", default=None,
                     help="Use the embedding table as the output layer.  [default: tied]"),
        click.option("--activation", type=click.Choice(ACTIVATIONS),
                     help="Activation; gelu has no gate, and other tools can't open such a model."),
    )  # fmt: skip
    return add_options(command, options)


def _training_options(command: Decorated) -> Decorated:
    """Add how the model is trained; the defaults are those of `TrainOptions`."""
    positive, number = click.IntRange(min=1), click.FLOAT
    steps = ", ".join(f"{name}: {count}" for name, count in PRESET_STEPS.items())
    optimizers = "; ".join(f"{name} {each.summary}" for name, each in OPTIMIZERS.items())
    table = (
        ("--steps", "steps", positive,
         f"Number of optimizer steps.  [default: {TrainOptions.steps}; {steps}]"),
        ("--batch-size", "batch_size", positive, "Sequences per batch."),
        ("--grad-accum", "grad_accum", positive,
         "Batches per step: more tokens a step in the same memory."),
        ("--lr", "learning_rate", number, "Peak learning rate."),
        ("--min-lr", "min_learning_rate", number,
         "Final learning rate, after a cosine decay.  [default: a tenth of --lr]"),
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
         f"{optimizers}."),
        ("--precision", "precision", click.Choice(PRECISIONS),
         "f16 computes with half-precision copies of the matrices (needs shader-f16)."),
        ("--seed", "seed", click.IntRange(min=0),
         "Seed of the initial weights and of the order of the text."),
        ("--eval-fraction", "evaluation_fraction", number,
         "Share of the text held out for evaluation."),
        ("--eval-batches", "evaluation_batches", positive,
         "Evaluate on at most this many batches."),
    )  # fmt: skip
    options = [
        click.option(
            flag, name, type=kind, default=_DEFAULTS.get(name), show_default=True, help=text
        )
        for flag, name, kind, text in table
    ]
    sparse = click.option(
        "--sparse-embedding",
        is_flag=True,
        help="Update only the embedding rows of tokens in the batch (needs --untied).",
    )
    return add_options(command, [*options, sparse])


def _interval_options(command: Decorated) -> Decorated:
    """Add how often to log, evaluate and save, in steps."""
    table = (
        ("--log-interval", "log", "Log every this many steps."),
        ("--eval-interval", "evaluation", "Evaluate every this many steps."),
        ("--save-interval", "save", "Save a checkpoint every this many steps."),
        ("--keep", "keep", "Keep this many of the newest checkpoints."),
    )
    options = [
        click.option(
            flag,
            name,
            type=click.IntRange(min=1),
            default=getattr(Intervals, name),
            show_default=True,
            help=text,
        )
        for flag, name, text in table
    ]
    return add_options(command, options)


@click.command()
@click.argument("corpus", nargs=-1)
@vocab_option
@click.option("--output", "-o", required=True, metavar="FOLDER", help="Run folder.")
@click.option("--resume", is_flag=True, help="Resume from the newest checkpoint in --output.")
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
@corpus_options
@device_option
@output_options
@click.pass_context
def train(
    context: click.Context,
    /,
    corpus: tuple[str, ...],
    vocab: str,
    output: str,
    resume: bool,
    force: bool,
    eos: str | None,
    device: str,
    as_json: bool,
    quiet: bool,
    debug: bool,
    **settings: Any,
) -> None:
    """Train a Llama-style language model on CORPUS: text, or token files written by `tokenize`.

    The run folder receives the log (log.jsonl), the loss curve (loss.svg) and checkpoints
    (step-00000100 and so on), which Hugging Face transformers opens as Llama models. To resume an
    interrupted run from its newest checkpoint, repeat the command with --resume.

    \b
    Example:
      llmgpu train --vocab v.bin corpus.txt -o run
      llmgpu train --vocab v.bin tokens.json -o run --preset small --steps 5000
      llmgpu train --vocab v.bin tokens.json -o run --preset small --steps 5000 --resume
      llmgpu train --vocab v.bin 'data/*.jsonl' -o run --dim 512 --heads 8 --layers 8 --lr 3e-4
    """
    report = Reporter(quiet=quiet)
    corpus = corpus or _piped_corpus(report)
    reading = {name: settings.pop(name) for name in _READING}
    intervals = Intervals(**{name: settings.pop(name) for name in _INTERVALS})
    vocabulary_files = find_vocabulary(vocab)
    vocabulary = vocabulary_files.read(report.note)
    named = id_or_text(eos)
    separator = default_separator(vocabulary) if named is None else token_id(vocabulary, named)
    if not resume:  # what can't work is refused before there is a folder
        new_settings(settings, vocabulary.size)
    backend = select_backend(device)
    read = [source.path for source in resolve_sources(corpus).files]
    check_outputs(_written(output, force), [*vocabulary_files.inputs, *read])
    with open_run_folder(output, resume=resume, force=force) as folder:
        checkpoint = _find_checkpoint(folder) if resume else None
        if checkpoint is not None:
            checkpoint.require_vocabulary(vocabulary, vocab)
            vocabulary = checkpoint.vocabulary
            asked = resumed_settings(checkpoint, _explicit(context, settings))
            separator = _same_separator(checkpoint, eos, separator)
            _announce_resuming(report, checkpoint, asked.options.steps)
        else:
            asked = new_settings(settings, vocabulary.size)
            if resume:
                report.line(f"{output} has no checkpoint yet: starting at the first step")
        needed_bytes = training_memory(asked, backend, intervals.unread_steps(asked.options.steps))
        host_bytes = host_memory(asked, backend, needed_bytes)
        if backend.is_software:
            require_free(host_bytes, free_memory())
        report.line(_description(asked, backend))
        report.need_memory(Memory(host_bytes, 0 if backend.device is None else needed_bytes))
        try:
            source = open_tokens(
                corpus,
                vocabulary,
                vocab,
                folder.tokens,
                backend=select_backend(device),
                reading=make_corpus_options(**reading),
                separator=separator,
                resume=resume,
                progress=report,
            )
        finally:
            report.close()
        if force:  # not before: nothing can be wrong with the new run any more
            in_use = {TOKENS_NAME} if folder.tokens in source.folders else set()
            folder.remove([pattern for pattern in REPLACED if pattern not in in_use])
        run = TrainingRun(
            folder,
            asked,
            backend,
            source,
            source.vocabulary,
            intervals,
            checkpoint,
            needed_bytes,
            eos_id=separator,
            on_record=partial(_print_record, report, asked.options.steps),
            note=report.line,
        )
        summary = run.run() | {"estimated_memory_bytes": host_bytes}
    _print_summary(report, summary)
    if as_json:
        print_json(summary, to_stderr=False)


def _piped_corpus(report: Reporter) -> tuple[str, ...]:
    corpus = piped_input(report)
    if not corpus:
        raise click.UsageError("give CORPUS: text, or token files")
    return corpus


def _announce_resuming(report: Reporter, checkpoint: Checkpoint, steps: int) -> None:
    done = checkpoint.state.step
    report.line(f"resuming from {checkpoint.folder}")
    if done >= steps:
        report.line(
            f"nothing is left to do: {done} of {steps} steps are done; a larger --steps continues "
            "the run"
        )


def _written(folder: str, force: bool) -> list[Output]:
    """Return the files in a run folder that a run writes; with `force`, all that it removes."""
    patterns = REPLACED if force else ("log.jsonl", "loss.svg")
    found = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    inside = [file for path in found if path.is_dir() for file in path.rglob("*")]
    return [Output(str(path), None) for path in (*found, *inside)]


def _explicit(context: click.Context, settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of `settings` that were given on the command line."""
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    return {
        name: value
        for name, value in settings.items()
        if context.get_parameter_source(name) in given
    }


def _same_separator(checkpoint: Checkpoint, eos: str | None, given: int | None) -> int | None:
    """Return the token between documents of a run that is resumed, which --eos may only repeat."""
    if eos is not None and given != checkpoint.eos_id:
        raise InputError(
            f"--eos is id {given}, but the run in {checkpoint.folder.parent} has "
            f"{checkpoint.eos_id}: leave it out to resume that run, or start a new one"
        )
    return checkpoint.eos_id


def _find_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """Return the newest checkpoint of a run; None if it ended before its first."""
    return load_checkpoint(folder.path) if list_checkpoints(folder.path) else None


def _description(settings: RunSettings, backend: Backend) -> str:
    config, options = settings.config, settings.options
    tokens = options.sequences * config.seq_len
    return (
        f"training {human_count(config.parameters)} parameters on {backend.description}: "
        f"{human_count(options.steps)} steps of {human_count(tokens)} tokens"
    )


def _print_record(report: Reporter, steps: int, record: StepRecord, left: float) -> None:
    text = (
        f"step {record.step}/{steps}: loss {record.loss:.4f}, norm {record.grad_norm:.3f}, "
        f"lr {record.learning_rate:.2e}, {human_count(record.tokens_per_second)} tokens/s"
    )
    if record.validation_loss is not None:
        text += f", validation loss {record.validation_loss:.4f}"
    if record.bits_per_byte is not None:
        text += f" ({record.bits_per_byte:.4f} bits per byte)"
    report.line(f"{text}, {human_time(left)} left" if left else text)


def _print_summary(report: Reporter, summary: dict[str, Any]) -> None:
    text = f"{human_count(summary['tokens'])} tokens in {human_time(summary['seconds'])}"
    if summary["perplexity"] is not None:
        text += f"; perplexity {summary['perplexity']:.2f}"
    report.line(f"{text}; checkpoint in {summary['checkpoint']}")
