"""What is measured: NumPy and opened adapters, with the time it took to open each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgpu.backend import NUMPY, Backend, list_adapters, select_backend
from llmgpu.bench.measuring.times import timed
from llmgpu.bench.text.corpus import BenchText
from llmgpu.errors import DeviceError

ALL = "all"


@dataclass(frozen=True)
class Engine:
    """A backend, and the seconds that opening its device took (importing wgpu included)."""

    backend: Backend
    open_seconds: float

    @property
    def name(self) -> str:
        """What tables call it."""
        device = self.backend.device
        return "NumPy" if device is None else device.name

    @property
    def is_software_adapter(self) -> bool:
        """Whether a driver computes on the CPU in the place of a GPU."""
        return self.backend.device is not None and self.backend.is_software


@dataclass(frozen=True)
class Job:
    """What every engine is measured on.

    path: a file with the bytes of `text`. folder: for results. runs: how often to measure.
    """

    text: BenchText
    path: Path
    folder: Path
    vocab_size: int
    pattern: str
    runs: int


def open_engines(devices: Sequence[str]) -> tuple[list[Engine], dict[str, str]]:
    """Open what ``--device`` values name; ``all`` is NumPy and every adapter. No engine twice.

    Returns the engines and, by name, why adapters that only ``all`` names could not be opened.

    Raises:
        DeviceError: a name matches nothing, or its adapter can't be opened.
    """
    named = [device for device in devices if device != ALL]
    others = ["cpu", *(adapter.name for adapter in list_adapters())] if ALL in devices else []
    engines: dict[str, Engine] = {}
    failures: dict[str, str] = {}
    for device in dict.fromkeys([*others, *named]):
        try:
            engine = _open(device)
        except DeviceError as error:
            if device in named:
                raise
            failures[device] = str(error)
        else:
            engines.setdefault(engine.name, engine)
    return list(engines.values()), failures


def _open(device: str) -> Engine:
    seconds, backend = timed(lambda: select_backend(device, "tokenize"))
    return Engine(backend, 0.0 if backend is NUMPY else seconds)


def make_job(text: BenchText, folder: Path, vocab_size: int, pattern: str, runs: int) -> Job:
    """Write a text to a file, which puts it into the page cache, and return the job on it."""
    path = folder / f"corpus-{len(text.data)}.txt"
    path.write_bytes(text.data)
    return Job(text, path, folder, vocab_size, pattern, runs)


def begin_result(what: str, engine: str, job: Job) -> dict[str, Any]:
    """Return a result without measurements: what was asked of which engine."""
    return {
        "what": what,
        "engine": engine,
        "text_bytes": len(job.text.data),
        "vocab_size": job.vocab_size,
        "pattern": job.pattern,
        "correct": None,  # True or False once an answer was compared
    }
