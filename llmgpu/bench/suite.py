"""The benchmark as a whole: the engines, jobs and parts, and the record of all results.

Two trainers are too slow for the full job: the recount trainer, which passes the whole text through
the device for every merge, and a trainer on a software adapter, which computes on the CPU. They get
smaller jobs, in tables of their own. Every result states the sizes of its job.

The jobs of "startup" are whole commands with little to do, each in a new process. The phase "python
and NumPy" is the time of a Python that only imports NumPy. Other phases come from the command's
``--json`` report. The phase "the rest" contains imports, devices and files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from llmgpu.backend import NUMPY
from llmgpu.bench import (
    BPE_TRAIN,
    EMBEDDING,
    GENERATE,
    IDEAS,
    KERNELS,
    STARTUP,
    TEXT_PARTS,
    TOKENIZE,
    TRAIN,
    BenchOptions,
)
from llmgpu.bench.embedding import measure_embedding
from llmgpu.bench.engines import Engine, Engines, describe_machine, open_engines, timed
from llmgpu.bench.ideas import measure_ideas
from llmgpu.bench.kernels import measure_kernels
from llmgpu.bench.models import measure_generate, measure_train
from llmgpu.bench.results import Record, Result, Results, Times, VocabularyFacts, times_by_name
from llmgpu.bench.tokenizers import (
    Job,
    Trainer,
    describe_text,
    load_text,
    measure_tokenizing,
    measure_training,
)
from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.bpe.training.options import RECOUNT_SLOTS
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.input_files import number_of
from llmgpu.progress import Progress, no_progress

# Start-up

_LINE = "a line of text, and another one\n"


def measure_startup(engines: Engines, options: BenchOptions, progress: Progress) -> Results:
    """Yield the results of short commands on each engine; LlmgpuError if a command fails."""

    def run(*arguments: str) -> tuple[Times, list[str]]:
        found = [_run(arguments) for _ in range(options.runs + (not options.quick))]
        seconds, printed = zip(*found[-options.runs :], strict=True)  # without the warm-up run
        return Times.of(seconds), list(printed)

    floor, _ = run("-c", "import numpy")
    for engine in engines:
        device = "cpu" if engine.backend.device is None else engine.backend.device.name
        with tempfile.TemporaryDirectory(prefix="llmgpu-bench-") as folder:
            for job, arguments in _commands(Path(folder)):
                progress(f"{STARTUP}: {engine.host_name}, {job}", 0, None)
                times, printed = run("-m", "llmgpu", *arguments, "--device", device, "--json")
                phases = {"python and NumPy": floor} | times_by_name([*map(_phases, printed)])
                rest = times.median - sum(phase.median for phase in phases.values())
                phases["the rest"] = Times.of([max(0.0, rest)])
                result = Result(STARTUP, engine.host_name, True, job=job, answer="exit code 0")
                yield result.timed(times.runs, phases=phases)


def _commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield names and arguments of commands, some of which read files of earlier commands."""
    text, line, vocabulary, run = (str(folder / name) for name in ("text", "line", "v.bin", "run"))
    Path(text).write_text(_LINE * 2000, encoding="ascii")
    Path(line).write_text(_LINE, encoding="ascii")
    sizes = ["--vocab-size", "300", "-o", vocabulary]
    yield "bpe-train: 64 kB, 300 ids", ["bpe-train", text, *sizes]
    yield "tokenize: a line", ["tokenize", line, "--vocab", vocabulary, "--count"]
    model = ["--steps", "2", "--seq-len", "32", "--batch-size", "2", "-o", run, "--force"]
    yield "train: 2 steps", ["train", text, "--vocab", vocabulary, *model]
    yield "generate: 2 tokens", ["generate", run, "--prompt", "a", "--max-new-tokens", "2"]


def _run(arguments: Sequence[str]) -> tuple[float, str]:
    """Run Python; return the seconds and the printed text."""
    command = [sys.executable, *arguments]
    seconds, done = timed(partial(subprocess.run, command, capture_output=True, text=True))
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LlmgpuError(f"{' '.join(arguments[1:3])}: {reason}")
    return seconds, f"{done.stderr}\n{done.stdout}"


def _phases(printed: str) -> dict[str, float]:
    """Return the seconds of a summary's phases; a single number becomes the phase "work"."""
    begin = max(printed.rfind("\n{"), 0)
    seconds = json.JSONDecoder().raw_decode(printed[begin:].lstrip())[0]["seconds"]
    named = seconds if isinstance(seconds, dict) else {"work": seconds}
    return {name: float(spent) for name, spent in named.items() if name != "total"}


# All parts of the benchmark

# Parts about language models, which have their own sizes.
MODEL_PARTS: dict[str, Callable[[Engines, BenchOptions, Progress], Results]] = {
    EMBEDDING: measure_embedding,
    KERNELS: measure_kernels,
    TRAIN: measure_train,
    GENERATE: measure_generate,
    STARTUP: measure_startup,
    IDEAS: measure_ideas,
}
# Both drivers are measured in these parts, because Dawn may use matrix units.
BOTH_DRIVERS = (KERNELS, TRAIN, GENERATE)
RECOUNT_LIMIT = 10_000_000  # bytes of text on which a GPU recounts for each merge
SOFTWARE_TRAIN_LIMIT = 100_000  # bytes of text on which a software adapter trains
SOFTWARE_TRAIN_VOCAB_SIZE = 512
QUICK_SOFTWARE_TRAIN_VOCAB_SIZE = 320


class Benchmark:
    """A benchmark that is ready to run, and the record of its results.

    record: receives each result at once, so that an interrupted run loses no complete result.
    """

    def __init__(self, options: BenchOptions) -> None:
        """Read the text and the vocabulary, and open devices.

        Raises:
            InputError: the corpus can't be read.
            VocabularyError: the vocabulary can't be read.
            DeviceError: a device doesn't exist or can't be opened.
        """
        self._options = options
        path = options.vocab
        self._vocabulary = None if path is None else open_vocabulary(path)
        is_about_text = bool(set(options.parts) & {*TEXT_PARTS, IDEAS})
        self._text = load_text(options.corpus, options.limit) if is_about_text else None
        self._engines, not_opened = open_engines(options.devices)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        machine = describe_machine(self._engines)
        self.record = Record(machine, [], complete=False, not_opened=not_opened, measured=now)
        if options.quick:
            self.record.smoke = f"{number_of(options.runs, 'run')} of {options.limit / 1e6:g} MB"
        if self._text is not None:
            self.record.text = describe_text(options.corpus, self._text)
        if path is not None and self._vocabulary is not None:
            self.record.vocabulary = VocabularyFacts(path, self._vocabulary.fingerprint)

    def run(self, progress: Progress = no_progress) -> None:
        """Measure all parts; mark the record as complete at the end."""
        with tempfile.TemporaryDirectory(prefix="llmgpu-bench-") as folder:
            for result in self._results(Path(folder), progress):
                self.record.results.append(result)
                if result.note.startswith("not installed"):
                    self.record.missing_peers[result.engine] = result.note
        self.record.complete = True

    def _results(self, folder: Path, progress: Progress) -> Results:
        """Yield the results of all parts; store the engines' limits in the record, too."""
        options, engines = self._options, self._engines
        once = [engine for engine in engines if not engine.again]
        if self._text is not None and set(options.parts) & set(TEXT_PARTS):
            sizes = (options.vocab_size, options.pattern, options.runs)
            job = Job(self._text, folder, *sizes, progress)
            if BPE_TRAIN in options.parts:
                for own_job, trainers in _training_jobs(job, once, options.quick).items():
                    yield from measure_training(own_job, trainers, options.peers and own_job == job)
            if TOKENIZE in options.parts:
                how = (self._vocabulary, options.match)
                yield from measure_tokenizing(job, once, options.peers, *how)
        parts = [part for part in MODEL_PARTS if part in options.parts]
        for number, engine in enumerate(engines if set(parts) - {STARTUP} else ()):
            progress("limits", number, len(engines))
            # With too little memory there are no limits. The notes of results have the reason.
            with suppress(DeviceError):
                self.record.limits[engine.name] = engine.limits
        for part in parts:
            measured = engines if part in BOTH_DRIVERS else once
            yield from MODEL_PARTS[part](measured, options, progress)


def _training_jobs(job: Job, engines: list[Engine], quick: bool) -> dict[Job, list[Trainer]]:
    """Return the trainers of the whole job, and of smaller jobs for slow trainers."""
    numpy = [Trainer(engine) for engine in engines if engine.backend is NUMPY]
    others = [engine for engine in engines if engine.backend is not NUMPY]
    jobs = {job: numpy + [Trainer(each) for each in others if not each.is_software_adapter]}
    software_size = QUICK_SOFTWARE_TRAIN_VOCAB_SIZE if quick else SOFTWARE_TRAIN_VOCAB_SIZE
    for engine in others:
        small = job.smaller(RECOUNT_LIMIT, job.vocab_size)
        if engine.is_software_adapter:
            small = job.smaller(SOFTWARE_TRAIN_LIMIT, software_size)
        trainers = jobs.setdefault(small, numpy.copy())
        # The batched trainer, and the recount trainer with each size of its table.
        every = (Trainer(engine, slots) for slots in (0, RECOUNT_SLOTS, 2 * RECOUNT_SLOTS))
        trainers += [trainer for trainer in every if trainer not in trainers]
    return jobs
