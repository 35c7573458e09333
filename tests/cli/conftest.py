"""What the tests of the command line share: running it, a corpus, and both devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import llmgpu
from llmgpu.cli import cli
from tests.conftest import require_adapter

COMMAND = [sys.executable, "-m", "llmgpu"]
TIMEOUT = 120  # seconds after which a process that hangs is a failure
# Repetitive enough for merges, with letters of several scripts, a zero byte and invalid UTF-8.
CORPUS = (
    "the cat sat on the mat, the rat ran;\n".encode() * 6
    + "çok güzel, çok güzel; 東京 東京 123 123\n".encode() * 3
    + b"\x00\xff\xfe raw \x00\xff\xfe bytes"
)


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def error(self) -> str:
        """The one line that says why it failed, without a traceback."""
        assert self.code == 1, (self.code, self.stderr)
        assert "Traceback" not in self.stderr
        lines = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and self.stderr.endswith(f"{lines[0]}\n"), self.stderr
        return lines[0]


def environment() -> dict[str, str]:
    """An environment in which any folder's Python finds the package under test."""
    root = str(Path(llmgpu.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, "NO_COLOR": "1"}


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command line as a process with pipes."""
    pipes: dict[str, Any] = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], env=environment(), **{**pipes, **options}
    )


def run_process(*arguments: str | Path, data: bytes = b"", **options: Any) -> Finished:
    """Run the command line as a process to its end."""
    with start(*arguments, **options) as process:
        stdout, stderr = process.communicate(data, timeout=TIMEOUT)
    return Finished(process.returncode, stdout, stderr.decode())


def run(*arguments: str | Path, data: bytes = b"") -> Result:
    """Run the command line in this process; it must succeed."""
    result = CliRunner().invoke(cli, list(map(str, arguments)), input=data, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


@pytest.fixture(params=["cpu", "gpu"])
def device_name(request: pytest.FixtureRequest) -> str:
    """What --device is given: NumPy, and the best adapter where there is one."""
    if request.param == "gpu":
        require_adapter()
    return str(request.param)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small corpus."""
    path = tmp_path / "corpus.txt"
    path.write_bytes(CORPUS)
    return path


@pytest.fixture(scope="session")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary of that corpus."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_bytes(CORPUS)
    path = folder / "v.bin"
    run("bpe-train", folder / "corpus.txt", "-o", path, "--vocab-size", "290", "--device", "cpu")
    return path


@pytest.fixture
def unchanged(tmp_path: Path) -> Callable[[], None]:
    """A check that the test's folder has the same files as when the check was made."""
    before: dict[str, bytes] = {}

    def files() -> dict[str, bytes]:
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    def check() -> None:
        assert files() == before

    def remember() -> Callable[[], None]:
        before.update(files())
        return check

    return remember()
