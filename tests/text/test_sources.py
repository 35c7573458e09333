"""Folders that a glob can't look into."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from llmgpu.errors import InputError
from llmgpu.text.sources import resolve_sources
from tests.conftest import IS_ROOT

NOBODY = 65534


def resolved_by_nobody(folder: Path, name: str) -> str:
    """Resolve a name in a folder, as a user who is not root; return the files or the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            if IS_ROOT:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = " ".join(source.path for source in resolve_sources([name]).files)
        except InputError as error:
            said = f"error: {error}"
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no such permissions")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data/*.txt", "data/a.txt"),
        ("data/open/*", "data/open/b.txt"),
        ("data/*/*.txt", "error: can't read the folder data/shut/: permission denied"),
        ("data/*/c.txt", "error: can't read the folder data/shut/: permission denied"),
        ("data/**/*.txt", "error: can't read the folder data/shut/: permission denied"),
        ("data/**", "error: can't read the folder data/shut: permission denied"),
        ("data/s*", "error: can't read the folder data/shut: Permission denied"),
        ("data/shut/*", "error: can't read the folder data/shut: permission denied"),
        ("data/[o]*/*.txt", "data/open/b.txt"),
        ("**/b.txt", "error: can't read the folder data/shut/: permission denied"),
    ],
)
def test_a_folder_that_can_not_be_read_is_named(tmp_path: Path, name: str, said: str) -> None:
    for folder in ("data/open", "data/shut"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "a.txt").write_bytes(b"a")
    (tmp_path / "data" / "open" / "b.txt").write_bytes(b"b")
    (tmp_path / "data" / "shut" / "c.txt").write_bytes(b"c")
    tmp_path.chmod(0o755)
    (tmp_path / "data" / "shut").chmod(0)
    try:
        found = resolved_by_nobody(tmp_path, name)
    finally:
        (tmp_path / "data" / "shut").chmod(0o755)
    assert found.rstrip("/").replace("shut/:", "shut:") == said.replace("shut/:", "shut:")
