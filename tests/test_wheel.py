"""The built wheel works outside the checkout, kernels included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from llmgpu.backend import list_adapters
from llmgpu.cpu import build as engine_build

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def build(kind: str, folder: Path, pattern: str, root: Path = ROOT, **variables: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", folder, root],
        check=True,
        capture_output=True,
        env=os.environ | variables,
    )
    (path,) = folder.glob(pattern)
    return path


def copied(folder: Path) -> Path:
    """Return a copy of the sources, in which nothing is built."""
    root = folder / "root"
    ignored = shutil.ignore_patterns("*.so", ".*", "__pycache__", "tests", "build", "dist")
    shutil.copytree(ROOT, root, ignore=ignored)
    (root / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    return root


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("--wheel", tmp_path_factory.mktemp("wheel"), "llmgpu-*.whl")


@pytest.mark.slow
def test_it_carries_kernels_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    on_disk = {f"llmgpu/{path.relative_to(ROOT)}" for path in (ROOT / "wgsl").rglob("*.wgsl")}
    assert on_disk and on_disk <= names
    assert "llmgpu/py.typed" in names
    assert not any(name.startswith(("tests/", "docs/")) for name in names)
    assert [name for name in names if name.endswith(".json")] == [
        "llmgpu/gpu/wgpu_declarations.json"
    ], "recorded measurements"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_it_carries_the_engine_and_says_for_which_platform(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"llmgpu/cpu/{name}" for name in ("engine.so", "engine.h", "encode.c")} <= names
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    module = f"llmgpu/cpu/{engine_build.MODULE.name}"
    has_header = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    assert (module in names) == has_header
    assert {f"llmgpu/cpu/python/calls.{ending}" for ending in "ch"} <= names


# A compiler that fails for the module does what a missing Python.h does.
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    "refused, has_engine", [("calls.c", True), ("", False)], ids=["engine alone", "nothing"]
)
def test_what_can_not_be_compiled_is_left_out(
    tmp_path: Path, refused: str, has_engine: bool
) -> None:
    root = copied(tmp_path)
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *{refused}*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    made = build("--wheel", tmp_path / "made", "llmgpu-*.whl", root, CC=str(compiler))
    names = set(zipfile.ZipFile(made).namelist())
    assert ("llmgpu/cpu/engine.so" in names) == has_engine
    assert not any(name.startswith("llmgpu/cpu/calls.") for name in names)
    assert made.name.endswith("-py3-none-any.whl") != has_engine


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_it_carries_modules_that_other_pythons_built(tmp_path: Path) -> None:
    root = copied(tmp_path)
    (root / "llmgpu" / "cpu" / "calls.cpython-399t-x86_64-linux-gnu.so").write_bytes(b"module")
    names = zipfile.ZipFile(build("--wheel", tmp_path, "llmgpu-*.whl", root)).namelist()
    assert "llmgpu/cpu/calls.cpython-399t-x86_64-linux-gnu.so" in names


def test_it_says_who_made_it_and_carries_the_license(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    lines = archive.read(metadata).decode().splitlines()
    assert {"License-Expression: Apache-2.0", "Author: llmgpu maintainers"} <= set(lines)
    carried = archive.read(f"{Path(metadata).parent.as_posix()}/licenses/LICENSE")
    assert carried == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_the_source_archive_holds_what_its_tests_need(tmp_path: Path) -> None:
    with tarfile.open(build("--sdist", tmp_path, "llmgpu-*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "ARCHITECTURE.md", "Makefile", "docs/index.md"):
        assert name in names
    sources = {"llmgpu/cpu/encode.c", "llmgpu/cpu/engine.h", "llmgpu/cpu/python/calls.c"}
    assert {"hatch_build.py", *sources} <= names
    assert not any(name.endswith(".so") for name in names)
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "wgsl").rglob("*.wgsl")} <= names


def test_it_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "venv" / "lib" / version / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a pure wheel, without a network
    # The dependencies come from this environment, appended after the new one's own packages.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path / "work"
    work.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(*arguments: str) -> bytes:
        done = subprocess.run(
            [python, *arguments], cwd=work, env=environment, capture_output=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import llmgpu; print(llmgpu.__file__)").decode()
    assert where.startswith(str(site))
    if engine_build.MODULE.exists():
        facts = run("-m", "llmgpu", "info").decode().splitlines()
        assert "calls from Python: extension module" in facts
    (work / "text").write_bytes(b"one two one two three\n" * 50)
    for device in ["cpu", "gpu"] if list_adapters() else ["cpu"]:
        command = ("-m", "llmgpu")
        run(*command, "bpe-train", "text", "-o", "v.bin", "--vocab-size", "270", "--device", device)
        run(*command, "tokenize", "text", "--vocab", "v.bin", "-o", "ids", "--device", device)
        back = run(*command, "tokenize", "ids", "--vocab", "v.bin", "--decode")
        assert back == (work / "text").read_bytes()
