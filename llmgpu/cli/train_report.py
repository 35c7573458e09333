"""What ``llmgpu train`` prints: what begins, how far it is, and the summary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from llmgpu.backend import Backend
from llmgpu.cli.console import Reporter, human_count, human_time, print_json
from llmgpu.errors import shorten
from llmgpu.input_files import number_of, printable
from llmgpu.lm.checkpoints.checkpoint import Checkpoint
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.runs.memory import require_free
from llmgpu.lm.runs.records import StepRecord
from llmgpu.lm.runs.run import RunListener
from llmgpu.lm.runs.settings import RunSettings, explain_schedule
from llmgpu.memory import Memory, free_memory


def announce(
    report: Reporter,
    asked: RunSettings,
    backend: Backend,
    host_bytes: int,
    needed_bytes: int,
    workers: int,
) -> None:
    """Say what will be trained; DeviceError if there is no memory for it."""
    if backend.is_software:
        require_free(host_bytes, free_memory())
    report.line(_description(asked, backend, workers))
    report.need_memory(Memory(host_bytes, 0 if backend.device is None else needed_bytes))


def announce_resuming(report: Reporter, checkpoint: Checkpoint, options: TrainOptions) -> None:
    """Say where a run continues, and what that does to its learning rate."""
    done, steps = checkpoint.state.step, options.steps
    report.line(f"resuming from {checkpoint.folder}")
    change = explain_schedule(checkpoint, options)
    if change is not None:
        report.note(change)
    if done >= steps:
        report.line(
            f"nothing to do: {done} of {steps} steps are done; use a larger --steps to continue"
        )


def _description(settings: RunSettings, backend: Backend, workers: int) -> str:
    config, options = settings.config, settings.options
    tokens = options.sequences * config.seq_len
    has_units = backend.device is not None and backend.device.matrix_shapes
    slow = "" if has_units else ", which is slower than f32 without matrix units"
    return (
        f"training {human_count(config.parameters)} parameters on {backend.description}"
        f"{f' and {workers - 1} more' if workers > 1 else ''}: "
        f"{number_of(options.steps, 'step')} of {human_count(tokens)} tokens"
        + (f" in f16{slow}" if options.is_mixed else "")
    )


class RunReporter(RunListener):
    """Prints the progress of a run of `steps` steps."""

    def __init__(self, report: Reporter, steps: int) -> None:
        """Print to a reporter."""
        self._report, self._steps = report, steps

    def note(self, text: str) -> None:
        """Print a line."""
        self._report.line(text)

    def on_first_step(self, step: int, loss: float) -> None:
        """Print the first loss."""
        text = f"step {step}/{self._steps}: loss {loss:.4f}"
        self._report.line(text, step=step, steps=self._steps, loss=loss)

    def on_record(self, record: StepRecord, seconds_left: float) -> None:
        """Print what is logged, and the time left."""
        text = (
            f"step {record.step}/{self._steps}: loss {record.loss:.4f}, "
            f"norm {record.grad_norm:.3f}, lr {record.learning_rate:.2e}, "
            f"{human_count(record.tokens_per_second)} tokens/s"
        )
        if record.validation_loss is not None:
            text += f", validation loss {record.validation_loss:.4f}"
        if record.bits_per_byte is not None:
            text += f" ({record.bits_per_byte:.4f} bits per byte)"
        if seconds_left:
            text += f", {human_time(seconds_left)} left"
        facts = {"steps": self._steps, "seconds_left": round(seconds_left, 3)}
        self._report.line(text, **asdict(record), **facts)


def print_summary(report: Reporter, summary: dict[str, Any], *, as_json: bool) -> None:
    """Print the summary of a run; with `as_json`, also as JSON on stdout."""
    seconds = summary["seconds"]
    taken = human_time(seconds) if seconds >= 60 else f"{seconds:.1f} s"
    text = f"{human_count(summary['tokens'])} tokens in {taken}"
    if summary["perplexity"] is not None:
        text += f"; perplexity {summary['perplexity']:,.2f}"
    report.line(f"{text}; checkpoint in {summary['checkpoint']}")
    if "adapter" in summary:
        report.line(f"adapter for peft in {summary['adapter']}")
    if as_json:
        print_json(summary, to_stderr=False)


def say_failure(line: str) -> None:
    """Print why a worker ended, in one line."""
    click.echo(shorten(printable(" ".join(line.split()))), err=True)
