"""A training run from its first step, or from a checkpoint, to its last.

`TrainOptions` and the number of sequences taken decide everything that is computed, so a run that
is resumed from a checkpoint on the same device gets the same weights as an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from llmgpu.backend import Backend
from llmgpu.errors import CheckpointError, DeviceError
from llmgpu.files import sync
from llmgpu.lm.adapters import Adapters
from llmgpu.lm.checkpoints.checkpoint import (
    ADAPTER,
    Checkpoint,
    TrainingState,
    open_model,
    prepare_step_folders,
    save_checkpoint,
    step_folder_name,
)
from llmgpu.lm.checkpoints.huggingface import Origin, model_card
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.data.batches import Batch, Batches, token_bytes
from llmgpu.lm.data.token_source import TokenSource
from llmgpu.lm.options import Intervals
from llmgpu.lm.runs.arithmetic import Arithmetic
from llmgpu.lm.runs.loss_curve import write_loss_curve
from llmgpu.lm.runs.memory import SMALLER
from llmgpu.lm.runs.records import EvaluationTotals, RunLog, StepRecord, read_log
from llmgpu.lm.runs.run_folder import RunFolder
from llmgpu.lm.runs.samples import Samples
from llmgpu.lm.runs.settings import RunSettings
from llmgpu.lm.runs.stopping import stop_requests
from llmgpu.lm.trainer import StepResult, Trainer
from llmgpu.lm.workers import ALONE, Workers
from llmgpu.resume_key import check_same_run
from llmgpu.text.chat import end_of_reply
from llmgpu.version import __version__

_RESULTS = ("loss", "validation_loss", "perplexity", "bits_per_byte")  # of the last record


class RunListener(Protocol):
    """Receives the progress of a run."""

    def on_record(self, record: StepRecord, seconds_left: float) -> None:
        """Take a record as it is logged, and the time left at the pace so far."""

    def on_first_step(self, step: int, loss: float) -> None:
        """Take the first step of this process and its loss, unless it is logged."""

    def note(self, text: str) -> None:
        """Take what other tools can't use of a checkpoint, or where a run can be resumed."""


class TrainingRun:
    """A run in its folder, which is locked for it.

    backend: where to compute. checkpoint: the one to resume from, if any. needed_bytes: what
    `training_memory` returned. init: the model whose weights a new run begins with. origin: what
    the model card says it was made from.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: RunSettings,
        backend: Backend,
        source: TokenSource,
        intervals: Intervals,
        checkpoint: Checkpoint | None,
        needed_bytes: int,
        *,
        eos_id: int | None = None,
        init: SavedModel | None = None,
        origin: Origin | None = None,
        evaluation_source: TokenSource | None = None,
        workers: Workers = ALONE,
        listener: RunListener,
    ) -> None:
        """Make everything that a run needs in memory; start its log or resume it.

        Raises:
            InputError: too little text, or other tokens than before. DeviceError: too little
                memory. CheckpointError: the checkpoint does not fit. OutputError: the folder can't
                be written.
        """
        self._folder, self._source = folder, source
        self._vocabulary, self._intervals, self._eos_id = source.vocabulary, intervals, eos_id
        self._evaluation_source, self._origin = evaluation_source, origin
        self._workers, self._listener = workers, listener
        self._options = settings.options
        self._batches = Batches(
            source, self._options, settings.config.seq_len, eos_id, evaluation_source
        )
        self._token_bytes = token_bytes(self._vocabulary)
        if workers.is_first:
            prepare_step_folders(folder.path, 0 if checkpoint is None else checkpoint.state.step)
        begun = None if checkpoint is None else read_log(folder.log).facts
        self._arithmetic = Arithmetic.choose(backend, begun)
        try:
            self._trainer = self._open_trainer(settings.config)
        except DeviceError as error:
            raise DeviceError(
                f"{error}; the run needs {needed_bytes:,} bytes in all, {SMALLER}"
            ) from error
        self._seconds = 0.0  # of training before this process
        self._saved_step = -1
        self._last: StepRecord
        self._init_path = None if init is None else str(init.folder)
        self._set_weights(checkpoint, init)
        self._samples = None
        if workers.is_first:
            self._log = self._open_log(checkpoint, needed_bytes)
            if intervals.sample:
                model = self._trainer.model
                self._samples = Samples(folder.samples, model, self._vocabulary, eos_id)
                self._samples.keep_up_to(self._trainer.step)

    def _open_trainer(self, config: ModelConfig) -> Trainer:
        operations = self._arithmetic.open_operations()
        slots = self._intervals.unread_steps(self._options.steps)
        separator = self._eos_id if self._options.document_mask else None
        return Trainer(operations, config, self._options, slots, self._workers, separator)

    def _set_weights(self, checkpoint: Checkpoint | None, init: SavedModel | None) -> None:
        """Take the weights of a checkpoint or of another model, or draw them."""
        started = init if checkpoint is None else checkpoint
        stops = frozenset[int]() if started is None else started.stop_ids
        self._stop_ids = stops | end_of_reply(self._vocabulary.special_tokens)
        if checkpoint is not None:
            self._load(checkpoint)
        elif init is not None:
            self._trainer.load(init.weights.__getitem__)
        else:
            self._trainer.model.initialise(self._options.seed, self._options.initialisation)

    def _token_facts(self) -> dict[str, Any]:
        source = self._source
        mask = {"loss_mask_crc32": source.mask_checksum} if source.has_mask else {}
        facts: dict[str, Any] = {"tokens": len(source), "tokens_crc32": source.checksum, **mask}
        if source.corpora:
            facts["corpus_tokens"] = source.corpora
        if self._evaluation_source is not None:
            facts["evaluation_tokens_crc32"] = self._evaluation_source.checksum
        return facts

    def _facts(self, needed_bytes: int) -> dict[str, Any]:
        """Return what the log starts with."""
        config = self._trainer.model.config
        return {
            "tool": f"llmgpu {__version__}",
            **self._arithmetic.facts(),
            "fixed_products": self._arithmetic.fixed_products,
            "vocabulary": self._vocabulary.fingerprint,
            "parameters": config.parameters,
            "memory_bytes": needed_bytes,
            **self._token_facts(),
            "training_tokens": self._batches.training_sequences * config.seq_len,
            "evaluation_sequences": self._batches.evaluation_sequences,
            "model": asdict(config),
            "options": self._options.stored(),
            "intervals": asdict(self._intervals),
            "eos_id": self._eos_id,
            **({} if self._init_path is None else {"init": self._init_path}),
            **({} if self._origin is None else {"command": self._origin.command}),
        }

    def _load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint, whose model and options are those of this run."""
        trainer, state = self._trainer, checkpoint.state
        tokens = {"evaluation_tokens_crc32": None, **self._token_facts()}
        begun = read_log(self._folder.log).facts
        self._init_path = begun.get("init")
        if self._origin is not None and "command" in begun:
            self._origin = replace(self._origin, command=str(begun["command"]))
        before = {name: begun.get(name) for name in tokens}
        check_same_run(f"{self._folder.path} was started with other tokens", before, tokens)
        checkpoint.optimizer.require(
            {tensor.name: (tensor.dtype, tensor.shape) for tensor in trainer.state_tensors()}
        )
        if trainer.adapters is None:
            trainer.model.load(checkpoint.weights.__getitem__)
        else:
            self._load_base(checkpoint, str(self._init_path), trainer.adapters)
        trainer.write_state(checkpoint.optimizer.tensors)
        trainer.step = self._saved_step = state.step
        if state.sequence_position != self._position(state.step):
            raise CheckpointError(
                f"{checkpoint.folder}: it has taken {state.sequence_position} sequences in "
                f"{state.step} steps, but its options make {self._position(state.step)}"
            )

    def _load_base(self, checkpoint: Checkpoint, path: str, adapters: Adapters) -> None:
        """Load the model that adapters are for, from the folder that the run began with."""
        base = open_model(path)
        for name, values in checkpoint.weights.items():
            if name not in adapters.adapters and not np.array_equal(base.weights[name], values):
                raise CheckpointError(
                    f"{path} is not the model that the run in {self._folder.path} began with: "
                    f"{name} differs"
                )
        self._trainer.load(base.weights.__getitem__)

    def _open_log(self, checkpoint: Checkpoint | None, needed_bytes: int) -> RunLog:
        """Start the log, or continue after the record of a checkpoint."""
        if checkpoint is None:
            return RunLog.begin(self._folder.log, self._facts(needed_bytes))
        for change in self._arithmetic.changes(read_log(self._folder.log).facts):
            self._listener.note(change)
        state = checkpoint.state
        log = RunLog.resume(self._folder.log, state.step)
        records = read_log(self._folder.log).records
        if not records:
            raise CheckpointError(f"{self._folder.log} has no record of step {state.step}")
        self._last = records[-1]
        self._seconds = self._last.seconds
        return log

    def run(self) -> dict[str, Any]:
        """Train to the last step and return a summary, which is empty but for the first worker.

        Ctrl-C, SIGTERM or SIGHUP finishes the current step, writes a checkpoint, notes how to
        resume and raises KeyboardInterrupt with the signal's number.

        Raises:
            TrainingError: a loss or a gradient is not finite; checkpoints are left as they are.
        """
        # Other kernels, or none, would make other bits, and the slowest worker sets the pace.
        computed = f"{self._arithmetic.backend.driver} in {self._options.precision}"
        self._workers.require_same("WebGPU drivers and precisions", computed)
        self._started = time.perf_counter()
        self._first_step = self._logged_step = self._trainer.step
        # Marks, when and at which step: of the last rate, and of the pace that tells the time left.
        self._measured = self._paced = self._started, self._first_step
        number = 0  # of the signal that asked a worker to stop
        with self._log if self._workers.is_first else nullcontext(), stop_requests() as stop:
            while self._trainer.step < self._options.steps and not number:
                step = self._trainer.step
                if step == self._first_step + 1:  # the time of the first says nothing of the others
                    self._measured = self._paced = time.perf_counter(), step
                self._trainer.take_step(self._step_batches(step), self._options.rate(step))
                ends_round = self._options.ends_round(self._trainer.step)
                if ends_round and self._options.sync_every:
                    self._check_steps()  # while the weights are those of a bad step, if one was
                    self._trainer.end_round()
                self._do_what_is_due(last=self._trainer.step == self._options.steps)
                # After a step, so that there is something to save.
                if ends_round:
                    number = max(self._workers.gather(stop[0] if stop else 0))
            if self._saved_step != self._trainer.step:
                self._save()
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

    @property
    def _decay_start(self) -> int | None:
        """The first step of the decay, if the schedule has a stable part before it."""
        return self._options.stable_end if self._options.schedule == "wsd" else None

    def _position(self, step: int) -> int:
        """Sequences that `step` steps take."""
        return step * self._options.sequences

    def _step_batches(self, step: int) -> list[Batch]:
        first, size = self._position(step), self._options.batch_size
        return [
            self._batches.training(first + index * size)
            for index in range(self._options.grad_accum)
        ]

    def _do_what_is_due(self, *, last: bool) -> None:
        step = self._trainer.step
        evaluate = last or step % self._intervals.evaluation == 0
        if last or evaluate or step % self._intervals.log == 0:
            self._write_record(evaluate=evaluate)
        elif step == self._first_step + 1:
            self._listener.on_first_step(step, self._trainer.results(1)[0].loss)
        # A run of the schedule "wsd" is continued to more steps from where its decay begins.
        if step % self._intervals.save == 0 or step == self._decay_start:
            self._save()
        if self._samples is not None and (last or step % self._intervals.sample == 0):
            self._listener.note(f"sample of step {step}: {self._samples.take(step)}")
            self._measured = time.perf_counter(), step

    def _check_steps(self) -> list[StepResult]:
        """Return the results since the last record; a bad step is repeated to explain it."""
        trainer = self._trainer
        count = trainer.step - self._logged_step
        results = trainer.results(count)
        for offset, result in enumerate(results):
            if result.is_bad:
                step = trainer.step - count + offset
                raise trainer.explain_bad_step(step, self._step_batches(step))
        return results

    def _write_record(self, *, evaluate: bool) -> None:
        results = self._check_steps()
        trainer = self._trainer
        loss = _mean_loss(results)
        if self._options.sync_every:  # each worker has that of its own batches
            loss = float(np.mean(self._workers.gather(loss)))
        if not self._workers.is_first:
            self._logged_step = trainer.step
            return
        now = time.perf_counter()
        (before, measured_step), self._measured = self._measured, (now, trainer.step)
        totals = self._evaluate() if evaluate else None
        rate = self._tokens(trainer.step - measured_step) / (now - before)
        record = StepRecord(
            step=trainer.step,
            loss=loss,
            learning_rate=self._options.rate(trainer.step - 1),
            grad_norm=results[-1].grad_norm if results else 0.0,
            tokens=self._tokens(trainer.step),
            tokens_per_second=rate,
            **self._speeds(rate),
            seconds=self._seconds + now - self._started,
            validation_loss=totals.loss if totals else None,
            bits_per_byte=totals.bits_per_byte if totals else None,
            **self._penalties(results),
        )
        scaling = trainer.updates.loss_scaling
        if scaling is not None:
            record = replace(record, loss_scale=scaling.scale, skipped_steps=scaling.skipped)
        self._logged_step = trainer.step
        self._log.append(record)
        # Seconds per step, evaluations and checkpoints included.
        begun, paced_step = self._paced
        pace = (now - begun) / (trainer.step - paced_step)
        self._listener.on_record(record, pace * (self._options.steps - trainer.step))
        if evaluate:
            records = read_log(self._folder.log).records
            write_loss_curve(self._folder.loss_curve, records, self._folder.path.name)
            self._measured = time.perf_counter(), trainer.step  # evaluating is not training
        self._last = record

    def _speeds(self, tokens_per_second: float) -> dict[str, Any]:
        """Return 10^12 operations of the model a second, and their share of the device's peak."""
        operations = self._trainer.model.config.training_operations(1)
        teraflops = operations * tokens_per_second / 1e12
        peak = self._intervals.peak_teraflops
        return {"teraflops": teraflops, **({"mfu": teraflops / peak} if peak else {})}

    def _penalties(self, results: Sequence[StepResult]) -> dict[str, Any]:
        """Return the means of the parts of the loss that are logged beside the cross-entropy."""
        return {
            name: float(np.mean([getattr(result, name) for result in results]))
            for name in ("smoothing_loss", "z_loss")
        }

    def _evaluate(self) -> EvaluationTotals:
        limit = self._options.evaluation_batches * self._options.batch_size
        totals = EvaluationTotals(self._token_bytes)
        for targets, losses in self._trainer.losses(self._batches.evaluation(limit)):
            totals.add(losses, targets)
        return totals

    def _tokens(self, steps: int) -> int:
        return self._position(steps) * self._trainer.model.config.seq_len

    def _save(self) -> None:
        """Write a checkpoint, after a record of the steps since the last one."""
        trainer = self._trainer
        if self._logged_step != trainer.step:
            self._write_record(evaluate=False)
        self._saved_step = trainer.step
        if self._workers.is_first:
            self._write_checkpoint()
            self._measured = time.perf_counter(), trainer.step  # nor is saving

    def _write_checkpoint(self) -> None:
        trainer, adapters = self._trainer, self._trainer.adapters
        sync(self._folder.log)  # a checkpoint is resumed with the log up to its step
        moments = {tensor.name: tensor for tensor in trainer.state_tensors()}
        save_checkpoint(
            self._folder.path,
            trainer.model.config,
            self._vocabulary,
            {name: trainer.source(tensor) for name, tensor in trainer.model.weights.items()},
            {name: trainer.source(tensor) for name, tensor in moments.items()},
            TrainingState(
                step=trainer.step,
                tokens_seen=self._tokens(trainer.step),
                sequence_position=self._position(trainer.step),
                random_state={},  # the seed alone decides order and initial weights
                options=self._options.stored(),
            ),
            eos_id=self._eos_id,
            keep=self._intervals.keep,
            spare=self._decay_start,
            adapter=None
            if adapters is None
            else adapters.files(trainer.source, str(self._init_path)),
            stop_ids=self._stop_ids,
            card=self._card(),
            note=self._listener.note,
        )

    def _card(self) -> str | None:
        """Return the README.md of a checkpoint."""
        if self._origin is None:
            return None
        origin = replace(self._origin, init=self._init_path)
        return model_card(self._trainer.model.config, origin, self._last)

    def _summary(self) -> dict[str, Any]:
        last = self._last
        logged = last.to_json()  # numbers that JSON can't hold are None
        return {
            "steps": last.step,
            "tokens": last.tokens,
            **{name: logged.get(name) for name in _RESULTS},
            "parameters": self._trainer.model.config.parameters,
            "seconds": round(last.seconds, 3),
            "tokens_per_second": round(last.tokens_per_second, 1),
            "checkpoint": str(self._checkpoint()),
            **({"adapter": str(self._checkpoint() / ADAPTER)} if self._trainer.adapters else {}),
        }


def _mean_loss(results: Sequence[StepResult]) -> float:
    """Return the mean loss of the steps that were not skipped, or of all if all were."""
    taken = [result.loss for result in results if not result.is_skipped]
    return float(np.mean(taken or [result.loss for result in results]))
