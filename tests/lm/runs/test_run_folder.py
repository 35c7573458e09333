"""The folder of a run: made, refused, gone on with, and never written by two runs at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgpu.errors import InputError, OutputError
from llmgpu.lm.runs.run_folder import describe_run, open_run_folder
from tests.cli.conftest import environment

HOLDING = """
import sys
from llmgpu.errors import LlmgpuError
from llmgpu.lm.runs.run_folder import open_run_folder
try:
    with open_run_folder(sys.argv[1], force=True):
        print("locked", flush=True)
        sys.stdin.read()
except LlmgpuError as error:
    print(error, flush=True)
"""


@contextmanager
def child_with(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that tries to lock a folder, and what it says."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        yield child, child.stdout.readline().decode().strip()


def open_and_close(path: Path, **options: bool) -> None:
    with open_run_folder(path, **options):
        pass


def test_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    with open_run_folder(path) as folder:
        assert folder.path == path and os.listdir(path) == ["run.lock"]
        assert (path / "run.lock").read_text() == str(os.getpid())
        for inside in (folder.log, folder.loss_curve, folder.tokens):
            assert inside.parent == path
        folder.log.touch()
    assert (path / "run.lock").read_text() == ""


def test_a_run_that_wrote_nothing_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    with pytest.raises(InputError), open_run_folder(path):
        raise InputError("refused")
    assert os.listdir(tmp_path / "runs") == []
    with open_run_folder(path):
        shutil.rmtree(path)
    empty = tmp_path / "empty"
    empty.mkdir()
    open_and_close(empty)
    open_and_close(empty)  # a run that did nothing
    assert os.listdir(empty) == ["run.lock"]


def test_a_folder_with_a_run(tmp_path: Path) -> None:
    with open_run_folder(tmp_path) as folder:
        folder.log.write_bytes(b"log")
    with pytest.raises(OutputError, match=r"already has a run: use --resume .*, --force to"):
        open_and_close(tmp_path)
    with open_run_folder(tmp_path, resume=True) as folder:
        assert folder.log.read_bytes() == b"log"
        folder.loss_curve.write_bytes(b"svg")
        (tmp_path / "checkpoint-5").mkdir()
        (tmp_path / "checkpoint-5" / "weights").write_bytes(b"1")
        (tmp_path / "notes").write_bytes(b"mine")
        (tmp_path / "linked").mkdir()
        (tmp_path / "checkpoint-6").symlink_to(tmp_path / "linked")
    with open_run_folder(tmp_path, force=True) as folder:
        assert len(os.listdir(tmp_path)) == 7
        folder.remove(["log.jsonl", "*.svg", "checkpoint-*"])
        assert sorted(os.listdir(tmp_path)) == ["linked", "notes", "run.lock"]
    with open_run_folder(tmp_path, force=True) as folder:
        folder.remove(["*"])
        assert os.listdir(tmp_path) == ["run.lock"]


def test_folders_in_use_keep_their_files_but_not_other_folders(tmp_path: Path) -> None:
    files = {name: tmp_path / "run/tokens" / name for name in ("own", "0/of", "1/of", "1/deep/of")}
    with open_run_folder(tmp_path / "run") as folder:
        for kept, left in (("", {"own"}), ("1", {"1/of"}), ("0", {"0/of"})):
            for path in files.values():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            folder.remove(["tok*"], {folder.tokens / kept})
            assert {name for name, path in files.items() if path.exists()} == left


def test_tokens_of_a_run_that_did_not_begin_are_left_to_the_next(tmp_path: Path) -> None:
    with open_run_folder(tmp_path) as folder:
        folder.tokens.mkdir()
        (folder.tokens / "ids").write_bytes(b"1")
    with open_run_folder(tmp_path):
        assert (tmp_path / "tokens" / "ids").read_bytes() == b"1"
    with open_run_folder(tmp_path, force=True) as folder:
        folder.remove(["tokens"])
        assert os.listdir(tmp_path) == ["run.lock"]


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"text")
    for force in (False, True):
        with pytest.raises(
            OutputError, match="is not a run folder: choose a new or an empty folder"
        ):
            open_and_close(tmp_path, force=force)
    with pytest.raises(InputError, match="has no run to resume"):
        open_and_close(tmp_path, resume=True)
    assert os.listdir(tmp_path) == ["precious"]
    with pytest.raises(InputError, match="has no run to resume"):
        open_and_close(tmp_path / "missing", resume=True)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(OutputError, match=r"precious is a file, not a run folder"):
        open_and_close(tmp_path / "precious")


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with child_with(path) as (child, said):
        assert said == "locked"
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(OutputError) as caught:
                open_and_close(path, **options)
            assert f"{path} is in use by process {child.pid}: " in str(caught.value)
        with child_with(path) as (_, other):
            assert f"{path} is in use by process {child.pid}: " in other
    open_and_close(path)


def test_a_killed_run_frees_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with child_with(path) as (child, said):
        assert said == "locked"
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
        assert (path / "run.lock").read_text() == str(child.pid)
        with open_run_folder(path, resume=True):
            assert (path / "run.lock").read_text() == str(os.getpid())
            with child_with(path) as (_, other):
                assert f"in use by process {os.getpid()}" in other


def test_a_lock_that_says_nothing_readable(tmp_path: Path) -> None:
    with open_run_folder(tmp_path):
        (tmp_path / "run.lock").write_bytes(b"\xff")
        with pytest.raises(OutputError, match="is in use by another process"):
            open_and_close(tmp_path)


def test_a_refused_folder_is_not_left_locked(tmp_path: Path) -> None:
    with open_run_folder(tmp_path) as folder:
        folder.log.write_bytes(b"log")
    with pytest.raises(OutputError, match="already has a run"):
        open_and_close(tmp_path)
    open_and_close(tmp_path, resume=True)


def test_what_is_told_of_a_run(tmp_path: Path) -> None:
    log, head = tmp_path / "log.jsonl", b'{"format": "llmgpu-training-log", "version": 1'
    log.write_bytes(head + b', "parameters": 7, "init": null, "model": {"dim": 4}}\n')
    (tmp_path / "step-00000003").mkdir()
    expected = {"parameters": 7, "step": 0, "checkpoints": "step-00000003", "model": {"dim": 4}}
    assert describe_run(tmp_path) == expected
    record = {"step": 3, "loss": 2.0, "learning_rate": 0.1, "grad_norm": 1.0, "tokens": 9}
    record |= {"tokens_per_second": 9.0, "seconds": 1.0, "smoothing_loss": 0.0, "z_loss": 0.0}
    spent = {"start": 0.5, "data": 0.25, "evaluation": 0.125, "saving": 0.0}
    record |= {f"{name}_seconds": seconds for name, seconds in spent.items()}
    log.write_bytes(head + b"}\n" + json.dumps(record).encode() + b"\n")
    assert describe_run(tmp_path)["seconds beside steps"] == spent
    log.write_bytes(head + b"}\n{}\n")
    with pytest.raises(InputError, match=r"log\.jsonl, line 2"):
        describe_run(tmp_path)
