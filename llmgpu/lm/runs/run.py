"""A training run from its first step, or from a checkpoint, to its last step.

`TrainOptions` and the position in the tokens decide all results. So a run that is resumed from a
checkpoint on the same device gets the same weights as an uninterrupted run.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol

import numpy as np

from llmgpu.backend import Backend
from llmgpu.cpu.library import ARITHMETIC, library
from llmgpu.errors import CapacityError, CheckpointError, DeviceError
from llmgpu.files import sync
from llmgpu.lm.adapters import Adapters
from llmgpu.lm.checkpoints.checkpoint import (
    ADAPTER,
    OPTIMIZER,
    Checkpoint,
    TrainingState,
    open_model,
    prepare_step_folders,
    save_checkpoint,
    step_folder_name,
)
from llmgpu.lm.checkpoints.huggingface import SavedModel
from llmgpu.lm.checkpoints.safetensors_file import require_tensors
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.data.batches import Batch, Batches, TokenSource, token_bytes
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.products import describe_products, has_fixed_products
from llmgpu.lm.ops.recording import Snapshot
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.options import Intervals
from llmgpu.lm.runs.loss_curve import write_loss_curve
from llmgpu.lm.runs.run_folder import (
    ACTIVITIES,
    LogContent,
    RunFolder,
    StepRecord,
    append_line,
    begin_log,
    check_log,
    evaluation_results,
    model_card,
    open_samples,
    read_log,
    resume_log,
    seconds_beside_steps,
)
from llmgpu.lm.runs.settings import SMALLER, RunSettings, has_room_for_copies
from llmgpu.lm.trainer import StepResult, Trainer
from llmgpu.lm.workers import ALONE, Workers
from llmgpu.machine import free_memory
from llmgpu.pipeline import Background
from llmgpu.resume_key import check_same_run
from llmgpu.text.chat import end_of_reply
from llmgpu.version import __version__

_STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _STOP_SIGNALS.append(signal.SIGHUP)
# Names, in the log, of the engine that computes on the CPU.
_IN_NUMPY, _IN_C = "NumPy", f"C (arithmetic {ARITHMETIC})"
# Python's switch interval during a run. The thread that submits steps waits for Python's lock after
# each function of the driver, by default up to 5 ms. A device then waits 0.3 s for steps while a
# thread writes tokenizer.json.
_SWITCH_SECONDS = 2e-4
_RESULTS = ("loss", "validation_loss", "perplexity", "bits_per_byte")  # fields of the summary


def choose_arithmetic(
    backend: Backend, begun: Mapping[str, Any]
) -> tuple[Operations, dict[str, Any]]:
    """Choose the library and the kind of matrix products, on which the bits of a run depend.

    A resumed run uses the kind of products in its log, and the C engine only if the log names it.

    begun: the facts in a resumed run's log; empty for a new run. Returns the operations, and facts
    about the device, the engine and the products for the log.

    Raises CheckpointError if the log lacks fixed_products.
    """
    is_on_cpu = backend.device is None
    in_c = is_on_cpu and library() is not None
    fixed = is_on_cpu and has_fixed_products()
    if begun:
        if "fixed_products" not in begun:
            raise CheckpointError("the log of the run lacks fixed_products: start a new run")
        # A run that began on a GPU has no engine in its log. On a CPU, such a run continues with
        # NumPy.
        in_c = in_c and begun.get("engine", _IN_NUMPY) != _IN_NUMPY
        fixed = bool(begun["fixed_products"])
    facts: dict[str, Any] = {"device": backend.description}
    if is_on_cpu:
        facts["engine"] = _IN_C if in_c else _IN_NUMPY
        facts["products"] = describe_products(fixed=fixed)
    facts["fixed_products"] = fixed
    return open_operations(backend.device, fixed_products=fixed, in_c=in_c), facts


class RunListener(Protocol):
    """Receives the progress of a run."""

    def on_record(self, record: StepRecord, seconds_left: float) -> None:
        """Receive each record of the log, and the seconds left at the pace so far."""

    def on_first_step(self, step: int, loss: float) -> None:
        """Receive the first step of this process and its loss, unless the step has a record."""

    def on_step(self, step: int) -> None:
        """Receive the number of steps done, after each step."""

    def note(self, text: str) -> None:
        """Receive a line for the user, such as the command that resumes the run."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The settings and inputs of a run.

    source: tokens to train on. eos_id: token between documents.
    evaluation_source: tokens to evaluate on instead of a part of `source`.
    checkpoint: the checkpoint to resume from; None for a new run.
    init: the model that a new run begins with; None for random weights.
    weights: returns the weights that a new run begins with, by name, in the order of
        `ModelConfig.weights`.
    command, data: the command and the files of text or tokens, for the model card.
    needed_bytes: result of `training_memory`.
    begun: time at which the command began, by `time.perf_counter`.
    """

    settings: RunSettings
    intervals: Intervals
    backend: Backend
    source: TokenSource
    evaluation_source: TokenSource | None = None
    eos_id: int | None = None
    checkpoint: Checkpoint | None = None
    init: SavedModel | None = None
    weights: Callable[[str], AnyArray] | None = None
    command: str
    data: Sequence[str]
    needed_bytes: int
    begun: float

    def token_facts(self) -> dict[str, Any]:
        """Return the facts that identify the tokens, for the log."""
        source = self.source
        mask = {"loss_mask_crc32": source.mask_checksum} if source.has_mask else {}
        facts: dict[str, Any] = {"tokens": len(source), "tokens_crc32": source.checksum, **mask}
        if source.corpora:
            facts["corpus_tokens"] = source.corpora
        if self.evaluation_source is not None:
            facts["evaluation_tokens_crc32"] = self.evaluation_source.checksum
        return facts


class TrainingRun:
    """A run in a locked run folder."""

    def __init__(
        self, folder: RunFolder, plan: RunPlan, listener: RunListener, workers: Workers = ALONE
    ) -> None:
        """Create the trainer with its weights, and start or continue the log.

        Raises:
            InputError: too little text, or other tokens than before. DeviceError: too little
                memory. CheckpointError: the checkpoint does not belong to this model, these options
                or this log. OutputError: the folder can't be written.
        """
        self._folder, self._plan, self._listener, self._workers = folder, plan, listener, workers
        self._options, config = plan.settings.options, plan.settings.config
        checkpoint, self._vocabulary = plan.checkpoint, plan.source.vocabulary
        self._batches = Batches(
            plan.source, self._options, config.seq_len, plan.eos_id, plan.evaluation_source
        )
        self._token_bytes = token_bytes(self._vocabulary)
        if workers.is_first:
            prepare_step_folders(folder.path, 0 if checkpoint is None else checkpoint.state.step)
        self._begun = LogContent({}, [], []) if checkpoint is None else read_log(folder.log)
        begun = self._begun.facts
        # A resumed run keeps the command and the initial model that its log records.
        self._command = begun.get("command", plan.command)
        self._init = begun.get("init") if plan.init is None else str(plan.init.folder)
        started = plan.init if checkpoint is None else checkpoint
        stops = frozenset[int]() if started is None else started.stop_ids
        self._stop_ids = stops | end_of_reply(self._vocabulary.special_tokens)
        # Create the trainer. Its weights come from the checkpoint, or from `plan.weights`.
        self._trainer = self._open_trainer(config)
        # Waits for the results of the steps since the last record, and returns them.
        self._read_results: Callable[[], list[StepResult]] | None = None
        self._seconds = 0.0  # duration of training in earlier processes
        self._spent = dict.fromkeys(ACTIVITIES, 0.0)  # in seconds, earlier processes included
        self._saved_step = -1  # step of the newest checkpoint, which may not be complete yet
        self._snapshot: Snapshot | None = None  # copies of the tensors of a checkpoint
        self._write: Callable[[], object] | None = None  # writes the checkpoint from the copies
        self._saving = Background()
        self._unchanging: dict[str, bytes] = {}  # files that are equal in all checkpoints
        self._notes_of_saving: deque[str] = deque()
        self._note_once = cache(listener.note)  # all checkpoints have the same notes
        self._records: list[StepRecord] = []  # the records of the log
        if checkpoint is not None:
            self._load(checkpoint, begun)
        else:
            assert plan.weights is not None, "a new run has initial weights"
            self._trainer.load(plan.weights)
        # The first worker writes the log and the samples.
        self._samples = None
        if workers.is_first:
            self._log = self._open_log()
            if plan.intervals.sample:
                step = self._trainer.step
                self._samples = open_samples(
                    folder.samples, self._trainer.model, self._vocabulary, plan.eos_id, step
                )

    def _open_trainer(self, config: ModelConfig) -> Trainer:
        slots = self._plan.intervals.unread_steps(self._options.steps)
        separator = self._plan.eos_id if self._options.document_mask else None
        try:
            operations, self._arithmetic = choose_arithmetic(self._plan.backend, self._begun.facts)
            return Trainer(operations, config, self._options, slots, self._workers, separator)
        except DeviceError as error:
            needed = f"the run needs {self._plan.needed_bytes:,} bytes in all"
            raise DeviceError(f"{error}; {needed}, {SMALLER}") from error

    def _facts(self) -> dict[str, Any]:
        """Return the facts for the first line of the log."""
        config = self._trainer.model.config
        return {
            "tool": f"llmgpu {__version__}",
            **self._arithmetic,
            "vocabulary": self._vocabulary.fingerprint,
            "parameters": config.parameters,
            "memory_bytes": self._plan.needed_bytes,
            **self._plan.token_facts(),
            "training_tokens": self._batches.training_sequences * config.seq_len,
            "evaluation_sequences": self._batches.evaluation_sequences,
            "model": asdict(config),
            "options": self._options.stored(),
            "intervals": asdict(self._plan.intervals),
            "eos_id": self._plan.eos_id,
            **({} if self._init is None else {"init": self._init}),
            "command": self._command,
        }

    def _load(self, checkpoint: Checkpoint, begun: Mapping[str, Any]) -> None:
        """Load a checkpoint of this model and these options; begun: the facts in the log."""
        trainer, state = self._trainer, checkpoint.state
        tokens = {"evaluation_tokens_crc32": None, **self._plan.token_facts()}
        before = {name: begun.get(name) for name in tokens}
        check_same_run(f"{self._folder.path} was started with other tokens", before, tokens)
        expected = {each.name: ([each.dtype], each.shape) for each in trainer.state_tensors()}
        require_tensors(checkpoint.folder / OPTIMIZER, checkpoint.optimizer, expected)
        if trainer.adapters is None:
            trainer.model.load(checkpoint.weights.__getitem__)
        else:
            self._load_base(checkpoint, str(self._init), trainer.adapters)
        trainer.write_state(checkpoint.optimizer)
        trainer.step = self._saved_step = state.step
        if state.sequence_position != self._position(state.step):
            raise CheckpointError(
                f"{checkpoint.folder}: it has taken {state.sequence_position} sequences in "
                f"{state.step} steps, but its options make {self._position(state.step)}"
            )

    def _load_base(self, checkpoint: Checkpoint, path: str, adapters: Adapters) -> None:
        """Load the model without adapters from `path`, the folder that the run began with."""
        base = open_model(path)
        for name, values in checkpoint.weights.items():
            if name not in adapters.adapters and not np.array_equal(base.weights[name], values):
                raise CheckpointError(
                    f"{path} is not the model that the run in {self._folder.path} began with: "
                    f"{name} differs"
                )
        self._trainer.load(base.weights.__getitem__)

    def _open_log(self) -> BinaryIO:
        """Start the log, or continue it after the record of the checkpoint's step."""
        if self._plan.checkpoint is None:
            return begin_log(self._folder.log, self._facts())
        facts, records, lines = self._begun
        before = {"engine": _IN_NUMPY, "products": "not recorded", **facts}
        for name, now in self._arithmetic.items():
            if before.get(name) != now:
                self._listener.note(
                    "from here on the bits may differ from those of an uninterrupted run: its "
                    f"{name} was {before.get(name)} and is {now} now"
                )
        step = self._trainer.step
        self._records = [*takewhile(lambda record: record.step <= step, records)]
        if not self._records:
            raise CheckpointError(f"{self._folder.log} has no record of step {step}")
        self._seconds = self._records[-1].seconds
        self._spent = seconds_beside_steps(self._records[-1])
        return resume_log(self._folder.log, lines[: 1 + len(self._records)])

    def run(self) -> dict[str, Any]:
        """Train to the last step; return a summary on the first worker, {} on other workers.

        After Ctrl-C, SIGTERM or SIGHUP the run finishes the current step, writes a checkpoint,
        notes the command that resumes it, and raises KeyboardInterrupt with the signal's number.

        Raises:
            TrainingError: a loss or a gradient is not finite; checkpoints are not changed.
        """
        # All workers must compute equal bits, so they need the same kernels.
        computed = f"{self._plan.backend.driver} in {self._options.precision}"
        self._workers.require_same("WebGPU drivers and precisions", computed)
        self._started = time.perf_counter()
        self._first_step = self._logged_step = self._trainer.step
        # Pairs (time, step): the next rate is measured from `_measured`, the pace from `_paced`.
        self._measured = self._paced = self._started, self._first_step
        number = 0  # number of the signal that stops the run
        log = self._log if self._workers.is_first else nullcontext()
        with log, self._saving, self._saves_on_error(), ExitStack() as end, stop_requests() as stop:
            end.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_SWITCH_SECONDS)
            while self._trainer.step < self._options.steps and not number:
                step = self._trainer.step
                if step == self._first_step:
                    self._spent["start"] += time.perf_counter() - self._plan.begun
                if step == self._first_step + 1:  # exclude the compilation of kernels
                    self._measured = self._paced = time.perf_counter(), step
                with self._timing("data"):
                    batches = self._step_batches(step)
                self._trainer.take_step(batches, self._options.rate(step))
                self._finish_record()
                self._listener.on_step(step + 1)
                ends_round = self._options.ends_round(self._trainer.step)
                if ends_round and self._options.sync_every:
                    # Check for a bad step before `end_round` changes the weights, because the
                    # explanation of a bad step repeats this step with the same weights.
                    self._check_steps(self._begin_results())
                    self._trainer.end_round()
                self._do_what_is_due(last=self._trainer.step == self._options.steps)
                self._advance_saving()
                self._saving.check()
                # Check for a stop signal after a step, so that a checkpoint has at least one step.
                if ends_round:
                    number = max(self._workers.gather(stop[0] if stop else 0))
            # After the last step or a signal, write a checkpoint and wait until it is complete.
            if self._saved_step != self._trainer.step:
                self._save()
            with self._timing("saving"):
                self._finish_saving()
            number = number or max(self._workers.gather(stop[0] if stop else 0))
        if self._trainer.step < self._options.steps:
            self._listener.note(
                f"stopped at step {self._trainer.step:,}; checkpoint in {self._checkpoint()}. To "
                f"continue: llmgpu train -o {self._folder.path} --resume"
            )
        if number:
            raise KeyboardInterrupt(number)
        return self._summary() if self._workers.is_first else {}

    def _checkpoint(self) -> Path:
        """The folder of the newest checkpoint."""
        return self._folder.path / step_folder_name(self._saved_step)

    def _position(self, step: int) -> int:
        """The number of sequences in `step` steps."""
        return step * self._options.sequences

    def _step_batches(self, step: int) -> list[Batch]:
        first, size = self._position(step), self._options.batch_size
        return [
            self._batches.training(first + index * size)
            for index in range(self._options.grad_accum)
        ]

    def _do_what_is_due(self, *, last: bool) -> None:
        step = self._trainer.step
        evaluate = last or step % self._plan.intervals.evaluation == 0
        # Also save at the beginning of the decay, where a run of more steps continues with "wsd".
        save = step % self._plan.intervals.save == 0 or step == self._options.decay_start
        sample = self._samples is not None and (last or step % self._plan.intervals.sample == 0)
        if last or evaluate or step % self._plan.intervals.log == 0:
            self._read_results = self._begin_results()
            # A GPU would wait 5 ms for the host, so the next step starts first. The CPU would
            # compute that step before it writes the record.
            is_first = step == self._first_step + 1
            goes_on = self._trainer.model.operations.is_asynchronous
            if evaluate or save or sample or is_first or not goes_on:
                self._finish_record(evaluate=evaluate)
        elif step == self._first_step + 1:
            self._listener.on_first_step(step, self._trainer.results(1)[0].loss)
        if save:
            self._save()
        if sample and self._samples is not None:
            with self._timing("evaluation"):
                self._listener.note(f"sample of step {step}: {self._samples(step)}")
            self._measured = time.perf_counter(), step

    @contextmanager
    def _timing(self, activity: str) -> Iterator[None]:
        """Add the time of the block to an activity."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._spent[activity] += time.perf_counter() - begun

    def _begin_results(self) -> Callable[[], list[StepResult]]:
        """Start to read the results of the steps since the last record."""
        return self._trainer.begin_results(self._trainer.step - self._logged_step)

    def _check_steps(self, read: Callable[[], list[StepResult]]) -> list[StepResult]:
        """Return the results of steps; raise TrainingError for a bad step."""
        results = read()
        for result in results:
            if result.is_bad:
                batches = self._step_batches(result.step)
                raise self._trainer.explain_bad_step(result.step, batches)
        return results

    def _finish_record(self, *, evaluate: bool = False) -> None:
        """Write the record whose results are being read, if any."""
        read, self._read_results = self._read_results, None
        if read is None:
            return
        results, trainer = self._check_steps(read), self._trainer
        step = results[-1].step + 1
        loss = _mean_loss(results)
        if self._options.sync_every:  # each worker's loss is the mean of its own batches
            loss = float(np.mean(self._workers.gather(loss)))
        if not self._workers.is_first:
            self._logged_step = step
            return
        # Evaluate and write a record. The rate is measured from `_measured` to here.
        now = time.perf_counter()
        (before, measured_step), self._measured = self._measured, (now, step)
        validation_loss = bits_per_byte = None
        if evaluate:
            with self._timing("evaluation"):
                limit = self._options.evaluation_batches * self._options.batch_size
                losses = trainer.losses(self._batches.evaluation(limit))
                validation_loss, bits_per_byte = evaluation_results(losses, self._token_bytes)
        rate = self._tokens(step - measured_step) / (now - before)
        teraflops = trainer.model.config.training_operations(1) * rate / 1e12
        peak, scaling = self._plan.intervals.peak_teraflops, trainer.updates.loss_scaling
        record = StepRecord(
            step=step,
            loss=loss,
            learning_rate=self._options.rate(step - 1),
            grad_norm=results[-1].grad_norm,
            tokens=self._tokens(step),
            tokens_per_second=rate,
            seconds=self._seconds + now - self._started,
            validation_loss=validation_loss,
            bits_per_byte=bits_per_byte,
            smoothing_loss=float(np.mean([result.smoothing_loss for result in results])),
            z_loss=float(np.mean([result.z_loss for result in results])),
            loss_scale=scaling.scale if scaling else None,
            skipped_steps=scaling.skipped if scaling else None,
            teraflops=teraflops,
            mfu=teraflops / peak if peak else None,
            **{f"{name}_seconds": seconds for name, seconds in self._spent.items()},
        )
        self._logged_step = step
        check_log(self._log)
        append_line(self._log, record.to_json())
        self._records.append(record)
        # The pace, in seconds per step, includes evaluations and checkpoints.
        begun_at, paced_step = self._paced
        pace = (now - begun_at) / (step - paced_step)
        self._listener.on_record(record, pace * (self._options.steps - step))
        # Draw the curve after each evaluation.
        if evaluate:
            with self._timing("evaluation"):
                write_loss_curve(self._folder.loss_curve, self._records, self._folder.path.name)
            self._measured = time.perf_counter(), step  # the next rate excludes evaluation

    def _tokens(self, steps: int) -> int:
        return self._position(steps) * self._trainer.model.config.seq_len

    def _save(self) -> None:
        """Write a record of the steps since the last record, then a checkpoint."""
        trainer = self._trainer
        if self._logged_step != trainer.step and self._read_results is None:
            self._read_results = self._begin_results()
        self._finish_record()
        self._saved_step = trainer.step
        if self._workers.is_first:
            with self._timing("saving"):
                self._write_checkpoint()
            self._measured = time.perf_counter(), trainer.step  # the next rate excludes saving

    def _write_checkpoint(self) -> None:
        """Write a checkpoint in a thread, from copies of the tensors, while training continues.

        Without memory for the copies, training waits until the checkpoint is written.
        """
        self._finish_saving()
        trainer, adapters = self._trainer, self._trainer.adapters
        state_tensors = list(trainer.state_tensors())
        # Later steps change all tensors, so the thread needs copies.
        if self._snapshot is None:
            self._snapshot = self._open_snapshot([*trainer.model.weights.values(), *state_tensors])
        read = trainer.reader(self._snapshot)
        state = TrainingState(
            step=trainer.step,
            tokens_seen=self._tokens(trainer.step),
            sequence_position=self._position(trainer.step),
            random_state={},  # the order of sequences depends only on the seed
            options=self._options.stored(),
        )
        base = str(self._init)
        write = partial(
            save_checkpoint,
            self._folder.path,
            trainer.model.config,
            self._vocabulary,
            read,
            {each.name: (each.dtype, each.shape) for each in state_tensors},
            state,
            eos_id=self._plan.eos_id,
            keep=self._plan.intervals.keep,
            spare=self._options.decay_start,
            write_adapter=None if adapters is None else partial(adapters.write, read, base),
            stop_ids=self._stop_ids,
            card=model_card(self._facts(), self._plan.data, self._records[-1]),
            unchanging=self._unchanging,
            note=self._notes_of_saving.append,
            in_memory=self._snapshot is not None,
        )

        def write_synced() -> None:
            sync(self._folder.log)  # resuming needs the log up to the checkpoint's step
            write()

        if self._snapshot is None:
            write_synced()
        else:
            self._write = write_synced
            self._advance_saving()

    def _open_snapshot(self, tensors: Sequence[Tensor]) -> Snapshot | None:
        """Return a snapshot for the tensors of a checkpoint; None if there is too little memory."""
        if has_room_for_copies(sum(tensor.nbytes for tensor in tensors), free_memory()):
            with suppress(CapacityError):  # the device has too little memory
                return self._trainer.model.operations.open_snapshot(tensors)
        return None

    def _advance_saving(self) -> None:
        """Read a part of the copies, if any; after the last part, begin to write the checkpoint."""
        if self._write is not None and self._snapshot is not None and self._snapshot.advance():
            write, self._write = self._write, None
            self._saving.start(write)

    @contextmanager
    def _saves_on_error(self) -> Iterator[None]:
        """If the block fails, complete the checkpoint whose copies are still being read."""
        try:
            yield
        except Exception:
            with suppress(Exception):  # the first error says more, and the device may be lost
                self._finish_saving()
            raise

    def _finish_saving(self) -> None:
        """Wait until a checkpoint that is being saved, if any, is complete."""
        while self._write is not None:
            self._advance_saving()
        self._saving.wait()
        while self._notes_of_saving:
            self._note_once(self._notes_of_saving.popleft())

    def _summary(self) -> dict[str, Any]:
        last = self._records[-1]
        # All seconds of the command. `last.seconds` lacks the start and the last checkpoint.
        seconds = time.perf_counter() - self._plan.begun
        tokens = self._tokens(last.step - self._first_step)
        logged = last.to_json()  # JSON can't express some numbers; they are None
        return {
            "steps": last.step,
            "tokens": last.tokens,
            **{name: logged.get(name) for name in _RESULTS},
            "parameters": self._trainer.model.config.parameters,
            "seconds": round(last.seconds, 3),
            "tokens_per_second": round(last.tokens_per_second, 1),
            "tokens_per_second_of_all": round(tokens / seconds, 1),
            "seconds_spent": {name: round(value, 3) for name, value in self._spent.items()},
            "checkpoint": str(self._checkpoint()),
            **({"adapter": str(self._checkpoint() / ADAPTER)} if self._trainer.adapters else {}),
        }


def _mean_loss(results: Sequence[StepResult]) -> float:
    """Return the mean loss of the steps that were not skipped, or of all if all were skipped."""
    taken = [result.loss for result in results if not result.is_skipped]
    return float(np.mean(taken or [result.loss for result in results]))


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that receives the numbers of stop signals.

    The signals are SIGINT (Ctrl-C), SIGTERM, which schedulers send before they end a job, and
    SIGHUP. Ignored signals stay ignored. A second signal restores the former handlers and is passed
    to them at once. Outside the main thread the list stays empty.
    """
    asked: list[int] = []
    former: dict[signal.Signals, Any] = {}

    def restore() -> None:
        """Restore the former handlers; a signal may interrupt this and call it again."""
        for number, handler in former.items():
            if handler is not None:  # None: a handler of C code, which Python can't restore
                signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            restore()
            signal.raise_signal(number)

    if threading.current_thread() is threading.main_thread():
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                former[number] = signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()
