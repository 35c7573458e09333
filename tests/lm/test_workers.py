"""Training by several processes: the losses of one, the same bits run after run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmgpu.backend import list_adapters
from llmgpu.bpe.vocabulary.building import byte_vocabulary
from llmgpu.errors import InputError
from llmgpu.lm.checkpoints.safetensors_file import read_tensors
from llmgpu.lm.workers import ALONE, Workers, start_workers
from tests.conftest import PYTHON_PATH
from tests.harness.arguments import overridden

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
needs_mpi = pytest.mark.skipif(
    not MPIEXEC or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is not installed: pip install 'llmgpu[mpi]'",
)
MODEL = ("--dim", "16", "--layers", "1", "--heads", "2", "--seq-len", "16", "--batch-size", "2")
STEPS = ("--steps", "4", "--log-interval", "1", "--save-interval", "2", "--grad-accum", "4")
TRAIN = ("train", "--vocab", "v.bin", "text", *MODEL, *STEPS, "--device", "cpu", "-q")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "v.bin").write_bytes(byte_vocabulary("gpt2", "hf").to_bytes())
    (tmp_path / "text").write_bytes(b"the cat sat on the mat, and the dog on the log. " * 40)
    return tmp_path


def command(workers: int, *arguments: str) -> list[str]:
    own = [sys.executable, "-m", "llmgpu", *overridden(*arguments)]
    if workers == 1:
        return own
    as_root = ["--allow-run-as-root"] if os.name == "posix" and os.geteuid() == 0 else []
    return [str(MPIEXEC), *as_root, "--oversubscribe", "-n", str(workers), *own]


def environment() -> dict[str, str]:
    waits = {"OMPI_MCA_mpi_yield_when_idle": "1", "OPENBLAS_NUM_THREADS": "1"}
    return os.environ | waits | {"PYTHONPATH": PYTHON_PATH}


def run(folder: Path, workers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(workers, *arguments),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def losses(path: Path) -> list[float]:
    _, *records = map(json.loads, (path / "log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records]


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


@needs_mpi
def test_two_workers_train_as_one_does(folder: Path) -> None:
    for workers, name in ((1, "one"), (2, "two")):
        done = run(folder, workers, *TRAIN, "-o", name)
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(folder / "two"), losses(folder / "one"), rtol=1e-5)
    first, second = (
        read_tensors(folder / name / "step-00000004" / "model.safetensors")
        for name in ("one", "two")
    )
    for tensor in first:
        np.testing.assert_allclose(second[tensor], first[tensor], atol=1e-6)


@needs_mpi
@pytest.mark.slow
def test_two_workers_on_devices_train_as_one_does(folder: Path) -> None:
    """Gradients are added up in several stages, and one of them in several buckets."""
    adapters = list_adapters()
    if not adapters:
        pytest.skip("no adapter")
    large = ("--dim", "320", "--heads", "4", "--layers", "2", "--steps", "2")
    large = (*large, "--device", adapters[0].name)
    for workers, name in ((1, "one"), (2, "two"), (2, "again")):
        done = run(folder, workers, *TRAIN, *large, "-o", name)
        assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(folder / "two"), losses(folder / "one"), rtol=1e-5)
    last = Path("step-00000002")
    assert weights(folder / "two" / last) == weights(folder / "again" / last)


@needs_mpi
@pytest.mark.slow
def test_bits_repeat_and_so_they_do_when_a_run_is_resumed(folder: Path) -> None:
    for name in ("one", "two"):
        assert run(folder, 2, *TRAIN, "-o", name).returncode == 0
    last = Path("step-00000004")
    assert weights(folder / "one" / last) == weights(folder / "two" / last)
    shutil.rmtree(folder / "two" / last)
    assert run(folder, 2, *TRAIN, "-o", "two", "--resume").returncode == 0
    assert weights(folder / "one" / last) == weights(folder / "two" / last)
    assert losses(folder / "one") == losses(folder / "two")


@needs_mpi
@pytest.mark.slow
def test_a_run_is_resumed_by_another_number_of_workers(folder: Path) -> None:
    assert run(folder, 1, *TRAIN, "-o", "one").returncode == 0
    shutil.copytree(folder / "one", folder / "two")
    shutil.rmtree(folder / "two" / "step-00000004")
    assert run(folder, 4, *TRAIN, "-o", "two", "--resume").returncode == 0
    np.testing.assert_allclose(losses(folder / "two"), losses(folder / "one"), rtol=1e-5)


@needs_mpi
@pytest.mark.slow
def test_a_worker_that_dies_ends_all(folder: Path) -> None:
    """The last periodic checkpoint is whole, and the run is resumed from it."""
    long = ("--steps", "100000", "-o", "run")
    process = subprocess.Popen(
        command(2, *TRAIN, *long),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not [*(folder / "run").glob("step-*")]:  # old ones are removed
        assert process.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    done = max(int(path.name[5:]) for path in (folder / "run").glob("step-*"))
    resumed = run(folder, 2, *TRAIN, "--steps", str(done + 1), "-o", "run", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert (folder / "run" / f"step-{done + 1:08}").exists()


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grad-accum", "3"), "--grad-accum is 3, which 2 workers can't share"),
        (("-", "--steps", "5"), "several workers can't read standard input"),
        (("--resume",), "error: worker 0: run has no run to resume"),
    ],
)
def test_what_workers_can_not_do(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(folder, 2, *TRAIN, "-o", "run", *arguments)
    assert done.returncode != 0
    assert done.stderr.count(message) == 1 and "Traceback" not in done.stderr


@needs_mpi
@pytest.mark.slow
def test_what_one_worker_can_not_do_is_said_once(folder: Path) -> None:
    words = command(2, *TRAIN, "-o", "run")
    one = words.index(sys.executable)
    words[one - 1] = "1"
    done = subprocess.run(
        [*words, ":", "-n", "1", *overridden(*words[one:], "--vocab", "none.bin")],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(lines) == 1 and lines[0].startswith("error: worker 1: "), done.stderr
    assert "none.bin" in lines[0] and "Traceback" not in done.stderr


def test_one_process_is_alone() -> None:
    assert start_workers({}) is ALONE
    assert start_workers({"OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": ""}) is ALONE
    assert (ALONE.number, ALONE.count, ALONE.is_first) == (0, 1, True)
    assert ALONE.gather(15) == [15] and ALONE.device("auto", 0) == "auto"


def test_several_processes_need_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(InputError, match=r"needs the package mpi4py: pip install 'llmgpu\[mpi\]'"):
        start_workers({"OMPI_COMM_WORLD_SIZE": "2"})


def test_workers_of_a_machine_take_a_gpu_each() -> None:
    workers = Workers()
    workers.count = workers.local_count = 2
    workers.local_number = 1
    assert workers.device("gpu", 2) == workers.device("auto", 4) == "gpu:1"
    assert workers.device("auto", 0) == "cpu"
    assert workers.device("H200", 1) == "H200" and workers.device("cpu", 0) == "cpu"
    with pytest.raises(InputError, match="2 workers on a machine with 1 GPU"):
        workers.device("auto", 1)
    with pytest.raises(InputError, match="--grad-accum is 3, which 2 workers can't share"):
        workers.check(3)
