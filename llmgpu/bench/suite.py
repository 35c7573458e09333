"""The benchmark as a whole: which engines do which parts and jobs, and the record of it.

The recount trainer passes the whole text through the device for every merge, and a software adapter
computes on the CPU, so these get smaller jobs, which the trainers that they are compared with do,
too. Every result states its sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from llmgpu.backend import NUMPY
from llmgpu.bench import (
    BPE_TRAIN,
    EMBEDDING,
    GENERATE,
    KERNELS,
    STARTUP,
    TEXT_PARTS,
    TOKENIZE,
    TRAIN,
    BenchOptions,
)
from llmgpu.bench.embedding import measure_embedding
from llmgpu.bench.engines import Engine, describe_machine, open_engines
from llmgpu.bench.generate import measure_generate
from llmgpu.bench.kernels import measure_kernels
from llmgpu.bench.results import Record, Result, VocabularyFacts
from llmgpu.bench.startup import measure_startup
from llmgpu.bench.timing import measure_limits
from llmgpu.bench.tokenizers.corpus import Job, load_text, make_job
from llmgpu.bench.tokenizers.measure import (
    Trainer,
    all_trainers,
    measure_tokenizing,
    measure_training,
)
from llmgpu.bench.train import measure_train
from llmgpu.bpe.interchange.open import open_vocabulary
from llmgpu.errors import DeviceError
from llmgpu.progress import Progress, no_progress

# Parts about language models have their own sizes.
MODEL_PARTS: dict[str, Callable[[Sequence[Engine], BenchOptions, Progress], Iterator[Result]]] = {
    EMBEDDING: measure_embedding,
    KERNELS: measure_kernels,
    TRAIN: measure_train,
    GENERATE: measure_generate,
    STARTUP: measure_startup,
}
BOTH_DRIVERS = (KERNELS, TRAIN, GENERATE)  # parts that gain by matrix units
RECOUNT_LIMIT = 10_000_000  # bytes of text for a GPU to recount for each merge
SOFTWARE_TRAIN_LIMIT = 100_000  # bytes of text for a software adapter to train on
SOFTWARE_TRAIN_VOCAB_SIZE = 512
QUICK_SOFTWARE_TRAIN_VOCAB_SIZE = 320


class Benchmark:
    """A benchmark that is ready to run, and the record that its results go to.

    record: has each result once it is complete, so that what was measured is there even if the run
    is interrupted.
    """

    def __init__(self, options: BenchOptions) -> None:
        """Read the text and the vocabulary, and open devices.

        Raises:
            InputError: the corpus can't be read.
            VocabularyError: the vocabulary can't be read.
            DeviceError: a device isn't there or can't be opened.
        """
        self._options = options
        path = options.vocabulary
        self._vocabulary = None if path is None else open_vocabulary(path)
        is_about_text = bool(set(options.parts) & set(TEXT_PARTS))
        self._text = load_text(options.corpus, options.limit) if is_about_text else None
        self._engines, not_opened = open_engines(options.devices)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        machine = describe_machine(self._engines)
        self.record = Record(machine, [], complete=False, not_opened=not_opened, measured=now)
        if self._text is not None:
            self.record.text = self._text.describe()
        if path is not None and self._vocabulary is not None:
            self.record.vocabulary = VocabularyFacts(path, self._vocabulary.fingerprint)

    def run(self, progress: Progress = no_progress) -> None:
        """Measure; the record is marked as complete at the end."""
        with tempfile.TemporaryDirectory(prefix="llmgpu-bench-") as folder:
            for result in self._results(Path(folder), progress):
                self.record.results.append(result)
                if result.note.startswith("not installed"):
                    self.record.missing_peers[result.engine] = result.note
        self.record.complete = True

    def _results(self, folder: Path, progress: Progress) -> Iterator[Result]:
        """Yield the results of all parts; measure engines' limits, for the record, between them."""
        options, engines = self._options, self._engines
        if self._text is not None:
            sizes = (options.vocab_size, options.pattern, options.runs)
            yield from self._text_results(make_job(self._text, folder, *sizes), progress)
        parts = [part for part in MODEL_PARTS if part in options.parts]
        for number, engine in enumerate(engines if set(parts) - {STARTUP} else ()):
            progress("limits", number, len(engines))
            with suppress(DeviceError):  # no memory for it, as the parts then say
                self.record.limits[engine.name] = measure_limits(engine.backend)
        for part in parts:
            measured = [e for e in engines if part in BOTH_DRIVERS or not e.again]
            yield from MODEL_PARTS[part](measured, options, progress)

    def _text_results(self, job: Job, progress: Progress) -> Iterator[Result]:
        options, engines = self._options, [e for e in self._engines if not e.again]
        if BPE_TRAIN in options.parts:
            for own_job, trainers in _training_jobs(job, engines, options.quick):
                peers = options.peers and own_job == job
                yield from measure_training(own_job, trainers, peers, progress)
        if TOKENIZE in options.parts:
            how = (self._vocabulary, options.match)
            yield from measure_tokenizing(job, engines, options.peers, progress, *how)


def _training_jobs(job: Job, engines: list[Engine], quick: bool) -> list[tuple[Job, list[Trainer]]]:
    """Return the whole job and smaller ones, each with who is to do it."""
    numpy = [Trainer(engine) for engine in engines if engine.backend is NUMPY]
    software = [engine for engine in engines if engine.is_software_adapter]
    hardware = [e for e in engines if e.backend is not NUMPY and not e.is_software_adapter]
    software_size = QUICK_SOFTWARE_TRAIN_VOCAB_SIZE if quick else SOFTWARE_TRAIN_VOCAB_SIZE
    jobs = {job: numpy + [Trainer(engine) for engine in hardware]}
    for adapters, limit, size in (
        (hardware, RECOUNT_LIMIT, job.vocab_size),
        (software, SOFTWARE_TRAIN_LIMIT, software_size),
    ):
        if adapters:
            trainers = numpy + [t for engine in adapters for t in all_trainers(engine)]
            listed = jobs.setdefault(_smaller(job, limit, size), [])
            listed += [trainer for trainer in trainers if trainer not in listed]
    return list(jobs.items())


def _smaller(job: Job, limit: int, vocab_size: int) -> Job:
    """Return a job with less of the text and fewer ids, or the same one if it is small enough."""
    if len(job.text.data) <= limit and job.vocab_size <= vocab_size:
        return job
    size = min(job.vocab_size, vocab_size)
    return make_job(job.text.first(limit), job.folder, size, job.pattern, job.runs)
