"""Runs in this process: what callers are told on the way and at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.cpu.library import library
from llmgpu.errors import CapacityError, CheckpointError, OutputError
from llmgpu.gpu.device import Device
from llmgpu.lm.checkpoints.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from llmgpu.lm.data.inputs import open_tokens
from llmgpu.lm.model import initial_weights
from llmgpu.lm.ops import recording
from llmgpu.lm.ops.operations import EngineOperations, Operations
from llmgpu.lm.ops.products import describe_products, has_fixed_products
from llmgpu.lm.ops.recording import Snapshot
from llmgpu.lm.options import Intervals
from llmgpu.lm.runs import run as run_module
from llmgpu.lm.runs import settings as settings_module
from llmgpu.lm.runs.run import RunPlan, TrainingRun, stop_requests
from llmgpu.lm.runs.run_folder import RunFolder, StepRecord, open_run_folder, read_log
from llmgpu.lm.runs.settings import new_settings, training_memory
from llmgpu.lm.trainer import Trainer
from llmgpu.text.sources import resolve_sources
from tests.lm.vocabularies import sample_text, sample_vocabulary

pytestmark = pytest.mark.usefixtures("few_partial_norms")

SIZES = {"dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16, "seq_len": 8}
SECONDS = 60  # after which something is not expected to happen
OPTIONS = {"preset": "tiny", "batch_size": 2, "learning_rate": 1e-3, "min_learning_rate": 0.0}


class Heard:
    """Keeps what a run says: records with the seconds that are left, and notes; first losses."""

    def __init__(self, heard: list[Any], first: list[tuple[int, float]]) -> None:
        self.note, self._heard, self._first = heard.append, heard, first

    def on_record(self, record: StepRecord, seconds_left: float) -> None:
        self._heard.append((record, seconds_left))

    def on_first_step(self, step: int, loss: float) -> None:
        self._first.append((step, loss))

    def on_step(self, step: int) -> None:
        self.steps = step


def prepared(
    folder: RunFolder,
    heard: list[Any],
    checkpoint: Checkpoint | None = None,
    first: list[tuple[int, float]] | None = None,
    intervals: Intervals | None = None,
    backend: Backend = NUMPY,
    **asked: Any,
) -> TrainingRun:
    """A run on a sample text; `heard` gets each record with the seconds that are left."""
    text = folder.path.parent / "text.txt"
    if not text.exists():
        text.write_bytes(sample_text())
    vocabulary = sample_vocabulary()
    corpora = [resolve_sources([str(text)])]
    source = open_tokens(corpora, vocabulary, "v.bin", folder.tokens, backend=NUMPY)
    settings = new_settings({**SIZES, **OPTIONS, **asked}, vocabulary.size)
    intervals = intervals or Intervals(log=2)
    seed = settings.options.seed
    plan = RunPlan(
        settings=settings,
        intervals=intervals,
        backend=backend,
        source=source,
        checkpoint=checkpoint,
        weights=None if checkpoint else initial_weights(settings.config, seed),
        command="llmgpu train",
        data=[str(text)],
        begun=time.perf_counter(),
        needed_bytes=training_memory(
            settings, backend, intervals.unread_steps(settings.options.steps)
        ),
    )
    return TrainingRun(folder, plan, Heard(heard, [] if first is None else first))


def test_the_first_loss_is_told_at_once_unless_it_is_logged(tmp_path: Path) -> None:
    heard: list[tuple[StepRecord, float]] = []
    told: list[tuple[int, float]] = []
    with open_run_folder(tmp_path / "run") as folder:
        prepared(folder, heard, first=told, steps=4).run()
        prepared(folder, heard, load_checkpoint(folder.path), told, steps=5).run()
    assert [step for step, _ in told] == [1] and heard[-1][0].step == 5
    assert abs(told[0][1] - heard[0][0].loss) < 1  # a mean over two steps


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda log: log.unlink(), "can't write .*log.jsonl: No such file"),
        (lambda log: os.truncate(log, 100), "log.jsonl was changed by another program"),
        (lambda log: log.write_bytes(log.read_bytes() + b"x"), "log.jsonl was changed"),
        (lambda log: shutil.copy(shutil.move(log, f"{log}.old"), log), "log.jsonl was changed"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
def test_a_run_whose_log_was_changed_ends_at_the_next_record(
    tmp_path: Path, change: Callable[[Path], Any], error: str
) -> None:
    """Its checkpoints could not be resumed."""
    intervals = Intervals(log=1, save=1_000)
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, heard := [], intervals=intervals, steps=8)
        run._listener.on_record = lambda record, left: heard.append(  # type: ignore[method-assign]
            record.step == 3 and change(folder.log)
        )
        with pytest.raises(OutputError, match=error):
            run.run()
    assert len(heard) == 3 and not list_checkpoints(folder.path)


def test_a_run_lets_threads_interrupt_each_other_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, inside = sys.getswitchinterval(), list[float]()
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, [], steps=2)
        monkeypatch.setattr(
            run._listener, "on_step", lambda _: inside.append(sys.getswitchinterval())
        )
        run.run()
    assert inside == pytest.approx([0.0002] * 2) and sys.getswitchinterval() == before


def test_a_device_starts_the_next_step_before_the_record_of_a_step_is_written(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, evaluations, checkpoints, samples and the end wait for the record."""
    losses = []
    for name, backend in (("device", Backend(device, "the device")), ("NumPy", NUMPY)):
        heard: list[Any] = []
        intervals = Intervals(log=1, evaluation=4, save=3, sample=6)
        with open_run_folder(tmp_path / name) as folder:
            run = prepared(folder, heard, intervals=intervals, backend=backend, steps=9)

            def hear(record: StepRecord, left: float, run: Any = run, heard: Any = heard) -> None:
                heard.append((record, run._trainer.step))

            monkeypatch.setattr(run._listener, "on_record", hear)
            run.run()
        records = [each for each in heard if isinstance(each, tuple)]
        assert [record.step for record, _ in records] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        later = [2, 5, 7] if name == "device" else []
        assert [record.step for record, step in records if step > record.step] == later
        losses.append([record.loss for record, _ in records])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_stopped_run_has_the_record_of_its_last_step(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    with open_run_folder(tmp_path / "run") as folder:
        backend = Backend(device, "the device")
        run = prepared(folder, heard, intervals=Intervals(log=2), backend=backend, steps=9)

        def stop_at(step: int) -> None:
            if step == 4:
                signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(run._listener, "on_step", stop_at)
        with pytest.raises(KeyboardInterrupt):
            run.run()
        assert [record.step for record in read_log(folder.log).records] == [2, 4]
        assert load_checkpoint(folder.path).state.step == 4


def test_rates_and_times_left_are_of_this_process_but_for_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of a process, with all that begins, takes 100 s here, and any other 1 s."""
    heard: list[tuple[StepRecord, float]] = []
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def timed(run: TrainingRun) -> TrainingRun:
        take_step, seconds = run._trainer.take_step, iter([100.0])

        def step(*arguments: Any) -> None:
            now[0] += next(seconds, 1.0)
            take_step(*arguments)

        monkeypatch.setattr(run._trainer, "take_step", step)
        return run

    with open_run_folder(tmp_path / "run") as folder:
        timed(prepared(folder, heard, steps=4)).run()
        timed(prepared(folder, heard, load_checkpoint(folder.path), steps=10)).run()
    assert [(record.step, left) for record, left in heard] == [
        (2, 2),
        (4, 0),
        (6, 4),
        (8, 2),
        (10, 0),
    ]
    assert {record.tokens_per_second for record, _ in heard} == {heard[0][0].tokens / 2}
    assert [record.seconds for record, _ in heard] == [101, 103, 204, 206, 208]


def test_a_run_says_what_took_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 steps of 1 s: 7 s before them, batches of 2 s, evaluations of 3 s, copies of 5 s."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def lasting(owner: object, name: str, seconds: float) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            now[0] += seconds
            return real(*given, **named)

        monkeypatch.setattr(owner, name, call)

    heard: list[tuple[StepRecord, float]] = []
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, heard, steps=4, intervals=Intervals(log=1, evaluation=2, save=2))
        lasting(run._trainer, "take_step", 1)
        lasting(run._batches, "training", 2)
        lasting(run._trainer, "losses", 3)
        lasting(run._trainer, "reader", 5)
        now[0] = 7.0
        summary = run.run()
    spent = {"start": 7.0, "data": 8.0, "evaluation": 6.0, "saving": 10.0}
    assert summary["seconds_spent"] == spent
    assert summary["tokens_per_second_of_all"] == round(summary["tokens"] / (7 + 4 + 8 + 6 + 10), 1)
    last = read_log(folder.log).records[-1]
    assert (last.start_seconds, last.data_seconds) == (7, 8)
    assert (last.evaluation_seconds, last.saving_seconds) == (6, 5)  # saved after the record


def test_a_summary_is_json_for_any_losses(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, [], steps=6, learning_rate=10.0, warmup_steps=0, grad_clip=1.0)
        summary = run.run()
    assert summary["validation_loss"] > 710  # e to that is more than a float can be
    assert summary["perplexity"] is None
    json.dumps(summary, allow_nan=False)


def log_facts(folder: RunFolder) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(folder.log.read_text().splitlines()[0])
    return facts


def test_a_resumed_run_says_that_its_bits_may_be_others(tmp_path: Path) -> None:
    """What computed a run is in its log."""
    with open_run_folder(tmp_path / "run") as folder:
        prepared(folder, [], steps=2).run()
        checkpoint, facts = load_checkpoint(folder.path), log_facts(folder)
        rest = folder.log.read_text().splitlines(keepends=True)[1:]
        now = describe_products(fixed=has_fixed_products())
        other = "mkl 1, threads: 8"
        assert facts["products"] == now
        for changes, said in (
            ({}, []),
            ({"products": other}, [f"products was {other} and is {now} now"]),
            ({"engine": "C (arithmetic 0)"}, ["engine was C (arithmetic 0) and is "]),
            (
                {"device": "a GPU", "engine": None, "products": None, "fixed_products": False},
                ["device was a GPU and is ", "products was not recorded and is "],
            ),
        ):
            changed = {name: fact for name, fact in (facts | changes).items() if fact is not None}
            folder.log.write_text("".join([json.dumps(changed) + "\n", *rest]))
            heard: list[Any] = []
            with prepared(folder, heard, checkpoint, steps=4)._log:
                assert len(heard) == len(said)
            for note, expected in zip(heard, said, strict=True):
                assert expected in note and "may differ from those of an uninterrupted run" in note


def test_a_run_says_whether_threads_change_its_bits_and_resumes_so(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "run") as folder:
        prepared(folder, [], steps=2).run()
        facts = log_facts(folder)
        assert facts["fixed_products"] is has_fixed_products()
        assert facts["engine"].startswith("NumPy" if library() is None else "C ")
        resumed = prepared(folder, [], load_checkpoint(folder.path), steps=4)
        operations = resumed._trainer.model.operations
        assert isinstance(operations, Operations)
        assert (operations.products is not None) is has_fixed_products()
        assert isinstance(operations, EngineOperations) is (library() is not None)
        resumed.run()


def test_a_log_that_does_not_say_what_computed_the_run_is_refused(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "run") as folder:
        prepared(folder, [], steps=2).run()
        facts, *rest = folder.log.read_text().splitlines(keepends=True)
        kept = {name: fact for name, fact in json.loads(facts).items()}
        del kept["fixed_products"]
        folder.log.write_text("".join([json.dumps(kept) + "\n", *rest]))
        with pytest.raises(CheckpointError, match="the log of the run lacks fixed_products"):
            prepared(folder, [], load_checkpoint(folder.path), steps=4)


def test_a_resumed_run_drops_the_records_after_its_checkpoint(tmp_path: Path) -> None:
    intervals = Intervals(log=1, save=2, keep=3)
    with open_run_folder(tmp_path / "run") as folder:
        prepared(folder, [], intervals=intervals, steps=5).run()
        records = read_log(folder.log).records
        for step, path in list_checkpoints(folder.path).items():
            if step > 2:  # as if the run had been killed before it saved step 4
                shutil.rmtree(path)
        checkpoint = load_checkpoint(folder.path)
        with prepared(folder, [], checkpoint, intervals=intervals, steps=5)._log:
            assert read_log(folder.log).records == records[:2]


def contents_of(run: Path) -> dict[int, dict[str, bytes]]:
    """The files of a run's checkpoints, by step and name."""
    return {
        step: {path.name: path.read_bytes() for path in folder.iterdir()}
        for step, folder in list_checkpoints(run).items()
    }


def test_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing step 4 ends after step 6 was taken, and the files are those of step 4 all the same.

    Without memory for copies, training waits.
    """
    went_on: list[bool] = []
    for name, share in (("beside", settings_module.COPIES_SHARE), ("waiting", 0.0)):
        reached = threading.Event()

        patience = SECONDS if share else 1

        def save(
            *given: Any,
            reached: threading.Event = reached,
            patience: int = patience,
            **named: Any,
        ) -> Path:
            if given[5].step == 4:
                went_on.append(reached.wait(patience))
            return save_checkpoint(*given, **named)

        monkeypatch.setattr(settings_module, "COPIES_SHARE", share)
        monkeypatch.setattr(run_module, "save_checkpoint", save)
        with open_run_folder(tmp_path / name) as folder:
            run = prepared(folder, [], intervals=Intervals(save=4), steps=7)
            take_step = run._trainer.take_step

            def step(
                *given: Any,
                trainer: Trainer = run._trainer,
                take_step: Any = take_step,
                reached: threading.Event = reached,
            ) -> None:
                take_step(*given)
                if trainer.step == 6:
                    reached.set()

            monkeypatch.setattr(run._trainer, "take_step", step)
            run.run()
    assert went_on == [True, False]
    beside, waiting = contents_of(tmp_path / "beside"), contents_of(tmp_path / "waiting")
    assert beside == waiting and list(beside) == [4, 7]
    assert beside[4]["optimizer.safetensors"] != beside[7]["optimizer.safetensors"]
    assert beside[4]["tokenizer.json"] == beside[7]["tokenizer.json"]


def test_a_run_that_fails_reads_the_rest_of_a_checkpoint_from_the_device(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "SNAPSHOT_PART", 4096)
    with open_run_folder(tmp_path / "run") as folder:
        backend, intervals = Backend(device, "the device"), Intervals(save=4)
        run = prepared(folder, [], intervals=intervals, backend=backend, steps=9)
        take_step = run._trainer.take_step

        def step(*given: Any) -> None:
            take_step(*given)
            if run._trainer.step == 5:
                raise ZeroDivisionError

        monkeypatch.setattr(run._trainer, "take_step", step)
        with pytest.raises(ZeroDivisionError):
            run.run()
        assert load_checkpoint(folder.path).state.step == 4


def test_a_device_is_read_in_parts_while_steps_go_on(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are the same as without copies on the device, for which it may lack the memory."""
    monkeypatch.setattr(recording, "SNAPSHOT_PART", 4096)
    saved_at: dict[int, int] = {}

    def save(*given: Any, trainer: list[Trainer], **named: Any) -> Path:
        saved_at[given[5].step] = trainer[0].step
        return save_checkpoint(*given, **named)

    def open_snapshot(*given: object) -> Snapshot:
        raise CapacityError("out of memory")

    for name in ("in parts", "without copies"):
        trainer: list[Trainer] = []
        monkeypatch.setattr(run_module, "save_checkpoint", partial(save, trainer=trainer))
        with open_run_folder(tmp_path / name) as folder:
            backend, intervals = Backend(device, "the device"), Intervals(save=4)
            run = prepared(folder, [], intervals=intervals, backend=backend, steps=17)
            trainer.append(run._trainer)
            if name == "without copies":
                monkeypatch.setattr(run._trainer.model.operations, "open_snapshot", open_snapshot)
            run.run()
        assert (saved_at[4] > 4) == (name == "in parts")
    in_parts, without = contents_of(tmp_path / "in parts"), contents_of(tmp_path / "without copies")
    assert in_parts == without and list(without) == [16, 17]


def test_a_checkpoint_that_cannot_be_written_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*given: Any, **named: Any) -> Path:
        (tmp_path / "run" / "step-00000004").write_bytes(b"")
        return save_checkpoint(*given, **named)

    monkeypatch.setattr(run_module, "save_checkpoint", save)
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, [], intervals=Intervals(save=4), steps=100_000)
        with pytest.raises(OutputError, match="step-00000004 already exists"):
            run.run()
    assert not list(folder.path.glob(".step*"))


def test_a_run_that_fails_waits_for_the_checkpoint_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed = threading.Event()

    def save(*given: Any, **named: Any) -> Path:
        has_failed.wait(SECONDS)
        return save_checkpoint(*given, **named)

    monkeypatch.setattr(run_module, "save_checkpoint", save)
    with open_run_folder(tmp_path / "run") as folder:
        run = prepared(folder, [], intervals=Intervals(save=4), steps=9)
        take_step = run._trainer.take_step

        def step(*given: Any) -> None:
            take_step(*given)
            if run._trainer.step == 5:
                has_failed.set()
                raise ZeroDivisionError

        monkeypatch.setattr(run._trainer, "take_step", step)
        with pytest.raises(ZeroDivisionError):
            run.run()
        assert load_checkpoint(folder.path).state.step == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_may_interrupt_the_restoring_of_handlers(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    restore = signal.signal
    armed: list[signal.Signals] = []

    def interrupted(which: signal.Signals, handler: Any) -> Any:
        if which in armed:
            armed.clear()
            signal.raise_signal(which)
        return restore(which, handler)

    before = restore(number, signal.default_int_handler)
    monkeypatch.setattr(signal, "signal", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), stop_requests() as asked:
            signal.raise_signal(number)
            armed.append(number)
        assert asked == [number, number] and signal.getsignal(number) is signal.default_int_handler
    finally:
        restore(number, before)
