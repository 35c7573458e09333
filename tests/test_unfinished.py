"""Temporary files: in use by one process, removed once nobody uses them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgpu.files import OutputFile, atomic_output
from tests.cli.conftest import environment

# Writes a file until somebody says something, or kills it.
WRITING = """
import sys
from llmgpu.files import atomic_output

with atomic_output(sys.argv[1]) as stream:
    stream.write(b"from another process")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is writing the file "out"."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WRITING, str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def write(path: Path) -> None:
    with atomic_output(path) as stream:
        stream.write(b"from here")


def test_what_a_kill_left_is_removed_by_the_next_run(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert len(os.listdir(tmp_path)) == 1
    write(tmp_path / "another")
    assert len(os.listdir(tmp_path)) == 2
    write(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["another", "out"]


def test_what_another_process_writes_is_left_alone(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    write(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"from here"
    other_process.communicate()
    assert other_process.returncode == 0
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"from another process"


def test_files_of_one_process_do_not_meet(tmp_path: Path) -> None:
    prefix = "n" * 60
    with atomic_output(tmp_path / f"{prefix}1") as first:
        first.write(b"first")
        write(tmp_path / f"{prefix}2")
        with atomic_output(tmp_path / f"{prefix}1") as again:
            again.write(b"again")
    assert (tmp_path / f"{prefix}1").read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [f"{prefix}1", f"{prefix}2"]


def test_later_names_are_looked_at_too(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        (tmp_path / f".out.{number:012x}.tmp").write_bytes(b"left")
    (tmp_path / ".out.000000000002.tmp").symlink_to("elsewhere")
    write(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.000000000002.tmp", "out"]


def test_a_file_that_was_removed_before_it_was_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a new file for one that was left."""
    real_dup, removed = os.dup, []

    def dup(descriptor: int) -> int:
        if not removed:
            removed.append(tmp_path / ".out.000000000000.tmp")
            removed[0].unlink()
        return real_dup(descriptor)

    monkeypatch.setattr(os, "dup", dup)
    file = OutputFile(tmp_path / "out")
    assert removed and os.listdir(tmp_path) == [os.path.basename(file.temporary)]
    file.commit()
    assert os.listdir(tmp_path) == ["out"]
