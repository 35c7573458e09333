"""A corpus, and a vocabulary trained on it, for the commands' tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpe.plain.test_recount_gpu import words
from tests.conftest import require_adapter

Run = Callable[..., subprocess.CompletedProcess[bytes]]
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The environment of a child that finds this package and chooses no device by itself."""
    child = {key: value for key, value in os.environ.items() if key != "LLMGPU_DEVICE"}
    path = os.pathsep.join(filter(None, [str(ROOT), child.get("PYTHONPATH")]))
    return child | {"PYTHONPATH": path, "NO_COLOR": "1"}


@pytest.fixture
def llmgpu(tmp_path: Path) -> Run:
    """Run the command in an empty folder, as a process of its own."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "llmgpu", *arguments],
            cwd=tmp_path,
            env=environment(),
            input=stdin,
            capture_output=True,
            timeout=120,
        )

    return run


@pytest.fixture(params=["cpu", "gpu"])
def device_name(request: pytest.FixtureRequest) -> str:
    """NumPy, and the best adapter."""
    name: str = request.param
    if name == "gpu":
        require_adapter()
    return name


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    lines = words(11, 6_000, 800).split(b" ")
    path.write_bytes(b"\n".join(b" ".join(lines[i : i + 9]) for i in range(0, len(lines), 9)))
    return path


@pytest.fixture
def vocab(corpus: Path, llmgpu: Run) -> Path:
    done = llmgpu("bpe-train", "corpus.txt", "--device", "cpu", "--vocab-size", "400", "-q")
    assert done.returncode == 0, done.stderr
    return corpus.parent / "v.bin"
