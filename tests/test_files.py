"""Writing files whole or not at all."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from llmgpu.errors import LlmgpuError, OutputError
from llmgpu.files import OutputFile, atomic_output, sync
from tests.conftest import by_nobody


def test_writes_a_new_file(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    with atomic_output(target) as stream:
        stream.write(b"\x00\xff")
        assert not target.exists()
    assert target.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    plain, atomic = tmp_path / "plain", tmp_path / "atomic"
    plain.write_bytes(b"")
    with atomic_output(atomic):
        pass
    assert atomic.stat().st_mode == plain.stat().st_mode


def test_replaces_a_file_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old and longer")
    target.chmod(0o640)
    with atomic_output(str(target)) as stream:
        stream.write(b"new")
        stream.flush()
        assert target.read_bytes() == b"old and longer"
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, LlmgpuError])
def test_an_exception_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(error), atomic_output(target) as stream:
        stream.write(b"new" * 100_000)
        raise error
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_that_was_discarded_is_not_committed(tmp_path: Path) -> None:
    """As by another thread: files that describe it must not get their names."""
    output = OutputFile(tmp_path / "f")
    output.stream.write(b"half")
    output.discard()
    with pytest.raises(OutputError, match="it was given up"):
        output.commit()
    assert not os.listdir(tmp_path)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")
    with atomic_output(link) as stream:
        stream.write(b"x")
    assert link.is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"x"


def test_a_long_name(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)
    with atomic_output(target) as stream:
        stream.write(b"x")
    assert target.read_bytes() == b"x"


@pytest.mark.parametrize("name", ["missing/out", "file/out", "folder", "new/", "", "a\0b"])
def test_what_can_not_be_written_names_path_and_reason(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    message = f"can't write {name}: " if name else "can't write '': "
    with pytest.raises(OutputError, match=re.escape(message)), atomic_output(name):
        pytest.fail("the block was entered")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def written(path: Path) -> str:
    """Write a file."""
    with atomic_output(path) as stream:
        stream.write(b"new")
    return "written"


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions")
def test_a_write_protected_file_is_not_replaced(open_folder: Path) -> None:
    old, other = open_folder / "old", open_folder / "other"
    old.write_bytes(b"old")
    old.chmod(0o444)
    assert "write-protected" in by_nobody(lambda: written(old))
    assert by_nobody(lambda: written(other)) == "written"
    open_folder.chmod(0o755)
    assert by_nobody(lambda: written(other)) == f"error: can't write {other}: Permission denied"
    assert old.read_bytes() == b"old"
    assert sorted(open_folder.iterdir()) == [old, other]


def test_a_full_device_is_an_output_error() -> None:
    expected = pytest.raises(OutputError, match="can't write /dev/full: No space left")
    with expected, atomic_output("/dev/full") as stream:
        stream.write(b"x")


def test_a_device_is_written_directly() -> None:
    with atomic_output("/dev/null") as stream:
        stream.write(b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    with atomic_output(fifo) as stream:
        stream.write(b"through the pipe")
    reader.join()
    assert received == [b"through the pipe"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_broken_pipe_passes() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        with pytest.raises(BrokenPipeError), atomic_output(f"/dev/fd/{write_end}") as stream:
            stream.write(b"x" * 1_000_000)
    finally:
        os.close(write_end)


def test_a_descriptor_is_used_as_it_stands(tmp_path: Path) -> None:
    target = tmp_path / "log"
    target.write_bytes(b"before ")
    appending = os.open(target, os.O_WRONLY | os.O_APPEND)
    with atomic_output(f"/dev/fd/{appending}") as stream:
        stream.write(b"after")
    os.close(appending)
    assert target.read_bytes() == b"before after"


def test_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    with atomic_output("-") as stream:
        stream.write(b"\xff\x00")
    assert not stdout.closed
    assert stdout.buffer.getvalue() == b"\xff\x00"  # type: ignore[attr-defined]


def test_standard_output_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"), atomic_output("-"):
        pass


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_standard_output_that_is_full_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", 0) as full:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(full))
        message = "can't write standard output: No space left"
        with pytest.raises(OutputError, match=message), atomic_output("-") as stream:
            stream.write(b"text")


def test_files_and_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    synced: list[bool] = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(stat.S_ISDIR(os.fstat(number)[0]))
    )
    sync(tmp_path / "file")
    sync(tmp_path)
    assert synced == [False, True]
    assert (tmp_path / "file").read_bytes() == b"abc"
    with pytest.raises(OutputError, match=r"can't write .*missing"):
        sync(tmp_path / "missing")


def test_a_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def syncing(number: int) -> None:
        status = os.fstat(number)
        calls.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(number)

    def replacing(old: str, new: str) -> None:
        calls.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    with atomic_output(tmp_path / "out") as stream:
        stream.write(b"abc")
    assert calls == ["3 bytes", "rename", "folder"]
