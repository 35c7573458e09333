"""Measuring training: a corpus file in the page cache in, a vocabulary file out.

NumPy's merges are the reference, for a peer those under its tie rule. A peer that writes no
vocabulary files is done when it has the vocabulary in memory. The kernels are timed in a run of
their own, because a timed dispatch is a pass of its own, and over the first TIMED_MERGES merges,
when the text is longest: a device times a limited number of dispatches in one submission, and later
submissions have more. An adapter keeps its buffers from one run to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.measuring.engines import Engine, Job, begin_result
from llmgpu.bench.measuring.times import summarize, timed
from llmgpu.bench.text.peers_training import TRAINING_PEERS, TrainingPeer
from llmgpu.bpe.training.options import RECOUNT_SLOTS, TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes

WHAT = "bpe-train"
TIMED_MERGES = 256
FIRST_RUN_BYTES = 1000


@dataclass(frozen=True)
class Trainer:
    """An engine and which trainer it runs, of `llmgpu.bpe.training.options.ENGINES`.

    recount_slots: as `TrainingOptions` has it, for the recount trainer.
    """

    engine: Engine
    kind: str = "batched"
    recount_slots: int = RECOUNT_SLOTS

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.engine.name if self.kind == "batched" else f"{self.kind} on {self.engine.name}"

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes of TrainingOptions."""
        return {"engine": self.kind, "recount_slots": self.recount_slots}


@dataclass(frozen=True)
class TrainingBench:
    """Engines that are all to make the merges of `reference` from the job's text."""

    job: Job
    reference: Vocabulary
    progress: Progress

    def measure_trainer(self, trainer: Trainer) -> dict[str, Any]:
        """Measure one of llmgpu's trainers; one that can't do the job says why."""
        result = begin_result(WHAT, trainer.name, self.job)
        if trainer.kind == "recount":
            result["variant"] = f"{trainer.recount_slots:,} slots in workgroup memory"
        try:
            start_up = self._start_up(trainer)
            seconds, phases = self._runs(trainer, result)
            if seconds:
                result["start_up"] = start_up
                self._add_times(result, seconds)
                result["phases"] = {name: summarize(times) for name, times in phases.items()}
                result["kernels"] = self._time_kernels(trainer)
        except LlmgpuError as error:
            result["note"] = str(error)
        return result

    def _start_up(self, trainer: Trainer) -> dict[str, float]:
        backend = trainer.engine.backend
        if backend.device is None:
            return {}
        corpus = corpus_from_bytes(self.job.text.data[:FIRST_RUN_BYTES])
        options = TrainingOptions(258, self.job.pattern, **trainer.changes)
        first, _ = timed(lambda: train_vocabulary(corpus, options, backend))
        return {"open device": trainer.engine.open_seconds, "compile, first 1 KB": first}

    def _runs(
        self, trainer: Trainer, result: dict[str, Any]
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Train several times; return no times if an answer is wrong."""
        seconds: list[float] = []
        phases: dict[str, list[float]] = {}
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {trainer.name}", run, self.job.runs)
            spent, trained = timed(lambda: self._train_to_file(trainer))
            if not self._compare(result, trainer, trained.vocabulary):
                return [], {}
            seconds.append(spent)
            for name, value in trained.seconds.items():
                phases.setdefault(name, []).append(value)
        return seconds, phases

    def _train_to_file(self, trainer: Trainer) -> TrainingResult:
        result = train_file(self.job, trainer.engine.backend, **trainer.changes)
        result.vocabulary.save(self.job.folder / "v.bin")
        return result

    def _compare(self, result: dict[str, Any], trainer: Trainer, vocabulary: Vocabulary) -> bool:
        same = np.array_equal(vocabulary.merges, self.reference.merges)
        result["correct"] = same
        if trainer.engine.backend is NUMPY and same:
            result["answer"] = "the reference"
        else:
            result["answer"] = f"{'the' if same else 'NOT the'} merges of NumPy"
        return same

    def _add_times(self, result: dict[str, Any], seconds: list[float]) -> None:
        merges = len(self.reference.merges)
        result["merges"] = merges
        result["seconds"] = times = summarize(seconds)
        result["merges_per_second"] = merges / times["median"]
        result["mb_per_second"] = len(self.job.text.data) / times["median"] / 1e6

    def _time_kernels(self, trainer: Trainer) -> dict[str, Any] | None:
        backend, device = trainer.engine.backend, trainer.engine.backend.device
        if device is None or "timestamp-query" not in device.features:
            return None
        vocab_size = min(self.job.vocab_size, 256 + TIMED_MERGES)
        device.gpu_seconds.clear()
        device.timing = True
        try:
            trained = train_file(self.job, backend, vocab_size=vocab_size, **trainer.changes)
        finally:
            device.timing = False
        merges = len(trained.vocabulary.merges)
        seconds = dict(sorted(device.gpu_seconds.items(), key=lambda item: -item[1]))
        return {"merges": merges, "seconds": seconds, "total": sum(seconds.values())}

    def measure_peer(self, peer: TrainingPeer) -> dict[str, Any]:
        """Measure a peer; one that can't do the job says why."""
        result = begin_result(WHAT, peer.name, self.job) | {"peer": True}
        reason = peer.why_not(self.job)
        if reason is not None:
            result["note"] = reason
            return result
        reference = self._reference_under(peer.tie)
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {peer.name}", run, self.job.runs)
            spent, learned = timed(lambda: self._train_peer(peer, 256 + len(reference.merges)))
            same = peer.learned(learned) == peer.expected(reference)
            result["correct"] = same
            rule = "" if peer.tie == self.reference.tie else f", --tie {peer.tie}"
            result["answer"] = f"{'the' if same else 'NOT the'} {peer.compared} of NumPy{rule}"
            if not same:
                return result
            seconds.append(spent)
        self._add_times(result, seconds)
        return result

    def _reference_under(self, tie: str) -> Vocabulary:
        if tie == self.reference.tie:
            return self.reference
        return train_file(self.job, NUMPY, tie=tie).vocabulary

    def _train_peer(self, peer: TrainingPeer, vocab_size: int) -> Any:
        learned = peer.train(self.job.path, self.job.pattern, vocab_size)
        if peer.save is not None:
            peer.save(learned, self.job.folder / "peer")
        return learned


def train_file(job: Job, backend: Backend, **changes: Any) -> TrainingResult:
    """Train on a job's file as the job says, apart from what is changed of TrainingOptions."""
    options: dict[str, Any] = {"vocab_size": job.vocab_size, "pattern": job.pattern} | changes
    with Corpus([str(job.path)]) as corpus:
        return train_vocabulary(corpus, TrainingOptions(**options), backend)


def measure_training(
    job: Job, trainers: list[Trainer], peers: bool, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the result of each trainer on a job, then those of the peers."""
    bench = TrainingBench(job, train_file(job, NUMPY).vocabulary, progress)
    for trainer in trainers:
        yield bench.measure_trainer(trainer)
    if peers:
        for peer in TRAINING_PEERS:
            yield bench.measure_peer(peer)
