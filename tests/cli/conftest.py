"""The command, run in this process or as one of its own; a corpus; a vocabulary trained on it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from llmgpu.cli import main
from tests.bpe.plain.test_recount_gpu import words
from tests.conftest import ROOT, require_adapter

COMMAND = (sys.executable, "-m", "llmgpu")


class Run(Protocol):
    """Runs the command in the test's folder."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Return its exit code and what it wrote to stdout and stderr."""


def environment() -> dict[str, str]:
    """The environment of a child that finds this package and chooses no device by itself."""
    child = {key: value for key, value in os.environ.items() if key != "LLMGPU_DEVICE"}
    path = os.pathsep.join(filter(None, [str(ROOT), child.get("PYTHONPATH")]))
    return child | {"PYTHONPATH": path, "NO_COLOR": "1"}


def run_process(
    folder: Path, arguments: tuple[str, ...], stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        input=stdin,
        capture_output=True,
        timeout=200,
    )


def run_here(
    folder: Path, arguments: tuple[str, ...], stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    """Run the command in this process, with streams and an environment as a process has them."""
    output, errors = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch, pipe_with(stdin) as reading:
        patch.chdir(folder)
        patch.delenv("LLMGPU_DEVICE", raising=False)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["llmgpu", *arguments])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # so argv names the program
        patch.setattr(sys, "stdin", reading)
        streams = [io.TextIOWrapper(memory, encoding="utf-8") for memory in (output, errors)]
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        try:
            main()
            code = 0
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0
        except Exception:
            traceback.print_exc()
            code = 1
        for stream in streams:
            stream.flush()
        return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


# Runs a command that kills itself when the nth file or folder is about to get a name like this, or
# is about to be added to.
KILLED_BEFORE = """
import fnmatch, os, signal, sys
from llmgpu.cli import main

name, left = sys.argv.pop(1), int(sys.argv.pop(1))

def watch(event, arguments):
    global left
    if event == "os.rename":
        path = arguments[1]
    elif event == "open" and arguments[1] == "a":
        path = arguments[0]
    else:
        return
    if fnmatch.fnmatch(os.path.basename(path), name):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
main()
"""


def read_terminal(terminal: int) -> str:
    """Close a terminal whose other end is closed, and return all that was written to that end.

    One read may return only the first lines: the system passes them on in the background.
    """
    shown = b""
    with suppress(OSError):  # Linux has no end of file here, but an error
        while block := os.read(terminal, 1 << 16):
            shown += block
    os.close(terminal)
    return shown.decode()


def killed_before(name: str, nth: int, folder: Path, *arguments: str) -> None:
    """Run the command until it puts in place, or adds to, a file or folder for the nth time.

    name: a pattern of its name.
    """
    command = [sys.executable, "-c", KILLED_BEFORE, name, str(nth), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@contextmanager
def pipe_with(data: bytes) -> Iterator[io.TextIOWrapper]:
    """Open a pipe that gives `data`."""
    reading, writing = os.pipe()

    def write() -> None:
        with suppress(BrokenPipeError), open(writing, "wb") as stream:
            stream.write(data)

    thread = threading.Thread(target=write)
    if data:  # all of it may be more than a pipe has room for
        thread.start()
    else:
        os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        yield stream
    if data:
        thread.join()


@pytest.fixture
def llmgpu(tmp_path: Path) -> Run:
    """Run the command in an empty folder, in this process: for what no signal or pipe decides."""
    return lambda *arguments, stdin=b"": run_here(tmp_path, arguments, stdin)


@pytest.fixture
def llmgpu_process(tmp_path: Path) -> Run:
    """Run the command in an empty folder, as a process of its own."""
    return lambda *arguments, stdin=b"": run_process(tmp_path, arguments, stdin)


def fails(done: subprocess.CompletedProcess[bytes], code: int, message: str) -> None:
    """Check that a command failed with one line, of text or JSON, and left no result behind."""
    assert done.returncode == code, done.stderr
    *lines, last = done.stderr.decode().splitlines()
    if last.startswith('{"error": '):
        found = json.loads(last)
        assert found["exit_code"] == code
        last = f"error: {found['error']}"
    stderr = "".join(f"{line}\n" for line in (*lines, last))
    assert message in stderr and "Traceback" not in stderr
    if code == 1:
        assert [line for line in stderr.splitlines() if line.startswith("error: ")] == [
            stderr.splitlines()[-1]
        ]


@pytest.fixture(params=["cpu", "gpu"])
def device_name(request: pytest.FixtureRequest) -> str:
    """NumPy, and the best adapter."""
    name: str = request.param
    if name == "gpu":
        require_adapter()
    return name


@pytest.fixture(scope="session")
def corpus_text() -> bytes:
    lines = words(11, 6_000, 800).split(b" ")
    return b"\n".join(b" ".join(lines[i : i + 9]) for i in range(0, len(lines), 9))


@pytest.fixture
def corpus(tmp_path: Path, corpus_text: bytes) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_bytes(corpus_text)
    return path


@pytest.fixture(scope="session")
def vocab_bytes(tmp_path_factory: pytest.TempPathFactory, corpus_text: bytes) -> bytes:
    """The vocabulary of most tests, trained once."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_bytes(corpus_text)
    options = ("--device", "cpu", "--vocab-size", "400", "-q")
    done = run_here(folder, ("bpe-train", "corpus.txt", *options), b"")
    assert done.returncode == 0, done.stderr
    return (folder / "v.bin").read_bytes()


@pytest.fixture
def vocab(corpus: Path, vocab_bytes: bytes) -> Path:
    path = corpus.parent / "v.bin"
    path.write_bytes(vocab_bytes)
    return path
