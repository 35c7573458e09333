"""Files of folders: --exclude, and .gitignore as git reads it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgpu.errors import InputError
from llmgpu.text.sources import walk_folder

NAMES = ("a", "b.py", "c.txt", "build", "x y", "é", "[z]", "b!", "#h", "a.b.c")
LINES = [
    *("a", "build/", "/build", "*.py", "!b.py", "**/a", "a/**", "a/**/b.py", "x\\ y", "[ab].py"),
    *("[!a].txt", "?.txt", "a/b.py", "/*.txt", "build/a", "!build/a", "#", "\\#h", "\\!b", "é"),
    *("*.b.?", "[z-a]", "[[]z]", "**/build/**", "!/a", "/a/*", "!a/c.txt", "b*", "**"),
]


def files_of(folder: Path, **options: object) -> list[str]:
    found, _ = walk_folder(str(folder), **options)  # type: ignore[arg-type]
    return [str(Path(path).relative_to(folder)) for path in found]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def listed_by_git(repository: Path, folder: Path) -> list[str]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=folder,
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(repository)},
    )
    names = done.stdout.decode().split("\0")
    return sorted(name for name in names if name and not Path(name).name.startswith("."))


def make_tree(chance: random.Random, folder: Path) -> None:
    for _ in range(25):
        parts = chance.choices(NAMES, k=chance.randint(1, 4))
        path = folder.joinpath(*parts)
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            write(folder, str(path.relative_to(folder)))
    within = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for place in chance.sample(within, min(len(within), 3)):
        lines = chance.choices(LINES, k=chance.randint(1, 5))
        (place / ".gitignore").write_text("\n".join(lines) + chance.choice(["", "\n", " \n\n"]))


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_gitignore_is_read_as_git_reads_it(tmp_path: Path) -> None:
    for seed in range(40):
        repository = tmp_path / str(seed)
        chance = random.Random(seed)
        repository.mkdir()
        make_tree(chance, repository)
        subprocess.run(["git", "init", "-q", repository], check=True)
        folders = [path for path in repository.iterdir() if path.is_dir() and path.name != ".git"]
        for folder in [repository, *folders]:
            expected = listed_by_git(repository, folder)
            try:
                found = sorted(files_of(folder, gitignore=True))
            except InputError:
                found = []
            if folder != repository and not expected:
                continue  # git lists nothing of an ignored folder; named, it is read
            assert found == expected, (seed, folder)


def test_the_content_of_a_folder_is_ignored_but_not_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "b/kept", "b/left")
    (tmp_path / ".gitignore").write_text("b/*\n")
    (tmp_path / "b" / ".gitignore").write_text("!kept\n")
    assert files_of(tmp_path, gitignore=True) == ["b/kept"]


def test_exclude(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "docs/a.md", "docs/old/b.md", "src/a.min.js", "src/build/c.js", ".hid")
    assert files_of(tmp_path, exclude=("*.js",)) == ["a.py", "docs/a.md", "docs/old/b.md"]
    assert files_of(tmp_path, exclude=("build/", "docs/old/*")) == [
        *("a.py", "docs/a.md", "src/a.min.js"),
    ]
    assert files_of(tmp_path, exclude=("/docs/*", "src")) == ["a.py"]
    assert walk_folder(str(tmp_path), ("*.py",))[1] == 1  # what is excluded is not "left out"
    with pytest.raises(InputError, match=r"no files in .*1 entries skipped, 3 excluded"):
        walk_folder(str(tmp_path), ("*",))


def test_without_a_repository_only_files_within_count(tmp_path: Path) -> None:
    write(tmp_path, "in/a.txt", "in/b.txt", "in/deep/a.txt")
    (tmp_path / ".gitignore").write_text("b.txt\n")
    (tmp_path / "in/deep/.gitignore").write_bytes(b"\xff\n*\n!.x\r\n")
    assert files_of(tmp_path / "in", gitignore=True) == ["a.txt", "b.txt"]
