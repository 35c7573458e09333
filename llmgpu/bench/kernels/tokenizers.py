"""Measuring the kernels of tokenizers: what a training and an encoding of a text spend in each.

They work on what earlier kernels have left, so they are timed where they are, in a whole job, and
only on devices with timestamps. Sums over the job are given for those that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.limits import raise_clocks
from llmgpu.bench.results import KERNELS, Result, Times
from llmgpu.bench.timing import PartOptions, has_timestamps, time_kernels
from llmgpu.bench.tokenizers.corpus import load_text
from llmgpu.bench.tokenizers.tokenize import encode_all
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress
from llmgpu.text.corpus import corpus_from_bytes

PATTERN = "gpt2"
VOCAB_SIZE = 512
TEXT_BYTES, QUICK_TEXT_BYTES = 10_000_000, 1_000_000
CPU_TEXT_BYTES, QUICK_CPU_TEXT_BYTES = 100_000, 20_000
LEAST_SHARE = 0.01  # of a job's time that a kernel must take to get a result


@dataclass(frozen=True)
class TokenizerJob:
    """A text to train on and to encode; an answer is checked against what NumPy makes of it."""

    data: bytes
    vocabulary: Vocabulary
    ids: Any

    @classmethod
    def make(cls, nbytes: int) -> TokenizerJob:
        """Take the first bytes of the default text, and let NumPy work on them."""
        data = load_text([], nbytes).data
        vocabulary = train(data, NUMPY)
        return cls(data, vocabulary, encode(data, vocabulary, NUMPY))

    def train_correctly(self, backend: Backend) -> bool:
        """Train; return whether the merges are NumPy's."""
        return np.array_equal(train(self.data, backend).merges, self.vocabulary.merges)

    def encode_correctly(self, backend: Backend) -> bool:
        """Encode; return whether the ids are NumPy's."""
        return np.array_equal(encode(self.data, self.vocabulary, backend), self.ids)


def train(data: bytes, backend: Backend) -> Vocabulary:
    """Train the vocabulary of a job."""
    options = TrainingOptions(VOCAB_SIZE, PATTERN)
    return train_vocabulary(corpus_from_bytes(data), options, backend).vocabulary


def encode(data: bytes, vocabulary: Vocabulary, backend: Backend) -> Any:
    """Return the ids of a job."""
    return encode_all(open_encoder(vocabulary, backend), corpus_from_bytes(data))


def measure_tokenizer_kernels(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield a result for each kernel of each job on each engine that has timestamps."""
    jobs: dict[int, TokenizerJob] = {}
    for engine in engines:
        if not has_timestamps(engine.backend.device):
            continue
        nbytes = text_bytes(engine, quick=options.quick)
        if nbytes not in jobs:
            jobs[nbytes] = TokenizerJob.make(nbytes)
        job = jobs[nbytes]
        for name, work, answer in (
            (f"training {VOCAB_SIZE} ids", job.train_correctly, "the merges of NumPy"),
            ("encoding", job.encode_correctly, "the ids of NumPy"),
        ):
            progress(f"{KERNELS}: {engine.name}, {name}", 0, 1)
            text = f"{name}, {len(job.data) / 1e6:,.2f} MB of text, pattern {PATTERN}"
            begun = Result(KERNELS, engine.name, job=text)
            yield from _measure_job(begun, engine, work, answer, options.runs)


def text_bytes(engine: Engine, *, quick: bool) -> int:
    """Return how much text an engine gets."""
    if engine.is_software_adapter:
        return QUICK_CPU_TEXT_BYTES if quick else CPU_TEXT_BYTES
    return QUICK_TEXT_BYTES if quick else TEXT_BYTES


def _measure_job(
    begun: Result,
    engine: Engine,
    work: Callable[[Backend], bool],
    answer: str,
    count: int,
) -> Iterator[Result]:
    """Do a job once to compare its answer, which also compiles, then with timestamps."""
    device = engine.backend.device
    assert device is not None
    runs: list[dict[str, float]] = []
    try:
        if not work(engine.backend):
            yield replace(begun, correct=False, answer=f"NOT {answer}")
            return
        for _ in range(count):
            raise_clocks(engine)
            runs.append(time_kernels(device, lambda: work(engine.backend)))
    except LlmgpuError as error:
        yield replace(begun, note=str(error))
        return
    times = {name: Times.of([spent.get(name, 0.0) for spent in runs]) for name in runs[0]}
    total = sum(spent.median for spent in times.values())
    begun = replace(begun, correct=True, answer=answer, clock="gpu")
    for name, spent in sorted(times.items(), key=lambda item: -item[1].median):
        share = spent.median / total
        if share >= LEAST_SHARE:
            yield replace(begun, variant=name, seconds=spent, share_of_kernels=share)
