"""Measuring the kernels of tokenizers: what a training and an encoding of a text spend in each.

They work on what earlier kernels have left, so they are timed where they are, in a whole job, and
only on devices with timestamps. Sums over the job are given for those that matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.limits import raise_clocks
from llmgpu.bench.results import KERNELS, Result, Times
from llmgpu.bench.timing import PartOptions, has_timestamps, kernel_times
from llmgpu.bench.tokenizers.corpus import load_text
from llmgpu.bench.tokenizers.measure import encode_all
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

Work = Callable[[Backend], NDArray[Any]]


def measure_tokenizer_kernels(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield a result for each kernel of each job on each engine that has timestamps."""
    jobs: dict[int, list[tuple[Result, Work, NDArray[Any]]]] = {}
    for engine in engines:
        if has_timestamps(engine.backend.device):
            nbytes = text_bytes(engine, quick=options.quick)
            for begun, work, expected in jobs.get(nbytes) or jobs.setdefault(nbytes, _jobs(nbytes)):
                progress(f"{KERNELS}: {engine.name}, {begun.job.partition(',')[0]}", 0, 1)
                begun = replace(begun, engine=engine.name)
                yield from _measure_job(begun, engine, work, expected, options.runs)


def _jobs(nbytes: int) -> list[tuple[Result, Work, NDArray[Any]]]:
    """Return what the results of a training and an encoding share, the work, and NumPy's answer."""
    data = load_text([], nbytes).data

    def train(backend: Backend) -> Vocabulary:
        options = TrainingOptions(VOCAB_SIZE, PATTERN)
        return train_vocabulary(corpus_from_bytes(data), options, backend).vocabulary

    def encode(backend: Backend) -> NDArray[Any]:
        return encode_all(open_encoder(vocabulary, backend), corpus_from_bytes(data))

    vocabulary = train(NUMPY)
    text = f"{len(data) / 1e6:,.2f} MB of text, pattern {PATTERN}"
    training = Result(KERNELS, "", job=f"training {VOCAB_SIZE} ids, {text}")
    encoding = Result(KERNELS, "", job=f"encoding, {text}", answer="the ids of NumPy")
    return [
        (
            replace(training, answer="the merges of NumPy"),
            lambda backend: train(backend).merges,
            vocabulary.merges,
        ),
        (encoding, encode, encode(NUMPY)),
    ]


def text_bytes(engine: Engine, *, quick: bool) -> int:
    """Return how much text an engine gets."""
    if engine.is_software_adapter:
        return QUICK_CPU_TEXT_BYTES if quick else CPU_TEXT_BYTES
    return QUICK_TEXT_BYTES if quick else TEXT_BYTES


def _measure_job(
    begun: Result, engine: Engine, work: Work, expected: NDArray[Any], count: int
) -> Iterator[Result]:
    """Do a job once to compare its answer, which also compiles, then with timestamps."""
    runs: list[dict[str, float]] = []
    try:
        if not np.array_equal(work(engine.backend), expected):
            yield replace(begun, correct=False, answer=f"NOT {begun.answer}")
            return
        for _ in range(count):
            raise_clocks(engine)
            kernels = kernel_times(engine.backend.device, lambda: work(engine.backend))
            runs.append(kernels.seconds if kernels else {})
    except LlmgpuError as error:
        yield replace(begun, answer="", note=str(error))
        return
    times = {name: Times.of([spent.get(name, 0.0) for spent in runs]) for name in runs[0]}
    total = sum(spent.median for spent in times.values())
    begun = replace(begun, correct=True, clock="gpu")
    for name, spent in sorted(times.items(), key=lambda item: -item[1].median):
        share = spent.median / total
        if share >= LEAST_SHARE:
            yield replace(begun, variant=name, seconds=spent, share_of_kernels=share)
