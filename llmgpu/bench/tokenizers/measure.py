"""Measuring training and tokenizing: from a text file in the page cache to a file.

The CPU's merges are the reference for training, for a peer those under its tie rule. A peer that
writes no vocabulary files is done when it has the vocabulary in memory. The kernels are timed in a
separate run, because a timed dispatch is a pass by itself, and over the first TIMED_MERGES merges,
when the text is longest: a device times a limited number of dispatches in one submission, and later
submissions have more. An adapter keeps its buffers from one run to the next.

The CPU's ids are the reference for tokenizing, for peers too: those get the same vocabulary, in a
file of theirs. Every run has a new encoder, because encoders remember words; it is open before the
clock starts, and what that took is reported as start-up. Peers may make tables when they get their
first text, which is part of opening them: they get two words before the clock starts. Unless one
match rule is asked for, engines also take the longest tokens first (variant "greedy"), which no
peer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BPE_TRAIN, KERNELS, TOKENIZE, BenchOptions
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.bench.peers import tokenizers as peers
from llmgpu.bench.peers.tokenizers import EncodeFile, TokenizingPeer, TrainingPeer
from llmgpu.bench.results import KernelTimes, Result, Times
from llmgpu.bench.timing import has_timestamps, kernel_times, raise_clocks, timed
from llmgpu.bench.tokenizers.corpus import Job, load_text
from llmgpu.bpe.encoding.encoder import CollectedIds, EncodedSlice, Encoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import FORMATS
from llmgpu.bpe.training.options import RECOUNT_SLOTS, TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus, corpus_from_bytes
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.sinks import TokenWriter, id_dtype
from llmgpu.tokens.tokenizing import encode_into

TIMED_MERGES = 256
FIRST_RUN_BYTES = 1000
_READ_BYTES = 4 << 20
_TWO_WORDS = b"two words\n"
KERNELS_PATTERN, KERNELS_VOCAB_SIZE = "gpt2", 512
TEXT_BYTES, QUICK_TEXT_BYTES = 10_000_000, 1_000_000  # whose kernels are timed
CPU_TEXT_BYTES, QUICK_CPU_TEXT_BYTES = 100_000, 20_000
LEAST_SHARE = 0.01  # of a job's time that a kernel must take to get a result

Work = Callable[[Backend], NDArray[Any]]


@dataclass(frozen=True)
class Trainer:
    """An engine and which trainer it runs, of `llmgpu.bpe.training.options.ENGINES`.

    recount_slots: as `TrainingOptions` has it, for the recount trainer.
    """

    engine: Engine
    kind: str = "batched"
    recount_slots: int = RECOUNT_SLOTS

    @property
    def changes(self) -> dict[str, Any]:
        """The options in which it differs from the default trainer."""
        return {"engine": self.kind, "recount_slots": self.recount_slots}

    def begin(self, job: Job) -> Result:
        """Return a result without measurements."""
        name = self.engine.host_name
        if self.kind == "batched":
            return job.begin(BPE_TRAIN, name)
        variant = f"{self.recount_slots:,} slots in workgroup memory"
        return replace(job.begin(BPE_TRAIN, f"{self.kind} on {name}"), variant=variant)


def all_trainers(engine: Engine) -> list[Trainer]:
    """Return the batched trainer of an engine, and the recount trainer with each table."""
    tables = (RECOUNT_SLOTS, 2 * RECOUNT_SLOTS)
    return [Trainer(engine), *(Trainer(engine, "recount", slots) for slots in tables)]


@dataclass(frozen=True)
class TrainingBench:
    """Engines that should all make the merges of `reference` from the job's text."""

    job: Job
    reference: Vocabulary
    progress: Progress

    def measure_trainer(self, trainer: Trainer) -> Result:
        """Measure one of llmgpu's trainers; one that can't do the job says why."""
        begun, backend = trainer.begin(self.job), trainer.engine.backend
        phases: dict[str, list[float]] = {}

        def train() -> bool:
            trained = train_file(self.job, backend, **trainer.changes)
            trained.vocabulary.save(self.job.folder / "v.bin")
            for name, seconds in trained.seconds.items():
                phases.setdefault(name, []).append(seconds)
            return np.array_equal(trained.vocabulary.merges, self.reference.merges)

        try:
            start_up = self._start_up(trainer)
            result = self._measure_runs(begun, f"merges of {cpu_engine()}", train)
            if not result.correct:
                return result
            kernels = self._time_kernels(trainer)
        except LlmgpuError as error:
            return replace(begun, note=str(error))
        answer = "the reference" if backend is NUMPY else result.answer
        medians = {name: Times.of(seconds) for name, seconds in phases.items()}
        return replace(result, answer=answer, start_up=start_up, phases=medians, kernels=kernels)

    def measure_peer(self, peer: TrainingPeer) -> Result:
        """Measure a peer; one that can't do the job says why."""
        begun = peer.begin(BPE_TRAIN, self.job)
        if begun.note:
            return begun
        reference, rule = self.reference, ""
        if peer.tie != reference.tie:
            reference = train_file(self.job, NUMPY, tie=peer.tie).vocabulary
            rule = f", --tie {peer.tie}"
        expected = peer.expected(reference)
        size, target = 256 + len(reference.merges), self.job.folder / "peer"

        def train() -> bool:
            return peer.train(self.job.path, self.job.pattern, size, target) == expected

        return self._measure_runs(begun, f"{peer.compared} of {cpu_engine()}{rule}", train)

    def _measure_runs(self, begun: Result, answer: str, train: Callable[[], bool]) -> Result:
        """Train several times; without times if an answer is wrong."""
        seconds: list[float] = []
        for _ in self.job.count_runs(begun, self.progress):
            spent, same = timed(train)
            if not same:
                return replace(begun, correct=False, answer=f"NOT the {answer}")
            seconds.append(spent)
        merges = len(self.reference.merges)
        rate = merges / Times.of(seconds).median
        result = replace(begun, answer=f"the {answer}", merges=merges, merges_per_second=rate)
        return self.job.finish(result, seconds)

    def _start_up(self, trainer: Trainer) -> dict[str, float]:
        backend = trainer.engine.backend
        if backend.device is None:
            return {}
        corpus = corpus_from_bytes(self.job.text.data[:FIRST_RUN_BYTES])
        options = TrainingOptions(258, self.job.pattern, **trainer.changes)
        first, _ = timed(partial(train_vocabulary, corpus, options, backend))
        return {"open device": trainer.engine.open_seconds, "compile, first 1 KB": first}

    def _time_kernels(self, trainer: Trainer) -> KernelTimes | None:
        backend, changes = trainer.engine.backend, trainer.changes
        size = min(self.job.vocab_size, 256 + TIMED_MERGES)
        merges: list[int] = []

        def train() -> None:
            trained = train_file(self.job, backend, vocab_size=size, **changes)
            merges.append(len(trained.vocabulary.merges))

        times = kernel_times(backend.device, train)
        return None if times is None else replace(times, merges=merges[0])


def train_file(job: Job, backend: Backend, **changes: Any) -> TrainingResult:
    """Train on a job's file with its options, some of which may be changed."""
    options: dict[str, Any] = {"vocab_size": job.vocab_size, "pattern": job.pattern} | changes
    with Corpus([str(job.path)]) as corpus:
        return train_vocabulary(corpus, TrainingOptions(**options), backend)


def measure_training(
    job: Job, trainers: list[Trainer], with_peers: bool, progress: Progress
) -> Iterator[Result]:
    """Yield the result of each trainer on a job, then those of the peers."""
    bench = TrainingBench(job, train_file(job, NUMPY).vocabulary, progress)
    yield from map(bench.measure_trainer, trainers)
    yield from map(bench.measure_peer, peers.TRAINING_PEERS if with_peers else ())


@dataclass(frozen=True)
class TokenizingBench:
    """Engines that should all encode the job's text with the vocabulary in a file.

    reference: uint32 (tokens,), the ids that the CPU gives.
    """

    job: Job
    vocabulary: Vocabulary
    vocabulary_path: Path
    reference: NDArray[np.uint32]
    progress: Progress

    def measure_engine(self, engine: Engine) -> Result:
        """Measure one of llmgpu's engines; an engine that can't do the job says why."""
        begun = self.job.begin(TOKENIZE, engine.host_name)
        if self.vocabulary.match == "greedy":
            begun = replace(begun, variant="greedy")
        try:
            result = self._measure_runs(begun, partial(self._open, engine), self._encode_file)
            if not result.correct:
                return result
            phases, kernels = self._phases(engine), self._time_kernels(engine)
        except LlmgpuError as error:
            return replace(begun, note=str(error))
        answer = "the reference" if engine.backend is NUMPY else result.answer
        start_up = {"open device": engine.open_seconds} | result.start_up
        return replace(result, answer=answer, start_up=start_up, phases=phases, kernels=kernels)

    def measure_peer(self, peer: TokenizingPeer) -> Result:
        """Measure a peer; one that can't do the job says why."""
        begun = peer.begin(TOKENIZE, self.job)
        if begun.note:
            return begun
        path = self.job.folder / f"bench-v.{peer.format}"
        try:
            FORMATS[peer.format].write(self.vocabulary, path)
        except VocabularyError as error:
            return replace(begun, note=f"left out: {error}")
        words = self.job.folder / "two-words.txt"
        words.write_bytes(_TWO_WORDS)

        def open_peer() -> EncodeFile:
            encode = peer.open(path, self.vocabulary.pattern)
            encode(words)
            return encode

        try:
            return self._measure_runs(begun, open_peer, self._encode_with_peer)
        except ImportError as error:  # a package that it needs is missing
            return replace(begun, note=f"left out: {error}")

    @property
    def _target(self) -> Path:
        return self.job.folder / "ids.bin"

    def _open(self, engine: Engine) -> Encoder:
        return open_encoder(Vocabulary.load(self.vocabulary_path), engine.backend)

    def _encode_file(self, encoder: Encoder) -> None:
        with Corpus([str(self.job.path)]) as corpus, self._open_writer() as writer:
            encode_into(writer, encoder, corpus, no_progress)

    def _encode_with_peer(self, encode: EncodeFile) -> None:
        encode(self.job.path).astype(id_dtype(self.vocabulary.size)).tofile(self._target)

    def _open_writer(self) -> TokenWriter:
        size, fingerprint = self.vocabulary.size, self.vocabulary.fingerprint
        return open_writer(self._target, "bin", vocabulary_size=size, fingerprint=fingerprint)

    def _measure_runs(
        self, begun: Result, open_new: Callable[[], Any], encode: Callable[[Any], None]
    ) -> Result:
        """Compare the ids of a first run; time encodings of the file, each by a new encoder."""
        opening, encoder = timed(open_new)
        first, _ = timed(partial(encode, encoder))
        ids = np.fromfile(self._target, id_dtype(self.vocabulary.size))
        begun = replace(begun, tokens=len(ids))
        if not np.array_equal(ids, self.reference):
            return replace(begun, correct=False, answer=f"NOT the ids of {cpu_engine()}")
        runs = self.job.count_runs(begun, self.progress)
        seconds = [timed(partial(encode, open_new()))[0] for _ in runs]
        start_up = {"open encoder": opening, "first run": first}
        result = replace(begun, answer=f"the ids of {cpu_engine()}", start_up=start_up)
        return self.job.finish(result, seconds)

    def _phases(self, engine: Engine) -> dict[str, Times]:
        """Time each part alone; end to end they overlap, so their sum may be more."""
        runs = range(self.job.runs)
        return {
            "read": Times.of([timed(self._read)[0] for _ in runs]),
            "read and encode": Times.of([self._time_encoding(engine) for _ in runs]),
            "write": Times.of([timed(self._write)[0] for _ in runs]),
        }

    def _time_encoding(self, engine: Engine) -> float:
        """Time encoding from the file into one array."""
        encoder = self._open(engine)
        with Corpus([str(self.job.path)]) as corpus:
            return timed(partial(encode_all, encoder, corpus))[0]

    def _read(self) -> None:
        buffer = np.empty(_READ_BYTES, np.uint8)
        with Corpus([str(self.job.path)]) as corpus:
            while not corpus.read_into(buffer).end:
                pass

    def _write(self) -> None:
        with self._open_writer() as writer:
            writer.write(EncodedSlice(self.reference, np.zeros(1, np.int64)))

    def _time_kernels(self, engine: Engine) -> KernelTimes | None:
        device = engine.backend.device
        times = kernel_times(device, partial(self._encode_file, self._open(engine)))
        if times is None or not times.total:
            return times
        return replace(times, mb_per_second=len(self.job.text.data) / times.total / 1e6)


def encode_all(encoder: Encoder, corpus: Corpus) -> NDArray[np.uint32]:
    """Return the ids of a text in one array."""
    ids = CollectedIds(corpus.total_bytes)
    for piece in encoder.encode(corpus, ids):
        ids.append(piece.ids)
    return ids.take()


def measure_tokenizing(
    job: Job,
    engines: list[Engine],
    with_peers: bool,
    progress: Progress,
    vocabulary: Vocabulary | None = None,
    match: str | None = None,
) -> Iterator[Result]:
    """Yield the result of each engine on a job, those of the peers, and those of greedy matching.

    vocabulary: what to tokenize with, in place of one trained on the text as the job says. match:
    the rule to measure; None for that of the vocabulary, and greedy without peers.
    """
    if vocabulary is None:
        vocabulary = train_file(job, NUMPY).vocabulary
    else:
        job = replace(job, vocab_size=vocabulary.size, pattern=vocabulary.pattern)
    bench = _open_bench(job, vocabulary.with_match(match or vocabulary.match), progress)
    yield from map(bench.measure_engine, engines)
    yield from map(bench.measure_peer, peers.TOKENIZING_PEERS if with_peers else ())
    if match is None and vocabulary.match != "greedy":
        bench = _open_bench(job, vocabulary.with_match("greedy"), progress)
        yield from map(bench.measure_engine, engines)


def _open_bench(job: Job, vocabulary: Vocabulary, progress: Progress) -> TokenizingBench:
    """Save a vocabulary, and find the ids that the CPU gives."""
    path = job.folder / "bench-v.bin"
    vocabulary.save(path)
    reference = encode_all(open_encoder(vocabulary, NUMPY), corpus_from_bytes(job.text.data))
    return TokenizingBench(job, vocabulary, path, reference, progress)


def measure_tokenizer_kernels(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield a result for each kernel of a training and an encoding, where there are timestamps.

    Kernels work on what earlier ones have left, so they are timed where they are, in a whole job.
    Those that matter have the sum of their times in it.
    """
    jobs = cache(_kernel_jobs)
    for engine in engines:
        if has_timestamps(engine.backend.device):
            for begun, work, expected in jobs(kernel_text_bytes(engine, quick=options.quick)):
                progress(f"{KERNELS}: {engine.name}, {begun.job.partition(',')[0]}", 0, 1)
                begun = replace(begun, engine=engine.name)
                yield from _measure_kernels(begun, engine.backend, work, expected, options.runs)


def kernel_text_bytes(engine: Engine, *, quick: bool) -> int:
    """Return how much text an engine gets, the kernels of which are timed."""
    if engine.is_software_adapter:
        return QUICK_CPU_TEXT_BYTES if quick else CPU_TEXT_BYTES
    return QUICK_TEXT_BYTES if quick else TEXT_BYTES


def _kernel_jobs(nbytes: int) -> list[tuple[Result, Work, NDArray[Any]]]:
    """Return what results of training and encoding share, the work, and the CPU's answer."""
    data = load_text([], nbytes).data

    def train(backend: Backend) -> Vocabulary:
        options = TrainingOptions(KERNELS_VOCAB_SIZE, KERNELS_PATTERN)
        return train_vocabulary(corpus_from_bytes(data), options, backend).vocabulary

    def encode(backend: Backend) -> NDArray[Any]:
        return encode_all(open_encoder(vocabulary, backend), corpus_from_bytes(data))

    vocabulary = train(NUMPY)
    text = f"{len(data) / 1e6:,.2f} MB of text, pattern {KERNELS_PATTERN}"
    training = Result(KERNELS, "", job=f"training {KERNELS_VOCAB_SIZE} ids, {text}")
    host = cpu_engine()
    training = replace(training, answer=f"the merges of {host}")
    encoding = Result(KERNELS, "", job=f"encoding, {text}", answer=f"the ids of {host}")
    return [
        (training, lambda backend: train(backend).merges, vocabulary.merges),
        (encoding, encode, encode(NUMPY)),
    ]


def _measure_kernels(
    begun: Result, backend: Backend, work: Work, expected: NDArray[Any], count: int
) -> Iterator[Result]:
    """Do a job once to compare its answer, which also compiles, then with timestamps."""
    runs: list[dict[str, float]] = []
    try:
        if not np.array_equal(work(backend), expected):
            yield replace(begun, correct=False, answer=f"NOT {begun.answer}")
            return
        for _ in range(count):
            raise_clocks(backend)
            kernels = kernel_times(backend.device, lambda: work(backend))
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
