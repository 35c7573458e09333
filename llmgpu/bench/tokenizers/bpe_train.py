"""Measuring training: a corpus file in the page cache in, a vocabulary file out.

NumPy's merges are the reference, for a peer those under its tie rule. A peer that writes no
vocabulary files is done when it has the vocabulary in memory. The kernels are timed in a separate
run, because a timed dispatch is a pass by itself, and over the first TIMED_MERGES merges, when the
text is longest: a device times a limited number of dispatches in one submission, and later
submissions have more. An adapter keeps its buffers from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.engines import Engine
from llmgpu.bench.peers.tokenizers import TRAINING_PEERS, TrainingPeer
from llmgpu.bench.results import BPE_TRAIN, KernelTimes, Result, Times
from llmgpu.bench.timing import kernel_times, timed
from llmgpu.bench.tokenizers.corpus import Job
from llmgpu.bpe.training.options import RECOUNT_SLOTS, TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes

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
    def variant(self) -> str:
        """What tells trainers of one name apart."""
        if self.kind != "recount":
            return ""
        return f"{self.recount_slots:,} slots in workgroup memory"

    @property
    def changes(self) -> dict[str, Any]:
        """The options in which it differs from the default trainer."""
        return {"engine": self.kind, "recount_slots": self.recount_slots}


def all_trainers(engine: Engine) -> list[Trainer]:
    """Return the batched trainer of an engine, and the recount trainer with each table."""
    tables = (RECOUNT_SLOTS, 2 * RECOUNT_SLOTS)
    return [Trainer(engine), *(Trainer(engine, "recount", slots) for slots in tables)]


@dataclass(frozen=True)
class TrainingBench:
    """Engines that are all to make the merges of `reference` from the job's text."""

    job: Job
    reference: Vocabulary
    progress: Progress

    def measure_trainer(self, trainer: Trainer) -> Result:
        """Measure one of llmgpu's trainers; one that can't do the job says why."""
        begun = replace(self.job.begin(BPE_TRAIN, trainer.name), variant=trainer.variant)
        backend = trainer.engine.backend
        phases: dict[str, list[float]] = {}

        def train() -> bool:
            trained = train_file(self.job, backend, **trainer.changes)
            trained.vocabulary.save(self.job.folder / "v.bin")
            for name, seconds in trained.seconds.items():
                phases.setdefault(name, []).append(seconds)
            return np.array_equal(trained.vocabulary.merges, self.reference.merges)

        try:
            start_up = self._start_up(trainer)
            result = self._measure_runs(begun, "merges of NumPy", train)
            if not result.correct:
                return result
            answer = "the reference" if backend is NUMPY else result.answer
            return replace(
                result,
                answer=answer,
                start_up=start_up,
                phases={name: Times.of(seconds) for name, seconds in phases.items()},
                kernels=self._time_kernels(trainer),
            )
        except LlmgpuError as error:
            return replace(begun, note=str(error))

    def measure_peer(self, peer: TrainingPeer) -> Result:
        """Measure a peer; one that can't do the job says why."""
        begun = replace(self.job.begin(BPE_TRAIN, peer.name), peer=True)
        reason = peer.why_not(self.job)
        if reason is not None:
            return replace(begun, note=reason)
        reference, rule = self.reference, ""
        if peer.tie != reference.tie:
            reference = train_file(self.job, NUMPY, tie=peer.tie).vocabulary
            rule = f", --tie {peer.tie}"
        expected = peer.expected(reference)
        size, target = 256 + len(reference.merges), self.job.folder / "peer"

        def train() -> bool:
            return peer.train(self.job.path, self.job.pattern, size, target) == expected

        return self._measure_runs(begun, f"{peer.compared} of NumPy{rule}", train)

    def _measure_runs(self, begun: Result, answer: str, train: Callable[[], bool]) -> Result:
        """Train several times; without times if an answer is wrong."""
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{BPE_TRAIN}: {begun.engine}", run, self.job.runs)
            spent, same = timed(train)
            if not same:
                return replace(begun, correct=False, answer=f"NOT the {answer}")
            seconds.append(spent)
        times, merges = Times.of(seconds), len(self.reference.merges)
        return replace(
            begun,
            correct=True,
            answer=f"the {answer}",
            merges=merges,
            seconds=times,
            merges_per_second=merges / times.median,
            mb_per_second=len(self.job.text.data) / times.median / 1e6,
        )

    def _start_up(self, trainer: Trainer) -> dict[str, float]:
        backend = trainer.engine.backend
        if backend.device is None:
            return {}
        corpus = corpus_from_bytes(self.job.text.data[:FIRST_RUN_BYTES])
        options = TrainingOptions(258, self.job.pattern, **trainer.changes)
        first, _ = timed(lambda: train_vocabulary(corpus, options, backend))
        return {"open device": trainer.engine.open_seconds, "compile, first 1 KB": first}

    def _time_kernels(self, trainer: Trainer) -> KernelTimes | None:
        size = min(self.job.vocab_size, 256 + TIMED_MERGES)
        merges: list[int] = []

        def train() -> None:
            backend, changes = trainer.engine.backend, trainer.changes
            trained = train_file(self.job, backend, vocab_size=size, **changes)
            merges.append(len(trained.vocabulary.merges))

        times = kernel_times(trainer.engine.backend.device, train)
        return None if times is None else replace(times, merges=merges[0])


def train_file(job: Job, backend: Backend, **changes: Any) -> TrainingResult:
    """Train on a job's file with its options, some of which may be changed."""
    options: dict[str, Any] = {"vocab_size": job.vocab_size, "pattern": job.pattern} | changes
    with Corpus([str(job.path)]) as corpus:
        return train_vocabulary(corpus, TrainingOptions(**options), backend)


def measure_training(
    job: Job, trainers: list[Trainer], peers: bool, progress: Progress
) -> Iterator[Result]:
    """Yield the result of each trainer on a job, then those of the peers."""
    bench = TrainingBench(job, train_file(job, NUMPY).vocabulary, progress)
    for trainer in trainers:
        yield bench.measure_trainer(trainer)
    if peers:
        for peer in TRAINING_PEERS:
            yield bench.measure_peer(peer)
