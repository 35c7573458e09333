"""Measuring training: a corpus file in the page cache in, a vocabulary file out.

NumPy's merges are the reference. The kernels are timed in a run of their own, because a timed
dispatch is a pass of its own, and over the first TIMED_MERGES merges, when the text is longest: a
device times a limited number of dispatches in one submission, and later submissions have more.
An adapter keeps its buffers from one run to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.engines import Engine, Job, begin_result
from llmgpu.bench.peers import (
    TOKENIZERS,
    peer_name,
    tokenizers_merges,
    train_tokenizers,
    vocabulary_merges,
)
from llmgpu.bench.times import summarize, timed
from llmgpu.bpe.corpus import Corpus, corpus_from_bytes
from llmgpu.bpe.training import TrainingOptions, TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress

WHAT = "bpe-train"
TIMED_MERGES = 256
FIRST_RUN_BYTES = 1000


@dataclass(frozen=True)
class TrainingBench:
    """Engines that are all to make the merges of `reference` from the job's text."""

    job: Job
    reference: Vocabulary
    progress: Progress

    def measure_engine(self, engine: Engine) -> dict[str, Any]:
        """Measure one of llmgpu's engines; an engine that can't do the job says why."""
        result = begin_result(WHAT, engine.name, self.job)
        try:
            start_up = self._start_up(engine)
            seconds, phases = self._runs(engine, result)
            if seconds:
                result["start_up"] = start_up
                self._add_times(result, seconds)
                result["phases"] = {name: summarize(times) for name, times in phases.items()}
                result["kernels"] = self._time_kernels(engine)
        except LlmgpuError as error:
            result["note"] = str(error)
        return result

    def _start_up(self, engine: Engine) -> dict[str, float]:
        if engine.backend.device is None:
            return {}
        text = self.job.text.data[:FIRST_RUN_BYTES]
        options = TrainingOptions(258)
        first, _ = timed(lambda: train_vocabulary(corpus_from_bytes(text), options, engine.backend))
        return {"open device": engine.open_seconds, "compile, first 1 KB": first}

    def _runs(
        self, engine: Engine, result: dict[str, Any]
    ) -> tuple[list[float], dict[str, list[float]]]:
        """Train several times; return no times if an answer is wrong."""
        seconds: list[float] = []
        phases: dict[str, list[float]] = {}
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {engine.name}", run, self.job.runs)
            spent, trained = timed(lambda: self._train_to_file(engine.backend))
            if not self._compare(result, engine, trained.vocabulary):
                return [], {}
            seconds.append(spent)
            for name, value in trained.seconds.items():
                phases.setdefault(name, []).append(value)
        return seconds, phases

    def _train_to_file(self, backend: Backend) -> TrainingResult:
        result = train_file(self.job, backend)
        result.vocabulary.save(self.job.folder / "v.bin")
        return result

    def _compare(self, result: dict[str, Any], engine: Engine, vocabulary: Vocabulary) -> bool:
        same = np.array_equal(vocabulary.merges, self.reference.merges)
        result["correct"] = same
        if engine.backend is NUMPY and same:
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

    def _time_kernels(self, engine: Engine) -> dict[str, Any] | None:
        device = engine.backend.device
        if device is None or "timestamp-query" not in device.features:
            return None
        vocab_size = min(self.job.vocab_size, 256 + TIMED_MERGES)
        device.gpu_seconds.clear()
        device.timing = True
        try:
            trained = train_file(self.job, engine.backend, vocab_size)
        finally:
            device.timing = False
        merges = len(trained.vocabulary.merges)
        seconds = dict(sorted(device.gpu_seconds.items(), key=lambda item: -item[1]))
        return {"merges": merges, "seconds": seconds, "total": sum(seconds.values())}

    def measure_tokenizers(self) -> dict[str, Any]:
        """Measure Hugging Face's trainer where it is installed and can read the text."""
        name = peer_name(TOKENIZERS)
        result = begin_result(WHAT, name or TOKENIZERS, self.job)
        if name is None:
            result["note"] = "not installed: pip install tokenizers"
        elif not self.job.text.is_utf8:
            result["note"] = "left out: the text is not UTF-8, which it can't read"
        else:
            self._train_tokenizers(result)
        return result

    def _train_tokenizers(self, result: dict[str, Any]) -> None:
        expected = vocabulary_merges(self.reference)
        seconds: list[float] = []
        for run in range(self.job.runs):
            self.progress(f"{WHAT}: {result['engine']}", run, self.job.runs)
            spent, tokenizer = timed(self._tokenizers_to_file)
            same = tokenizers_merges(tokenizer) == expected
            result["correct"] = same
            result["answer"] = f"{'the' if same else 'NOT the'} merges of NumPy"
            if not same:
                return
            seconds.append(spent)
        self._add_times(result, seconds)

    def _tokenizers_to_file(self) -> Any:
        tokenizer = train_tokenizers(self.job.path, self.job.vocab_size)
        tokenizer.save(str(self.job.folder / "tokenizer.json"))
        return tokenizer


def train_file(job: Job, backend: Backend, vocab_size: int | None = None) -> TrainingResult:
    """Train on a job's file, for its vocabulary size by default."""
    options = TrainingOptions(vocab_size or job.vocab_size)
    with Corpus([str(job.path)]) as corpus:
        return train_vocabulary(corpus, options, backend)


def measure_training(
    job: Job, engines: list[Engine], peers: bool, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the result of each engine on a job, then that of the peer."""
    bench = TrainingBench(job, train_file(job, NUMPY).vocabulary, progress)
    for engine in engines:
        yield bench.measure_engine(engine)
    if peers:
        yield bench.measure_tokenizers()
