"""The benchmark as a whole: which engines do which jobs, and the record of it.

Training on a software adapter takes the whole text through the CPU once a merge, so such adapters
get a smaller job, and NumPy does that one too. Every result states its sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgpu.backend import NUMPY
from llmgpu.bench.bpe_train import WHAT as BPE_TRAIN
from llmgpu.bench.bpe_train import measure_training
from llmgpu.bench.corpus import BenchText, load_text
from llmgpu.bench.engines import ALL, Engine, make_job, open_engines
from llmgpu.bench.machine import describe_machine
from llmgpu.bench.tokenize import WHAT as TOKENIZE
from llmgpu.bench.tokenize import measure_tokenizing
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress, no_progress

PARTS = (BPE_TRAIN, TOKENIZE)
FORMAT = "llmgpu-bench"
VERSION = 1
DEFAULT_LIMIT = 20_000_000
DEFAULT_VOCAB_SIZE = 8192
DEFAULT_RUNS = 5
QUICK_LIMIT = 1_000_000
QUICK_VOCAB_SIZE = 1024
QUICK_RUNS = 2
SOFTWARE_TRAIN_LIMIT = 100_000  # bytes of text for a software adapter to train on
SOFTWARE_TRAIN_VOCAB_SIZE = 512


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    parts: of PARTS. devices: as ``--device`` takes them, or "all". corpus: sources; none stands for
    Python's standard library. limit: bytes of text at most. runs: measurements of each engine.
    peers: whether to measure other tokenizers.

    Raises:
        LlmgpuError: an option is out of range.
    """

    parts: tuple[str, ...] = PARTS
    devices: tuple[str, ...] = (ALL,)
    corpus: tuple[str, ...] = ()
    limit: int = DEFAULT_LIMIT
    vocab_size: int = DEFAULT_VOCAB_SIZE
    runs: int = DEFAULT_RUNS
    peers: bool = True

    def __post_init__(self) -> None:
        unknown = set(self.parts) - set(PARTS)
        if unknown:
            raise LlmgpuError(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
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
        DeviceError: a device isn't there or can't be opened.
    """
    record.update({"format": FORMAT, "version": VERSION, "complete": False, "results": []})
    text = load_text(options.corpus, options.limit)
    engines, record["not_opened"] = open_engines(options.devices)
    record["machine"] = describe_machine([engine.backend for engine in engines])
    record["text"] = text.describe()
    with tempfile.TemporaryDirectory(prefix="llmgpu-bench-") as folder:
        for result in _results(options, text, engines, Path(folder), progress):
            record["results"].append(result)
            if on_result is not None:
                on_result(result)
    record["complete"] = True


def all_correct(record: dict[str, Any]) -> bool:
    """Whether no engine gave a wrong answer."""
    return all(result["correct"] is not False for result in record["results"])


def _results(
    options: BenchOptions,
    text: BenchText,
    engines: list[Engine],
    folder: Path,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    job = make_job(text, folder, options.vocab_size, options.runs)
    if BPE_TRAIN in options.parts:
        software = [engine for engine in engines if engine.is_software_adapter]
        others = [engine for engine in engines if not engine.is_software_adapter]
        yield from measure_training(job, others, options.peers, progress)
        if software:
            small = make_job(
                text.first(SOFTWARE_TRAIN_LIMIT),
                folder,
                min(options.vocab_size, SOFTWARE_TRAIN_VOCAB_SIZE),
                options.runs,
            )
            numpy = [engine for engine in others if engine.backend is NUMPY]
            yield from measure_training(small, numpy + software, False, progress)
    if TOKENIZE in options.parts:
        yield from measure_tokenizing(job, engines, options.peers, progress)
