"""The benchmark as a whole: which engines do which parts and jobs, and the record of it.

The recount trainer takes the whole text through the device once a merge, and a software adapter
computes on the CPU, so these get smaller jobs, which the trainers they stand beside do too. Every
result states its sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmgpu.backend import NUMPY
from llmgpu.bench.measuring.bandwidth import measured_bandwidth, measured_rate
from llmgpu.bench.measuring.engines import ALL, Engine, Job, make_job, open_engines
from llmgpu.bench.measuring.machine import describe_machine
from llmgpu.bench.models.embedding import WHAT as EMBEDDING
from llmgpu.bench.models.embedding import measure_embedding
from llmgpu.bench.models.kernels import measure_kernels
from llmgpu.bench.models.train import WHAT as TRAIN
from llmgpu.bench.models.train import measure_train
from llmgpu.bench.part import PartOptions
from llmgpu.bench.record import FORMAT, KERNELS, VERSION
from llmgpu.bench.text.bpe_train import WHAT as BPE_TRAIN
from llmgpu.bench.text.bpe_train import Trainer, measure_training
from llmgpu.bench.text.corpus import BenchText, load_text
from llmgpu.bench.text.tokenize import WHAT as TOKENIZE
from llmgpu.bench.text.tokenize import measure_tokenizing
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.training.options import RECOUNT_SLOTS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.progress import Progress, no_progress

# Parts about texts, and those about language models, which have their own sizes.
TEXT_PARTS = (BPE_TRAIN, TOKENIZE)
MODEL_PARTS: dict[str, Callable[[Sequence[Engine], PartOptions, Progress], Iterator[Any]]] = {
    EMBEDDING: measure_embedding,
    KERNELS: measure_kernels,
    TRAIN: measure_train,
}
PARTS = (*TEXT_PARTS, *MODEL_PARTS)
DEFAULT_LIMIT = 20_000_000
DEFAULT_VOCAB_SIZE = 8192
DEFAULT_PATTERN = "gpt2"  # which all peers know
DEFAULT_RUNS = 5
QUICK_LIMIT = 1_000_000
QUICK_VOCAB_SIZE = 1024
QUICK_RUNS = 2
RECOUNT_LIMIT = 10_000_000  # bytes of text for a GPU to recount for each merge
SOFTWARE_TRAIN_LIMIT = 100_000  # bytes of text for a software adapter to train on
SOFTWARE_TRAIN_VOCAB_SIZE = 512
QUICK_SOFTWARE_TRAIN_VOCAB_SIZE = 320
RECOUNT_TABLES = (RECOUNT_SLOTS, 2 * RECOUNT_SLOTS)  # sizes to measure beside one another


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    parts: of PARTS. devices: as ``--device`` takes them, or "all". corpus: sources; none stands for
    Python's standard library. limit: bytes of text at most. pattern: where text is cut.
    runs: measurements of each engine. peers: whether to measure other tokenizers.
    vocabulary: file with which to tokenize, whose size and pattern count then; None trains one.
    quick: whether to take smaller sizes where no option says any.

    Raises:
        LlmgpuError: an option is out of range.
    """

    parts: tuple[str, ...] = PARTS
    devices: tuple[str, ...] = (ALL,)
    corpus: tuple[str, ...] = ()
    limit: int = DEFAULT_LIMIT
    vocab_size: int = DEFAULT_VOCAB_SIZE
    pattern: str = DEFAULT_PATTERN
    runs: int = DEFAULT_RUNS
    peers: bool = True
    vocabulary: str | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        get_pattern(self.pattern)
        unknown = set(self.parts) - set(PARTS)
        if unknown:
            raise LlmgpuError(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
        if self.vocabulary is not None and TOKENIZE not in self.parts:
            raise LlmgpuError(f"a vocabulary is for {TOKENIZE}, which is not to be measured")
        if self.runs < 1:
            raise LlmgpuError(f"{self.runs} runs measure nothing; use 1 or more")
        if self.vocab_size < 257:
            raise LlmgpuError(
                f"a vocabulary of {self.vocab_size} tokens has no merges; use 257 or more"
            )


def run_benchmark(
    options: BenchOptions,
    record: dict[str, Any],
    progress: Progress = no_progress,
    on_result: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Measure, filling `record`, which is fit for JSON at any time.

    record["results"] gets each result once it is complete, so that what was measured is there
    even if this is interrupted; record["complete"] becomes True at the end.

    Raises:
        InputError: the corpus can't be read.
        VocabularyError: the vocabulary can't be read.
        DeviceError: a device isn't there or can't be opened.
    """
    record.update({"format": FORMAT, "version": VERSION, "complete": False, "results": []})
    record["measured"] = datetime.now(UTC).isoformat(timespec="seconds")
    vocabulary = _load_vocabulary(options, record)
    text = None
    if set(options.parts) & set(TEXT_PARTS):
        text = load_text(options.corpus, options.limit)
        record["text"] = text.describe()
    engines, record["not_opened"] = open_engines(options.devices)
    record["machine"] = describe_machine([engine.backend for engine in engines])
    with tempfile.TemporaryDirectory(prefix="llmgpu-bench-") as folder:
        results = _results(options, text, engines, vocabulary, Path(folder), record, progress)
        for result in results:
            record["results"].append(result)
            _note_missing(record, result)
            if on_result is not None:
                on_result(result)
    record["complete"] = True


def all_correct(record: dict[str, Any]) -> bool:
    """Whether no engine gave a wrong answer."""
    return all(result["correct"] is not False for result in record["results"])


def _load_vocabulary(options: BenchOptions, record: dict[str, Any]) -> Vocabulary | None:
    given = options.vocabulary
    if given is None:
        return None
    vocabulary = Vocabulary.load(given)
    record["vocabulary"] = {"source": given, "fingerprint": vocabulary.fingerprint}
    return vocabulary


def _results(
    options: BenchOptions,
    text: BenchText | None,
    engines: list[Engine],
    vocabulary: Vocabulary | None,
    folder: Path,
    record: dict[str, Any],
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Yield the results of all parts; measure engines' limits, for the record, between them."""
    if text is not None:
        job = make_job(text, folder, options.vocab_size, options.pattern, options.runs)
        yield from _text_results(options, job, engines, vocabulary, progress)
    parts = [part for part in MODEL_PARTS if part in options.parts]
    if parts:
        record["limits"] = _measure_limits(engines, progress)
    for part in parts:
        part_options = PartOptions(options.runs, options.peers, options.quick)
        yield from MODEL_PARTS[part](engines, part_options, progress)


def _text_results(
    options: BenchOptions,
    job: Job,
    engines: list[Engine],
    vocabulary: Vocabulary | None,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    if BPE_TRAIN in options.parts:
        for own_job, trainers in _training_jobs(job, engines, options.quick):
            peers = options.peers and own_job == job
            yield from measure_training(own_job, trainers, peers, progress)
    if TOKENIZE in options.parts:
        yield from measure_tokenizing(job, engines, options.peers, progress, vocabulary)


def _measure_limits(engines: list[Engine], progress: Progress) -> dict[str, dict[str, float]]:
    """Return what the memory and the arithmetic of each engine can do, by its name."""
    limits: dict[str, dict[str, float]] = {}
    for number, engine in enumerate(engines):
        progress("limits", number, len(engines))
        try:
            limits[engine.name] = {
                "bytes_per_second": float(measured_bandwidth(engine)),
                "operations_per_second": float(measured_rate(engine)),
            }
        except DeviceError:  # no memory for it, as the parts say then
            continue
    return limits


def _note_missing(record: dict[str, Any], result: dict[str, Any]) -> None:
    """Note a peer that is not installed."""
    note = str(result.get("note"))
    if note.startswith("not installed"):
        record.setdefault("missing_peers", {})[result["engine"]] = note


def _training_jobs(job: Job, engines: list[Engine], quick: bool) -> list[tuple[Job, list[Trainer]]]:
    """Return the whole job and smaller ones, each with who is to do it."""
    numpy = [Trainer(engine) for engine in engines if engine.backend is NUMPY]
    software = [engine for engine in engines if engine.is_software_adapter]
    hardware = [e for e in engines if e.backend is not NUMPY and not e.is_software_adapter]
    wanted = [(job, numpy + [Trainer(engine) for engine in hardware])]
    if hardware:
        recount_job = _smaller(job, RECOUNT_LIMIT, job.vocab_size)
        wanted.append((recount_job, numpy + _both_trainers(hardware)))
    if software:
        size = QUICK_SOFTWARE_TRAIN_VOCAB_SIZE if quick else SOFTWARE_TRAIN_VOCAB_SIZE
        software_job = _smaller(job, SOFTWARE_TRAIN_LIMIT, size)
        wanted.append((software_job, numpy + _both_trainers(software)))
    jobs: list[tuple[Job, list[Trainer]]] = []
    for own_job, trainers in wanted:
        same = [listed for other, listed in jobs if other == own_job]
        if same:
            same[0] += [trainer for trainer in trainers if trainer not in same[0]]
        else:
            jobs.append((own_job, trainers))
    return jobs


def _both_trainers(engines: list[Engine]) -> list[Trainer]:
    """Return the batched trainer of each engine, and the recount trainer with each table."""
    return [
        trainer
        for engine in engines
        for trainer in (
            Trainer(engine),
            *(Trainer(engine, "recount", slots) for slots in RECOUNT_TABLES),
        )
    ]


def _smaller(job: Job, limit: int, vocab_size: int) -> Job:
    """Return a job with less of the text and fewer ids, or the same one if it is small enough."""
    if len(job.text.data) <= limit and job.vocab_size <= vocab_size:
        return job
    size = min(job.vocab_size, vocab_size)
    return make_job(job.text.first(limit), job.folder, size, job.pattern, job.runs)
