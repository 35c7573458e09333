"""The built wheel works outside the checkout, kernels included."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from llmgpu.backend import list_adapters

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("llmgpu-*.whl")
    return path


def test_it_carries_kernels_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    on_disk = {f"llmgpu/{path.relative_to(ROOT)}" for path in (ROOT / "wgsl").rglob("*.wgsl")}
    assert on_disk and on_disk <= names
    assert "llmgpu/py.typed" in names
    assert not any(name.startswith("tests/") for name in names)


@pytest.mark.slow
def test_it_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "venv" / "lib" / version / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a pure wheel, without a network
    # The dependencies come from this environment, appended behind the new one's own packages.
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
    (work / "text").write_bytes(b"one two one two three\n" * 50)
    for device in ["cpu", "gpu"] if list_adapters() else ["cpu"]:
        command = ("-m", "llmgpu")
        run(*command, "bpe-train", "text", "--vocab-size", "270", "--device", device)
        run(*command, "tokenize", "text", "--vocab", "v.bin", "-o", "ids", "--device", device)
        back = run(*command, "tokenize", "ids", "--vocab", "v.bin", "--decode")
        assert back == (work / "text").read_bytes()
