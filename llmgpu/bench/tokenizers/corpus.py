"""The text that is measured on.

By default the sources of Python's standard library, which every machine has: .py files in the order
of their paths, without the few that are not UTF-8, because peers can't read those. Different
versions of Python have different sources, so the text's hash is recorded. The source "generated" is
text of any size (`llmgpu.text.generated`); name a file like that ./generated.
All files are one document, end to end, and the text ends with a line where its length is cut.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from llmgpu.bench import GENERATED
from llmgpu.bench.results import Result, TextFacts, Times
from llmgpu.errors import InputError
from llmgpu.progress import Progress
from llmgpu.text.corpus import Corpus, CorpusOptions
from llmgpu.text.generated import generate_text

_READ_BYTES = 1 << 20
_NOT_STANDARD = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class BenchText:
    """A text and where it is from."""

    source: str
    data: bytes

    @cached_property
    def is_utf8(self) -> bool:
        """Whether peers, which take text and not bytes, can read it."""
        try:
            self.data.decode()
        except UnicodeDecodeError:
            return False
        return True

    def first(self, limit: int) -> BenchText:
        """Return the first `limit` bytes at most, up to the end of a line if there is one."""
        return BenchText(self.source, _cut(self.data, limit))

    def describe(self) -> TextFacts:
        """Return what the text is."""
        return TextFacts(self.source, len(self.data), hashlib.sha256(self.data).hexdigest())


@dataclass(frozen=True)
class Job:
    """What every engine is measured on.

    path: a file with the bytes of `text`. folder: for output files. runs: how often to measure.
    """

    text: BenchText
    path: Path
    folder: Path
    vocab_size: int
    pattern: str
    runs: int

    def begin(self, what: str, engine: str) -> Result:
        """Return a result without measurements: what was asked of which engine."""
        return Result(
            what,
            engine,
            text_bytes=len(self.text.data),
            vocab_size=self.vocab_size,
            pattern=self.pattern,
        )

    def count_runs(self, begun: Result, progress: Progress) -> Iterator[int]:
        """Yield the number of each run, which is reported as progress."""
        for run in range(self.runs):
            progress(f"{begun.what}: {begun.engine}", run, self.runs)
            yield run

    def finish(self, begun: Result, seconds: Sequence[float]) -> Result:
        """Return a result that was found right, with its times."""
        times = Times.of(seconds)
        rate = len(self.text.data) / times.median / 1e6
        return replace(begun, correct=True, seconds=times, mb_per_second=rate)


def make_job(text: BenchText, folder: Path, vocab_size: int, pattern: str, runs: int) -> Job:
    """Write a text to a file, which puts it into the page cache, and return the job on it."""
    path = folder / f"corpus-{len(text.data)}.txt"
    path.write_bytes(text.data)
    return Job(text, path, folder, vocab_size, pattern, runs)


def load_text(sources: Sequence[str], limit: int) -> BenchText:
    """Read `limit` bytes of `sources` at most, of the standard library if there are none.

    Raises:
        InputError: a source can't be read, or there is no text.
    """
    if not sources:
        text = BenchText("Python's standard library", _standard_library(limit))
    elif GENERATED in sources:
        text = BenchText(GENERATED, b"".join(text_blocks(sources, limit)))
    else:
        text = BenchText(", ".join(sources), _cut(_read(sources, limit + 1), limit))
    if not text.data:
        raise InputError(f"{text.source}: no text to measure on")
    return text


def text_blocks(sources: Sequence[str], limit: int) -> Iterator[bytes]:
    """Yield the text of `load_text`, which is not all in memory if it is generated."""
    if GENERATED not in sources:
        yield load_text(sources, limit).data
    elif len(sources) > 1:
        raise InputError("generated text can't be combined with other sources")
    else:
        yield from generate_text(limit)


def standard_library_files() -> list[Path]:
    """Return the .py files of Python's standard library, sorted by path."""
    files: list[Path] = []
    for folder, inside, names in os.walk(sysconfig.get_paths()["stdlib"]):
        inside[:] = set(inside) - _NOT_STANDARD  # what is left out is not walked either
        files += (Path(folder, name) for name in names if name.endswith(".py"))
    return sorted(path for path in files if path.is_file())


def _standard_library(limit: int) -> bytes:
    data = bytearray()
    for path in standard_library_files():
        if len(data) > limit:
            break
        text = BenchText(str(path), path.read_bytes())
        data += text.data if text.is_utf8 else b""
    return _cut(bytes(data), limit)


def _read(sources: Sequence[str], limit: int) -> bytes:
    data = bytearray()
    buffer = np.empty(_READ_BYTES, np.uint8)
    with Corpus(sources, CorpusOptions(limit=limit)) as corpus:
        ended = False
        while not ended:
            fill = corpus.read_into(buffer)
            data += buffer[: fill.length].tobytes()
            ended = fill.end
    return bytes(data)


def _cut(data: bytes, limit: int) -> bytes:
    if len(data) <= limit:
        return data
    return data[: data.rfind(b"\n", 0, limit) + 1 or limit]
