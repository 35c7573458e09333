"""The log of a training run: JSON lines, first with the facts of the run, then with its records.

- A line is written in one piece and flushed. An incomplete last line, left by a killed run, is
  ignored.
- Numbers that JSON can't express, such as a loss that is NaN, are null.
- Bits per byte can be compared between vocabularies, the loss per token can't. Bits per byte do not
  include the losses of special tokens, which have no text.
- A run that resumes from a checkpoint cuts off the records of later steps and repeats these steps.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from llmgpu.closing import Closing
from llmgpu.errors import InputError
from llmgpu.files import output_errors
from llmgpu.input_files import input_errors, quote, read_whole
from llmgpu.text.jsonl import parse_json_object

FORMAT = "llmgpu-training-log"
VERSION = 1

_TOO_LARGE = 1 << 63
_WHOLE_NUMBERS = frozenset({"step", "tokens", "skipped_steps"})


class EvaluationTotals:
    """Sums of the losses of many targets, for their mean and the bits per byte of text."""

    def __init__(self, token_bytes: NDArray[np.uint32]) -> None:
        """Start with no targets; token_bytes: bytes of text of each id, (vocabulary size,)."""
        self._token_bytes = token_bytes
        self.targets = self.text_bytes = 0
        self._nats = self._text_nats = 0.0  # losses of all targets, and of targets with text

    def add(self, losses: NDArray[np.floating], targets: NDArray[np.uint32]) -> None:
        """Add losses in nats and their targets, both of one shape.

        Losses of targets beyond the vocabulary are left out.
        """
        counts = targets.ravel() < len(self._token_bytes)
        nats = losses.ravel()[counts].astype(np.float64)
        sizes = self._token_bytes[targets.ravel()[counts]]
        self.targets += len(nats)
        self.text_bytes += int(sizes.sum(dtype=np.int64))
        self._nats += float(nats.sum())
        self._text_nats += float(nats[sizes > 0].sum())

    @property
    def loss(self) -> float | None:
        """Nats per target; None without targets."""
        return self._nats / self.targets if self.targets else None

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text; None without text."""
        return bits_per_byte(self._text_nats, self.text_bytes)


def bits_per_byte(nats: float, text_bytes: int) -> float | None:
    """Return the bits per byte of a text with a total loss of `nats`; None without text."""
    return nats / (math.log(2) * text_bytes) if text_bytes else None


def perplexity(loss: float) -> float:
    """Return e^loss for a loss in nats; infinity if the result is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The state of a run at a step.

    step: number of steps done.
    loss: mean cross-entropy of training targets since the last record, in nats a token.
    smoothing_loss, z_loss: the parts of the loss added by label smoothing and by the z-loss.
    learning_rate, grad_norm: values of this step.
    tokens: number of tokens trained on.
    tokens_per_second: speed since the last record.
    teraflops: 10^12 operations a second, see `ModelConfig.training_operations`.
    mfu: teraflops divided by the device's peak.
    seconds: duration of training, earlier processes included.
    validation_loss, bits_per_byte: None without an evaluation at this step.
    loss_scale, skipped_steps: the loss scale of the next step, and the number of steps of the run
        whose gradients overflowed. None if the loss is not scaled.
    start_seconds, data_seconds, evaluation_seconds, saving_seconds: see `Spent`; None in logs of
        earlier versions.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    tokens_per_second: float
    seconds: float
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    smoothing_loss: float
    z_loss: float
    loss_scale: float | None = None
    skipped_steps: int | None = None
    teraflops: float | None = None
    mfu: float | None = None
    start_seconds: float | None = None
    data_seconds: float | None = None
    evaluation_seconds: float | None = None
    saving_seconds: float | None = None

    @property
    def perplexity(self) -> float | None:
        """The perplexity of the validation loss; None if there was no evaluation."""
        return None if self.validation_loss is None else perplexity(self.validation_loss)

    def to_json(self) -> dict[str, int | float | None]:
        """Return the record for JSON, without fields that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["perplexity"] = self.perplexity
        found: dict[str, int | float | None] = {}
        for name, value in values.items():
            if value is None:
                continue
            if name in _WHOLE_NUMBERS:
                found[name] = int(value)
            else:  # `value` may be a NumPy number
                found[name] = float(value) if math.isfinite(value) else None
        return found


@dataclass
class Spent:
    """Seconds of a run that were not spent on steps, by activity.

    start: from the start of each process to its first step. data: reading batches. evaluation:
    held-out batches, samples and the loss curve. saving: copying tensors, and waiting for
    checkpoints.
    """

    start: float = 0.0
    data: float = 0.0
    evaluation: float = 0.0
    saving: float = 0.0

    @classmethod
    def until(cls, record: StepRecord) -> Self:
        """Return the seconds up to a record; 0 for fields that the record lacks."""
        return cls(*(getattr(record, f"{each.name}_seconds") or 0.0 for each in fields(cls)))

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Add the time of the block to an activity, in seconds."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(activity, time.perf_counter() - begun)

    def add(self, activity: str, seconds: float) -> None:
        setattr(self, activity, getattr(self, activity) + seconds)

    def for_record(self) -> dict[str, float]:
        """Return the fields for a `StepRecord`."""
        return {f"{name}_seconds": seconds for name, seconds in asdict(self).items()}


@dataclass(frozen=True)
class LogContent:
    """The content of a log: the facts of the run, and its records in order."""

    facts: dict[str, Any]
    records: list[StepRecord]


class RunLog(Closing):
    """A log that is being written; a context manager."""

    def __init__(self, path: str | Path, stream: BinaryIO) -> None:
        """Write to an open stream; see `begin` and `resume`."""
        self._path = str(path)
        self._stream = stream

    @classmethod
    def begin(cls, path: str | Path, facts: Mapping[str, Any]) -> Self:
        """Start a new log, which replaces an existing one.

        facts: description of the run, for JSON. Raises OutputError if the log can't be written.
        """
        with output_errors(str(path)):
            log = cls(path, open(path, "wb"))  # noqa: SIM115 (closed by `close`)
        log._write({"format": FORMAT, "version": VERSION, **facts})
        return log

    @classmethod
    def resume(cls, path: str | Path, step: int) -> Self:
        """Continue a log after the record of `step`; cut off later records.

        Raises InputError if the log can't be read or is damaged before that record, OutputError if
        the log can't be written.
        """
        _, lines = _read_lines(path)
        length = len(lines[0]) + 1
        for index, line in enumerate(lines[1:], 1):
            # Check the records up to `step`, because the run continues after them.
            if _read_record(line, path, index).step > step:
                break
            length += len(line) + 1
        with output_errors(str(path)):
            stream = open(path, "r+b")  # noqa: SIM115 (closed by `close`)
            stream.truncate(length)
            stream.seek(length)
        return cls(path, stream)

    def append(self, record: StepRecord) -> None:
        """Write a record; raise OutputError if the file can't be written."""
        self._write(record.to_json())

    def close(self) -> None:
        self._stream.close()

    def _write(self, content: Mapping[str, Any]) -> None:
        line = json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with output_errors(self._path):
            self._stream.write(line)
            self._stream.flush()


def read_log(path: str | Path) -> LogContent:
    """Read a log; an incomplete last line is left out.

    Raises InputError, with file and line, if the log can't be read or a line is not a record.
    """
    facts, lines = _read_lines(path)
    return LogContent(facts, [_read_record(lines[i], path, i) for i in range(1, len(lines))])


def _read_lines(path: str | Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the facts of the run, and all complete lines, including the line of the facts."""
    with input_errors(f"the log {path}"):
        lines = read_whole(path, "training log").split(b"\n")[:-1]
    if not lines:
        raise InputError(f"{path} is not the log of a training run: it has no complete line")
    facts = parse_json_object(lines[0], f"{path}, line 1")
    if (facts.pop("format", None), facts.pop("version", None)) != (FORMAT, VERSION):
        raise InputError(f"{path} is not the log of a training run ({FORMAT} {VERSION})")
    if not isinstance(command := facts.get("command", ""), str):
        raise InputError(
            f"{path}, line 1: command is {quote(str(command))}, not a text; restore the log from a "
            "copy, or start a new run"
        )
    return facts, lines


def _read_record(line: bytes, path: str | Path, index: int) -> StepRecord:
    where = f"{path}, line {index + 1}"
    found = parse_json_object(line, where)
    values = {}
    for field in fields(StepRecord):
        if field.name in found or field.default is MISSING:
            values[field.name] = _number(field.name, found.get(field.name, ""), where)
    return StepRecord(**values)


def _number(name: str, value: object, where: str) -> Any:
    """Return a field's number, NaN for null; raise InputError for other values."""
    if type(value) is int and -_TOO_LARGE < value < _TOO_LARGE:
        return value
    if name not in _WHOLE_NUMBERS:
        if value is None:
            return math.nan
        if type(value) is float:
            return value
    raise InputError(f"{where}: {name} is missing or not a number")
