"""The folder of a training run, the log and samples in it, and the model card of a checkpoint.

- The file ``run.lock`` marks a run folder. A run locks this file while it writes to the folder, see
  `llmgpu.files`. The file stays after the run, unless the run wrote nothing else. Only one run at a
  time may write to the folder.
- Nothing is ever removed from a folder without ``run.lock``.
- The log consists of JSON lines, first with the facts of the run, then with its records. A line is
  written in one piece and flushed. An incomplete last line, left by a killed run, is ignored.
- Numbers that JSON can't express, such as a loss that is NaN, are null.
- Bits per byte can be compared between vocabularies, the loss per token can't. Bits per byte do not
  include the losses of special tokens, which have no text.
- A run that resumes from a checkpoint cuts off the records of later steps and repeats these steps.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError
from llmgpu.files import FileLock, atomic_output, output_errors, require_name
from llmgpu.input_files import input_errors, printable, quote, read_whole
from llmgpu.lm.checkpoints.checkpoint import list_checkpoints
from llmgpu.lm.generator import Continuation, Generator
from llmgpu.lm.model import Model
from llmgpu.lm.options import SamplingOptions
from llmgpu.lm.sampling import Sampler
from llmgpu.text.jsonl import parse_json_object

LOCK_NAME = "run.lock"
TOKENS_NAME = "tokens"
EVALUATION_TOKENS_NAME = "evaluation-tokens"
SAMPLES_NAME = "samples.jsonl"
SAMPLE_TOKENS = 64
OPTIONS_NAME = "options.toml"  # the options of the command
_SHOWN_FACTS = ("init", "device", "vocabulary", "parameters", "training_tokens")
_SHOWN_RECORDS = ("step", "loss", "validation_loss", "bits_per_byte", "tokens", "seconds")
_BEFORE_THE_LOG = {LOCK_NAME, TOKENS_NAME, EVALUATION_TOKENS_NAME, OPTIONS_NAME}
FORMAT = "llmgpu-training-log"
VERSION = 1

# The work of a run besides its steps. start: from the start of each process to its first step.
# data: reading batches. evaluation: held-out batches, samples and the loss curve. saving: copying
# tensors, and waiting for checkpoints.
ACTIVITIES = ("start", "data", "evaluation", "saving")

# The first lines of a model card, which Hugging Face's hub reads.
_HUB_FACTS = "library_name: transformers", "pipeline_tag: text-generation", "tags:", "- llmgpu"
_LISTED = 10  # most names of files in a model card
_TOO_LARGE = 1 << 63
_WHOLE_NUMBERS = frozenset({"step", "tokens", "skipped_steps"})


class RunFolder:
    """A run folder, and the places of the files in it; see `open_run_folder`.

    path: the folder. log: the file of the log. loss_curve: the chart of the losses.
    tokens, evaluation_tokens: the folders with the tokens of texts, see `llmgpu.lm.data.inputs`.
    samples: JSON lines of step and text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.jsonl"
        self.loss_curve = path / "loss.svg"
        self.tokens = path / TOKENS_NAME
        self.evaluation_tokens = path / EVALUATION_TOKENS_NAME
        self.samples = path / SAMPLES_NAME

    def remove(self, patterns: Sequence[str], kept: Collection[Path] = ()) -> None:
        """Remove files and folders of the earlier run that match glob patterns.

        kept: folders whose own files stay. Folders inside them are removed, unless they are also
        in `kept`.
        """
        with output_errors(str(self.path)):
            for pattern in patterns:
                for found in set(self.path.glob(pattern)) - {self.path / LOCK_NAME}:
                    _remove(found, kept)

    def set_aside(self, step: int) -> list[tuple[Path, Path]]:
        """Rename checkpoints of steps after `step` to ``decayed-...``; return old and new paths.

        Each gets a copy of the log. Renamed checkpoints can be loaded by their paths, but do not
        belong to the run.

        Raises OutputError if a folder can't be renamed, or if a new path exists.
        """
        later = [path for each, path in list_checkpoints(self.path).items() if each > step]
        renamed = [(path, path.with_name(path.name.replace("step", "decayed"))) for path in later]
        for path, kept in renamed:
            with output_errors(str(kept)):
                if os.path.lexists(kept):
                    raise OutputError(f"{kept} already exists: move it out of the run folder")
                path.rename(kept)
                shutil.copyfile(self.log, kept / self.log.name)
        return renamed


def _remove(path: Path, kept: Collection[Path]) -> None:
    """Remove a file or a folder, except for the files of folders in `kept`."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
    elif path not in kept and not any(path in each.parents for each in kept):
        shutil.rmtree(path)
    else:
        for inside in list(path.iterdir()):
            if path not in kept or inside.is_dir():
                _remove(inside, kept)


def describe_run(path: str | Path) -> dict[str, Any]:
    """Return the facts and the last record of a run's log, by readable names.

    Raises InputError, with file and line, if the log can't be read.
    """
    log = read_log(RunFolder(Path(path)).log)
    last = asdict(log.records[-1]) if log.records else {"step": 0}
    spent = seconds_beside_steps(log.records[-1]) if log.records else {}
    told = {
        **{name: log.facts.get(name) for name in _SHOWN_FACTS},
        **{name: last.get(name) for name in _SHOWN_RECORDS},
        "seconds_beside_steps": {name: round(value, 3) for name, value in spent.items()} or None,
        "checkpoints": ", ".join(found.name for found in list_checkpoints(path).values()) or "none",
        **{name: log.facts.get(name) for name in ("model", "options")},
    }
    return {name.replace("_", " "): fact for name, fact in told.items() if fact is not None}


def require_log(path: str | Path) -> None:
    """Raise InputError, with a remedy, if `path` is not a run folder with a log."""
    folder = Path(path)
    if RunFolder(folder).log.is_file() or not folder.exists():
        return
    what = "a folder without a log.jsonl" if folder.is_dir() else "a file"
    raise InputError(
        f"{path} is {what}, not the folder of a run: name the folder of train's --output"
    )


@contextmanager
def open_run_folder(
    path: str | Path, *, resume: bool = False, force: bool = False
) -> Iterator[RunFolder]:
    """Create the folder of a new run, or open the folder of an earlier run.

    The folder is locked until the block ends. A new folder is then removed if its run was refused
    and wrote nothing.

    resume: continue the run of the folder. force: allow a folder with a run; the caller removes the
    run's files after all checks of the new run. An earlier run that ended before its log was begun
    left only tokens and options; a new run may use both.

    Raises InputError if there is no run to resume; OutputError if the folder has a run and neither
    `resume` nor `force` is set, if the folder has other files, is locked by another process, or
    can't be written.
    """
    # Refuse a path that can't be a run folder, and create a new folder.
    require_name(path)
    folder = Path(path)
    if resume and not (folder / LOCK_NAME).is_file():
        raise InputError(f"{folder} has no run to resume")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file, not a run folder: choose a new or an empty folder")
    is_new = not folder.exists()
    with output_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        names = os.listdir(folder)
    if names and LOCK_NAME not in names:
        raise OutputError(
            f"{folder} is not empty and is not a run folder: choose a new or an empty folder"
        )
    lock = FileLock(folder / LOCK_NAME, str(folder))
    try:
        # List the folder again: another run may have ended before this run locked the folder.
        with output_errors(str(folder)):
            has_run = not set(os.listdir(folder)) <= _BEFORE_THE_LOG
        if has_run and not (resume or force):
            raise OutputError(
                f"{folder} already has a run: use --resume to continue it, --force to replace it, "
                "or another folder"
            )
        yield RunFolder(folder)
    finally:
        with suppress(OSError):  # the folder is gone, or another run begins to use it
            if is_new and os.listdir(folder) == [LOCK_NAME]:
                lock.remove()
                folder.rmdir()
        lock.close()


def evaluation_results(
    batches: Iterable[tuple[NDArray[np.uint32], NDArray[np.floating]]],
    token_bytes: NDArray[np.uint32],
) -> tuple[float | None, float | None]:
    """Return the mean loss in nats per target, and the bits per byte of text.

    The loss is None without targets, the bits per byte are None without text. Losses of targets
    beyond the vocabulary are left out.

    batches: targets and their losses in nats, both of one shape. token_bytes: bytes of text of each
    id, (vocabulary size,).
    """
    count = text_bytes = 0
    nats = text_nats = 0.0  # losses of all targets, and of targets with text
    for targets, losses in batches:
        counts = targets.ravel() < len(token_bytes)
        found = losses.ravel()[counts].astype(np.float64)
        sizes = token_bytes[targets.ravel()[counts]]
        count += len(found)
        text_bytes += int(sizes.sum(dtype=np.int64))
        nats += float(found.sum())
        text_nats += float(found[sizes > 0].sum())
    return nats / count if count else None, bits_per_byte(text_nats, text_bytes)


def bits_per_byte(nats: float, text_bytes: int) -> float | None:
    """Return the bits per byte of a text with a total loss of `nats`; None without text."""
    return nats / (math.log(2) * text_bytes) if text_bytes else None


def perplexity(loss: float) -> float:
    """Return e^loss for a loss in nats; infinity if the result is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
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
    start_seconds, data_seconds, evaluation_seconds, saving_seconds: see `ACTIVITIES`; None in logs
        of earlier versions.
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

    def to_json(self) -> dict[str, int | float | None]:
        """Return the record and the perplexity for JSON, without fields that are None.

        A number that is not finite becomes None.
        """
        values = {name: value for name, value in asdict(self).items() if value is not None}
        if self.validation_loss is not None:
            values["perplexity"] = perplexity(self.validation_loss)
        for name, value in values.items():  # a value may be a NumPy number
            number = int(value) if name in _WHOLE_NUMBERS else float(value)
            values[name] = number if math.isfinite(number) else None
        return values


def seconds_beside_steps(record: StepRecord) -> dict[str, float]:
    """Return the seconds of each of `ACTIVITIES` up to a record; 0 if the record lacks them."""
    return {name: getattr(record, f"{name}_seconds") or 0.0 for name in ACTIVITIES}


class LogContent(NamedTuple):
    """The content of a log: the facts of the run, and its records in order.

    lines: all complete lines, of which the first has the facts.
    """

    facts: dict[str, Any]
    records: list[StepRecord]
    lines: list[bytes]


def begin_log(path: str | Path, facts: Mapping[str, Any]) -> BinaryIO:
    """Start a new log, which replaces an existing one; return its file.

    facts: description of the run, for JSON. Raises OutputError if the log can't be written.
    """
    with output_errors(str(path)):
        log = open(path, "wb")  # noqa: SIM115 (closed by the caller)
    append_line(log, {"format": FORMAT, "version": VERSION, **facts})
    return log


def resume_log(path: str | Path, kept: Sequence[bytes]) -> BinaryIO:
    """Cut off a log after the lines in `kept`; return its file, to append records.

    Raises OutputError if the log can't be written.
    """
    length = sum(len(line) + 1 for line in kept)
    with output_errors(str(path)):
        log = open(path, "r+b")  # noqa: SIM115 (closed by the caller)
        log.truncate(length)
        log.seek(length)
    return log


def append_line(log: BinaryIO, content: Mapping[str, Any]) -> None:
    """Write a line, such as `StepRecord.to_json`; raise OutputError if this fails."""
    line = json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    with output_errors(log.name):
        log.write(line)
        log.flush()


def check_log(log: BinaryIO) -> None:
    """Raise OutputError if another program has removed, replaced, cut or extended a log."""
    with output_errors(log.name):
        named = os.stat(log.name)
    if not os.path.samestat(named, os.fstat(log.fileno())) or named.st_size != log.tell():
        raise OutputError(f"{log.name} was changed by another program: the run can't go on")


def read_log(path: str | Path) -> LogContent:
    """Read a log; an incomplete last line is left out.

    Raises InputError, with file and line, if the log can't be read or a line is not a record.
    """
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
    records = [_read_record(line, f"{path}, line {n}") for n, line in enumerate(lines[1:], 2)]
    return LogContent(facts, records, lines)


def _read_record(line: bytes, where: str) -> StepRecord:
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


def model_card(facts: Mapping[str, Any], data: Sequence[str], last: StepRecord) -> str:
    """Return the README.md of a checkpoint.

    facts: the facts of the run, see `begin_log`. data: the files of text or tokens. last: the
    record of the checkpoint's step.
    """
    losses = {
        "training loss": last.loss,
        "validation loss": last.validation_loss,
        "bits per byte of held-out text": last.bits_per_byte,
    }
    numbers = {"steps": f"{last.step:,}", "tokens": f"{last.tokens:,}"}
    numbers |= {name: f"{loss:.4f}" for name, loss in losses.items() if loss is not None}
    rows = (f"| {name} | {value} |" for name, value in numbers.items())
    base = (f"It began with the weights of `{facts['init']}`.",) if "init" in facts else ()
    listed = [f"- `{name}`" for name in data[:_LISTED]]
    more = len(data) - _LISTED
    # Put the paragraphs together, each a list of lines.
    paragraphs = [
        ["---", *_HUB_FACTS, "---"],
        [f"A language model of {facts['parameters']:,} parameters, trained by {facts['tool']}."],
        *([line] for line in base),
        ["| | |", "| --- | --- |", *rows],
        ["Trained on:"],
        listed + [f"- and {more:,} more"] * (more > 0),
        ["The command:"],
        ["```sh", facts["command"], "```"],
    ]
    return "\n\n".join("\n".join(map(printable, lines)) for lines in paragraphs) + "\n"


def open_samples(
    path: Path, model: Model, vocabulary: Vocabulary, first: int | None, step: int
) -> Callable[[int], str]:
    """Return a function that generates a sample, appends it to `path`, and returns its text.

    The function receives the step of the sample. Samples of steps after `step`, which the run
    repeats, are removed from the file of JSON lines. Raises OutputError if the file can't be
    written; so does the function.

    first: the first id of samples, which also ends a sample; None: samples begin with a newline.
    """
    prompt = [vocabulary.tokens.index(b"\n") if first is None else first]
    stops = frozenset(() if first is None else prompt)
    generator = Generator(model, vocabulary.size)
    if path.exists():
        with output_errors(str(path)):
            lines = path.read_bytes().splitlines(keepends=True)
        whole = (line for line in lines if line.endswith(b"\n"))
        with atomic_output(path) as file:
            file.writelines(line for line in whole if json.loads(line)["step"] <= step)

    def take(step: int) -> str:
        how = SAMPLE_TOKENS, Sampler(SamplingOptions()), stops
        sample = Continuation(prompt, *how, vocabulary=vocabulary)
        deque(generator.continue_all([sample]), maxlen=0)
        text = sample.text.data.decode("utf-8", "replace")
        with output_errors(str(path)), open(path, "ab") as file:
            append_line(file, {"step": step, "text": text})
        return text

    return take
