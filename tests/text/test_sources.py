"""Folders that a glob can't look into."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmgpu.text.sources import resolve_sources
from tests.conftest import by_nobody


def resolved(name: str) -> str:
    """Return the files of a name."""
    return " ".join(source.path for source in resolve_sources([name]).files)


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
def test_a_folder_that_can_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data/open", "data/shut"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "a.txt").write_bytes(b"a")
    (tmp_path / "data" / "open" / "b.txt").write_bytes(b"b")
    (tmp_path / "data" / "shut" / "c.txt").write_bytes(b"c")
    tmp_path.chmod(0o755)
    (tmp_path / "data" / "shut").chmod(0)
    try:
        found = by_nobody(lambda: resolved(name))
    finally:
        (tmp_path / "data" / "shut").chmod(0o755)
    assert found.rstrip("/").replace("shut/:", "shut:") == said.replace("shut/:", "shut:")
