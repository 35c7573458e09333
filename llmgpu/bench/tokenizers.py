"""Measuring the training of tokenizers, and tokenizing, next to other tools.

By default the text is the source of Python's standard library, which every machine has: all .py
files in the order of their paths, without the few files that are not UTF-8, since peers can't read
these. Different versions of Python have different sources, so the text's hash is recorded. The
source "generated" is text of any size (`llmgpu.text.generated`); a file of this name is given as
./generated. All files form one document, and a text that is cut ends with a whole line.

A measured job reads a text file from the page cache and writes a file. The CPU's merges are the
reference for training; for a peer, the CPU trains by the peer's tie rule. The time of a peer that
writes no vocabulary file ends when the vocabulary is in memory.

The kernels of training are timed in a separate run, because each timed dispatch needs a pass of its
own, which takes time. Only the first TIMED_MERGES merges are timed, while the text is longest. A
device can time a limited number of dispatches in one submission, and submissions of later merges
have more dispatches. An adapter keeps its buffers from one run to the next.

The CPU's ids are the reference for tokenizing, also for peers: each peer reads the same vocabulary
from a file of the peer's format. Every run has a new encoder, because encoders remember words; the
encoder is opened before the clock starts, and the time of opening is reported as start-up. Peers
may build tables at their first text, which belongs to opening, so peers encode two words before the
clock starts. Unless one match rule is chosen, engines also match the longest tokens first (variant
"greedy"); peers do not support this rule.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend
from llmgpu.bench import BPE_TRAIN, GENERATED, KERNELS, TOKENIZE, BenchOptions
from llmgpu.bench.engines import (
    Engine,
    Engines,
    cpu_engine,
    has_timestamps,
    kernel_times,
    time_in_turns,
    timed,
)
from llmgpu.bench.peers import (
    TOKENIZING_PEERS,
    TRAINING_PEERS,
    Peer,
    TokenizingPeer,
    TrainingPeer,
)
from llmgpu.bench.results import Result, Results, TextFacts, Times, times_by_name
from llmgpu.bpe.encoding.encoder import CollectedIds, EncodedSlice, Encoder
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.train import TrainingResult, train_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.text.corpus import Corpus, CorpusOptions, corpus_from_bytes
from llmgpu.text.documents import Piece
from llmgpu.text.generated import generate_text
from llmgpu.tokens.formats import open_writer
from llmgpu.tokens.sinks import TokenWriter, id_dtype
from llmgpu.tokens.tokenizing import encode_into

TIMED_MERGES = 256
FIRST_RUN_BYTES = 1000
READ_BYTES = 4 << 20
_TWO_WORDS = b"two words\n"
KERNELS_PATTERN, KERNELS_VOCAB_SIZE = "gpt2", 512
# Bytes of text for timing the kernels of a GPU, and of a software adapter.
TEXT_BYTES, QUICK_TEXT_BYTES = 10_000_000, 1_000_000
CPU_TEXT_BYTES, QUICK_CPU_TEXT_BYTES = 100_000, 20_000
LEAST_SHARE = 0.01  # a kernel with a smaller share of a job's time has no result
_NOT_STANDARD = {"site-packages", "dist-packages"}

Ids = NDArray[np.uint32]
Prepare = Callable[[], Callable[[], Any]]  # returns a function that does a job, for its answer
Check = Callable[[Any], bool]  # whether an answer is right


def load_text(sources: Sequence[str], limit: int) -> bytes:
    """Read at most `limit` bytes of `sources`; without sources, of Python's standard library.

    Raises:
        InputError: a source can't be read, or there is no text.
    """
    return b"".join(text_blocks(sources, limit))


def describe_text(sources: Sequence[str], text: bytes) -> TextFacts:
    """Return the source, length and hash of a text."""
    return TextFacts(_named(sources), len(text), hashlib.sha256(text).hexdigest())


def text_blocks(sources: Sequence[str], limit: int) -> Iterator[bytes]:
    """Yield the text of `load_text` in blocks; generated text is generated block by block."""
    if GENERATED not in sources:
        files = sources or [str(path) for path in standard_library_files()]
        data = _cut(_read(files, limit + 1), limit)
        if not data:
            raise InputError(f"{_named(sources)}: no text to measure on")
        yield data
    elif len(sources) > 1:
        raise InputError("generated text can't be combined with other sources")
    else:
        yield from generate_text(limit)


def _named(sources: Sequence[str]) -> str:
    return ", ".join(sources) or "Python's standard library"


def standard_library_files() -> list[Path]:
    """Return the .py files of Python's standard library that are UTF-8, sorted by path."""
    files: list[Path] = []
    for folder, inside, names in os.walk(sysconfig.get_paths()["stdlib"]):
        inside[:] = set(inside) - _NOT_STANDARD  # makes os.walk skip all other folders
        files += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(path for path in files if path.is_file() and is_utf8(path.read_bytes()))


def _read(sources: Sequence[str], limit: int) -> bytes:
    with Corpus(sources, CorpusOptions(limit=limit)) as corpus:
        return b"".join(piece.text.tobytes() for piece in _pieces(corpus))


def _pieces(corpus: Corpus) -> Iterator[Piece]:
    """Yield a text in pieces, which share a buffer."""
    buffer, is_end = np.empty(READ_BYTES, np.uint8), False
    while not is_end:
        piece = corpus.read_into(buffer)
        is_end = piece.end
        yield piece


def is_utf8(data: bytes) -> bool:
    """Whether a text is valid UTF-8, which peers require."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cut(data: bytes, limit: int) -> bytes:
    """Return at most the first `limit` bytes, cut after a line if possible."""
    if len(data) <= limit:
        return data
    return data[: data.rfind(b"\n", 0, limit) + 1 or limit]


@dataclass(frozen=True)
class Job:
    """The text, sizes and files of a measurement.

    folder: the folder of all files. runs: number of measurements.
    """

    text: bytes
    folder: Path
    vocab_size: int
    pattern: str
    runs: int
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        """Write the text to `path`, which also puts the text into the page cache."""
        self.path.write_bytes(self.text)

    @property
    def path(self) -> Path:
        """A file with the bytes of `text`."""
        return self.folder / f"corpus-{len(self.text)}.txt"

    def smaller(self, limit: int, vocab_size: int) -> Job:
        """Return a job within limits of text and vocabulary size; a small job is unchanged."""
        if len(self.text) <= limit and self.vocab_size <= vocab_size:
            return self
        size = min(self.vocab_size, vocab_size)
        return replace(self, text=_cut(self.text, limit), vocab_size=size)

    def begin(self, what: str, engine: str) -> Result:
        """Return a result with the job's sizes, without measurements."""
        size, pattern = self.vocab_size, self.pattern
        return Result(what, engine, text_bytes=len(self.text), vocab_size=size, pattern=pattern)

    def begin_peer(self, what: str, peer: Peer) -> Result:
        """Return a result without measurements; its note says why the peer can't run, if so."""
        why_not = peer.why_not(self.pattern, is_utf8=is_utf8(self.text))
        return replace(self.begin(what, peer.name), peer=True, note=why_not or "")

    def measure(
        self, begun: Result, answer: str, prepare: Prepare, is_right: Check, merges: int = 0
    ) -> Result:
        """Return a result with the times of several runs; without times after a wrong answer.

        prepare: called before each run. is_right: gets the answer of a run. merges: number of
            merges of a training.
        """
        seconds: list[float] = []
        for number in range(self.runs):
            self.progress(f"{begun.what}: {begun.engine}", number, self.runs)
            spent, found = timed(prepare())
            if not is_right(found):
                return begun.compared(False, answer)
            seconds.append(spent)
        counted = {"merges": merges} if merges else {}
        result = begun.compared(True, answer).timed(seconds, counted, **counted)
        return replace(result, mb_per_second=len(self.text) / result.median / 1e6)


# Training


class Trainer(NamedTuple):
    """An engine, and the trainer that runs on it.

    slots: size of the recount trainer's tables, see `TrainingOptions`; 0: the batched trainer.
    """

    engine: Engine
    slots: int = 0


def measure_training(job: Job, trainers: list[Trainer], with_peers: bool) -> Results:
    """Yield the result of each trainer for a job, then the results of peers."""
    reference = train_file(job, NUMPY).vocabulary
    for engine, slots in trainers:
        begun, options = job.begin(BPE_TRAIN, engine.host_name), dict[str, Any]()
        if slots:
            variant, name = f"{slots:,} slots in workgroup memory", f"recount on {begun.engine}"
            begun = replace(begun, engine=name, variant=variant)
            options = {"engine": "recount", "recount_slots": slots}
        measure = partial(_measure_trainer, job, begun, engine, options, reference)
        yield begun.or_why_not(measure)
    for peer in TRAINING_PEERS if with_peers else ():
        begun = job.begin_peer(BPE_TRAIN, peer)
        yield begun if begun.note else _measure_peer(job, begun, peer, reference)


def train_file(job: Job, backend: Backend, **changes: Any) -> TrainingResult:
    """Train on a job's file with the job's options.

    changes: options of training that replace the job's options.
    """
    options: dict[str, Any] = {"vocab_size": job.vocab_size, "pattern": job.pattern} | changes
    with Corpus([str(job.path)]) as corpus:
        return train_vocabulary(corpus, TrainingOptions(**options), backend)


def _measure_trainer(
    job: Job, begun: Result, engine: Engine, options: dict[str, Any], reference: Vocabulary
) -> Result:
    backend, start_up = engine.backend, {}
    phases: list[dict[str, float]] = []
    # The first run is the start-up: it compiles the kernels.
    if backend.device is not None:
        corpus = corpus_from_bytes(job.text[:FIRST_RUN_BYTES])
        small = TrainingOptions(258, job.pattern, **options)
        first, _ = timed(partial(train_vocabulary, corpus, small, backend))
        start_up = {"open device": engine.open_seconds, "compile, first 1 KB": first}

    def train() -> NDArray[np.uint32]:
        trained = train_file(job, backend, **options)
        trained.vocabulary.save(job.folder / "v.bin")
        phases.append(trained.seconds)
        return trained.vocabulary.merges

    is_right = partial(np.array_equal, reference.merges)
    merges, answer = len(reference.merges), f"merges of {cpu_engine()}"
    result = job.measure(begun, answer, lambda: train, is_right, merges)
    if not result.correct:
        return result
    # Time the kernels over the first merges.
    options["vocab_size"] = min(job.vocab_size, 256 + TIMED_MERGES)
    kernels = kernel_times(backend.device, lambda: train_file(job, backend, **options))
    kernels = kernels and replace(kernels, merges=min(merges, TIMED_MERGES))
    if backend is NUMPY:
        result = replace(result, answer="the reference")
    return replace(result, start_up=start_up, phases=times_by_name(phases), kernels=kernels)


def _measure_peer(job: Job, begun: Result, peer: TrainingPeer, reference: Vocabulary) -> Result:
    answer = f"{peer.compared} of {cpu_engine()}"
    if peer.tie != reference.tie:
        reference = train_file(job, NUMPY, tie=peer.tie).vocabulary
        answer += f", --tie {peer.tie}"
    merges = len(reference.merges)
    train = partial(peer.train, job.path, job.pattern, 256 + merges, job.folder / "peer")
    return job.measure(begun, answer, lambda: train, peer.expected(reference).__eq__, merges)


# Tokenizing


class TokenizingBench:
    """Measures how engines and peers encode the job's text with the vocabulary in a file.

    reference: uint32 (tokens,), the CPU's ids.
    """

    def __init__(self, job: Job, vocabulary: Vocabulary) -> None:
        """Save a vocabulary to a file, and encode the text on the CPU for the reference."""
        self.job, self.vocabulary = job, vocabulary
        self._path, self._target = job.folder / "bench-v.bin", job.folder / "ids.bin"
        vocabulary.save(self._path)
        text = corpus_from_bytes(job.text)
        self.reference: Ids = encode_all(open_encoder(vocabulary, NUMPY), text)

    def measure_engine(self, engine: Engine) -> Result:
        """Measure an engine of llmgpu; if it fails, the note of the result says why."""
        variant = "greedy" if self.vocabulary.match == "greedy" else ""
        begun = replace(self.job.begin(TOKENIZE, engine.host_name), variant=variant)
        return begun.or_why_not(partial(self._measure_engine, begun, engine))

    def _measure_engine(self, begun: Result, engine: Engine) -> Result:
        def open_new() -> Encoder:
            return open_encoder(Vocabulary.load(self._path), engine.backend)

        result = self._measure_runs(begun, lambda: partial(self._encode_file, open_new()))
        if not result.correct:
            return result
        runs, data = range(self.job.runs), self.job.text
        # Time each part alone. In a whole run the parts overlap, so their sum may be more.
        parts = {
            "read": [timed(self._read)[0] for _ in runs],
            "read and encode": [timed(partial(self._encode, open_new()))[0] for _ in runs],
            "write": [timed(self._write)[0] for _ in runs],
        }
        phases = {name: Times.of(seconds) for name, seconds in parts.items()}
        kernels = kernel_times(engine.backend.device, partial(self._encode_file, open_new()))
        if kernels is not None and kernels.total:
            kernels = replace(kernels, mb_per_second=len(data) / kernels.total / 1e6)
        start_up = {"open device": engine.open_seconds} | result.start_up
        if engine.backend is NUMPY:
            result = replace(result, answer="the reference")
        return replace(result, start_up=start_up, phases=phases, kernels=kernels)

    def measure_peer(self, peer: TokenizingPeer) -> Result:
        """Measure a peer; if it can't do the job, the note of the result says why."""
        begun = self.job.begin_peer(TOKENIZE, peer)
        if begun.note:
            return begun
        path, words = self.job.folder / f"bench-v.{peer.format}", self.job.folder / "two-words.txt"
        words.write_bytes(_TWO_WORDS)
        dtype = id_dtype(self.vocabulary.size)

        def prepare() -> Callable[[], None]:
            encode = peer.open(path, self.vocabulary.pattern)
            encode(words)
            return lambda: encode(self.job.path).astype(dtype).tofile(self._target)

        try:
            WRITERS[peer.format].write(self.vocabulary, path)
            return self._measure_runs(begun, prepare)
        except (VocabularyError, ImportError) as error:  # a package may be missing
            return replace(begun, note=f"left out: {error}")

    def _measure_runs(self, begun: Result, prepare: Prepare) -> Result:
        """Measure runs with a new encoder each, after a first run; see `Job.measure`."""

        def found() -> Ids:
            return np.fromfile(self._target, id_dtype(self.vocabulary.size))

        def is_right(_: None) -> bool:
            return np.array_equal(found(), self.reference)

        opening, encode = timed(prepare)
        first, _ = timed(encode)
        begun = replace(begun, tokens=len(found()))
        result = self.job.measure(begun, f"ids of {cpu_engine()}", prepare, is_right)
        start_up = {"open encoder": opening, "first run": first}
        return replace(result, start_up=start_up) if result.correct else result

    def _encode(self, encoder: Encoder) -> None:
        with Corpus([str(self.job.path)]) as corpus:
            encode_all(encoder, corpus)

    def _encode_file(self, encoder: Encoder) -> None:
        with Corpus([str(self.job.path)]) as corpus, self._open_writer() as writer:
            encode_into(writer, encoder, corpus, no_progress)

    def _open_writer(self) -> TokenWriter:
        return open_writer(self._target, "bin", self.vocabulary)

    def _read(self) -> None:
        with Corpus([str(self.job.path)]) as corpus:
            deque(_pieces(corpus), maxlen=0)

    def _write(self) -> None:
        with self._open_writer() as writer:
            writer.write(EncodedSlice(self.reference, np.zeros(1, np.int64)))


def encode_all(encoder: Encoder, corpus: Corpus) -> NDArray[np.uint32]:
    """Return the ids of a text in one array."""
    ids = CollectedIds(corpus.total_bytes)
    for piece in encoder.encode(corpus, ids):
        ids.append(piece.ids)
    return ids.take()


def measure_tokenizing(
    job: Job, engines: Engines, with_peers: bool, vocabulary: Vocabulary | None, match: str | None
) -> Results:
    """Yield the results of engines, peers, and engines with greedy matching.

    vocabulary: None for a vocabulary trained on the text with the job's options. match: the only
    match rule to measure. None: engines are measured with the vocabulary's rule, next to peers, and
    with greedy matching, without peers.
    """
    if vocabulary is None:
        vocabulary = train_file(job, NUMPY).vocabulary
    else:
        job = replace(job, vocab_size=vocabulary.size, pattern=vocabulary.pattern)
    rules = [match or vocabulary.match]
    if match is None and vocabulary.match != "greedy":
        rules.append("greedy")
    for number, rule in enumerate(rules):
        bench = TokenizingBench(job, vocabulary.with_match(rule))
        yield from map(bench.measure_engine, engines)
        yield from map(bench.measure_peer, TOKENIZING_PEERS if with_peers and not number else ())


# Kernels of training and tokenizing


def measure_tokenizer_kernels(
    engines: Engines, options: BenchOptions, progress: Progress
) -> Results:
    """Yield a result for each kernel of training and encoding, on engines with timestamps.

    A kernel reads the output of earlier kernels, so kernels are timed in a whole job. A result has
    the sum of a kernel's times in the job.
    """
    for engine in engines:
        device = engine.backend.device
        if device is None or not has_timestamps(device):
            continue
        data = load_text([], kernel_text_bytes(engine, quick=options.quick))
        for job, answer, work in _kernel_jobs(data):
            progress(f"{KERNELS}: {engine.name}, {job.partition(',')[0]}", 0, 1)
            own = device, partial(work, engine.backend)
            ways = [(Result(KERNELS, engine.name, job=job), lambda own=own: own)]
            ((result, runs),) = time_in_turns(engine, ways, work(NUMPY), answer, options.runs)
            if not runs:
                yield result
                continue
            times = times_by_name([run.seconds for run in runs])
            total = sum(spent.median for spent in times.values())
            for name, spent in sorted(times.items(), key=lambda item: -item[1].median):
                if (share := spent.median / total) >= LEAST_SHARE:
                    more: dict[str, Any] = {"clock": "gpu", "variant": name, "seconds": spent}
                    yield replace(result, share_of_kernels=share, **more)


def kernel_text_bytes(engine: Engine, *, quick: bool) -> int:
    """Return the number of bytes of text with which an engine's kernels are timed."""
    if engine.is_software_adapter:
        return QUICK_CPU_TEXT_BYTES if quick else CPU_TEXT_BYTES
    return QUICK_TEXT_BYTES if quick else TEXT_BYTES


WorkOn = Callable[[Backend], NDArray[Any]]


def _kernel_jobs(data: bytes) -> Iterator[tuple[str, str, WorkOn]]:
    """Yield two jobs, training and encoding: description, name of the answer, and work."""
    options = TrainingOptions(KERNELS_VOCAB_SIZE, KERNELS_PATTERN)

    def train(backend: Backend) -> Vocabulary:
        return train_vocabulary(corpus_from_bytes(data), options, backend).vocabulary

    def encode(backend: Backend) -> Ids:
        return encode_all(open_encoder(vocabulary, backend), corpus_from_bytes(data))

    vocabulary = train(NUMPY)
    text = f"{len(data) / 1e6:,.2f} MB of text, pattern {KERNELS_PATTERN}"
    yield f"training {KERNELS_VOCAB_SIZE} ids, {text}", "merges", lambda at: train(at).merges
    yield f"encoding, {text}", "ids", encode
