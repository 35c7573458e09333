"""Whole commands with little to do: what a person waits for that is not work.

Each runs as a process of its own. Its floor is a Python that imports NumPy; the phases beside it
are those that the command names with ``--json``. The rest is imports, devices and files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from llmgpu.bench import STARTUP, BenchOptions
from llmgpu.bench.engines import Engine
from llmgpu.bench.results import Result, Times
from llmgpu.bench.timing import timed
from llmgpu.errors import LlmgpuError
from llmgpu.progress import Progress

_LINE = "a line of text, and another one\n"


def measure_startup(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine; LlmgpuError for a command that fails."""

    def run(*arguments: str) -> tuple[Times, list[str]]:
        found = [_run(arguments) for _ in range(options.runs + (not options.quick))]
        seconds, printed = zip(*found[-options.runs :], strict=True)  # the one before warms up
        return Times.of(seconds), list(printed)

    floor, _ = run("-c", "import numpy")
    for engine in engines:
        device = "cpu" if engine.backend.device is None else engine.backend.device.name
        with TemporaryDirectory(prefix="llmgpu-bench-") as folder:
            for job, arguments in _commands(Path(folder)):
                progress(f"{STARTUP}: {engine.host_name}, {job}", 0, None)
                times, printed = run("-m", "llmgpu", *arguments, "--device", device, "--json")
                said = list(map(_phases, printed))
                phases = {name: Times.of([one[name] for one in said]) for name in said[0]}
                phases = {"python and NumPy": floor} | phases
                rest = times.median - sum(phase.median for phase in phases.values())
                phases["the rest"] = Times.of([max(0.0, rest)])
                result = Result(STARTUP, engine.host_name, correct=True, job=job)
                yield replace(result, answer="exit code 0", seconds=times, phases=phases)


def _commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield commands and what they do, in an order in which each finds its files."""
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
    """Run Python; return the seconds and what it printed."""
    command = [sys.executable, *arguments]
    seconds, done = timed(partial(subprocess.run, command, capture_output=True, text=True))
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LlmgpuError(f"{' '.join(arguments[1:3])}: {reason}")
    return seconds, f"{done.stderr}\n{done.stdout}"


def _phases(printed: str) -> dict[str, float]:
    """Return the seconds of the phases in a summary, "work" where it has one number."""
    begin = max(printed.rfind("\n{"), 0)
    seconds = json.JSONDecoder().raw_decode(printed[begin:].lstrip())[0]["seconds"]
    named = seconds if isinstance(seconds, dict) else {"work": seconds}
    return {name: float(spent) for name, spent in named.items() if name != "total"}
