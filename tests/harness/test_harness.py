"""No file and no option makes a command crash, hang or destroy anything."""

from __future__ import annotations

import importlib
import os
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from llmgpu.cli import COMMANDS
from tests.cli.conftest import COMMAND, environment, fails
from tests.conftest import ROOT
from tests.harness.faults import JOBS, READ, WRITTEN, run_all
from tests.harness.faulty_calls import READING
from tests.harness.limits import draw, run_case
from tests.harness.mutations import TARGETS, mutation
from tests.harness.options import BASES, option_case, parameters
from tests.harness.properties import run_checked
from tests.harness.samples import fresh_copy, make_samples

OPTION_CASES = 80


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    make_samples(folder)
    return folder


def test_the_commands_read_sound_files(samples: Path, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    fresh_copy(samples, folder)
    for kept in {target.kept for target in TARGETS if target.kept}:
        os.symlink(samples / kept, folder / kept)
    for target in TARGETS:
        assert (folder / target.file).exists(), target


def test_changed_inputs_are_copied_again(samples: Path, tmp_path: Path) -> None:
    def content(folder: Path) -> dict[Path, bytes]:
        files = (path for path in (folder / "in").rglob("*") if path.is_file())
        return {path.relative_to(folder): path.read_bytes() for path in files}

    def change(folder: Path) -> None:
        (folder / "in" / "corpus.txt").write_bytes((folder / "in" / "corpus.txt").read_bytes())
        (folder / "in" / "v.bin").write_text("another")
        (folder / "in" / "counts").unlink()
        (folder / "in" / "more").write_text("more")

    def move(folder: Path) -> None:
        (folder / "in" / "run").rename(folder / "in" / "moved")

    fresh_copy(samples, tmp_path / "0")
    for number, changes in enumerate([lambda folder: None, change, move], 1):
        former, folder = tmp_path / str(number - 1), tmp_path / str(number)
        changes(former)
        fresh_copy(samples, folder, former)
        assert content(folder) == content(samples) and not (former / "in").exists()
        assert os.listdir(folder / "out") == []
        times = [(path / "in" / "corpus.txt").stat().st_mtime_ns for path in (folder, samples)]
        assert times[0] == times[1]


def test_mutations(samples: Path, tmp_path: Path) -> None:
    for number in range(len(TARGETS)):
        former = tmp_path / str(number - 1)
        target, wrong = mutation(samples, tmp_path / str(number), number, former=former)
        assert not wrong, (number, target, wrong)


# A run key that is a number, a layout that is a list, an option that is one, a lone surrogate.
FAILED_ONCE = (
    ("kept/shards.progress.json", "tokenize", 11335),
    ("in/ids.bin.json", "tokenize", 11149),
    ("kept/model/step-00000001/training.json", "train", 11303),
    ("in/record.json", "bench", 12495),
)


@pytest.mark.parametrize(("file", "command", "number"), FAILED_ONCE)
def test_mutations_that_once_failed(
    samples: Path, tmp_path: Path, file: str, command: str, number: int
) -> None:
    found = [each for each in TARGETS if (each.file, each.command[0]) == (file, command)]
    for k, each in enumerate(found):
        target, wrong = mutation(samples, tmp_path / str(k), number, each)
        assert not wrong, (target, wrong)


def test_every_command_is_run() -> None:
    assert set(BASES) == set(COMMANDS)


def test_options_of_all_commands(samples: Path, tmp_path: Path) -> None:
    for number in range(OPTION_CASES):
        former = tmp_path / str(number - 1)
        arguments, wrong = option_case(samples, tmp_path / str(number), number, former)
        assert not wrong, (number, arguments, wrong)


WITH_DEVICE = [
    (command, *base)
    for command, bases in BASES.items()
    for base in bases
    if any(each.name == "device" for each in parameters(command))
]


def test_an_unknown_device_is_refused(samples: Path, tmp_path: Path) -> None:
    """Each begins while the one before may still be opening its adapter in a thread."""
    for number, command in enumerate(WITH_DEVICE):
        folder = tmp_path / str(number)
        fresh_copy(samples, folder, tmp_path / str(number - 1))
        done, wrong = run_checked(folder, (*command, "--device", "no such device"))
        assert not wrong, (command, wrong, done.stderr)


def test_changes_are_of_modules_that_have_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    mutants, unchanged = map(importlib.import_module, ("mutants", "unchanged"))
    changed = [f"llmgpu/{name}" for name in mutants.TESTS]
    tests = [mutants.test_files(name) for name in changed]
    files = [*changed, *filter(None, unchanged.RULES), *chain.from_iterable(tests)]
    assert all(tests) and [file for file in files if not (ROOT / file).exists()] == []


def test_no_job_with_faults_replaces_another() -> None:
    """The jobs that read and the jobs that write are in one table, by name."""
    assert len(JOBS) == len(WRITTEN) + len(READ)


@pytest.mark.slow
def test_faults_at_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_all(["import", "bin", "checkpoint"], ["kill", "EIO"], print)
    found |= run_all(["decode", "merge counts"], [READING], print)
    found |= run_all(["merge shards"], ["SIGTERM"], print)
    assert all(tried == survived > 20 for tried, survived in found.values()), capsys.readouterr()


@pytest.mark.slow
def test_random_limits_and_signals(samples: Path, tmp_path: Path) -> None:
    (samples / "in" / "other.txt").write_text("another text\n")
    for number in range(20):
        case = draw(number, gpu_share=0)
        assert not run_case(samples, tmp_path / str(number), case), (number, case)


def test_a_disk_that_fills(samples: Path, tmp_path: Path) -> None:
    fresh_copy(samples, tmp_path / "case")
    output = tmp_path / "case" / "out" / "ids.bin"
    output.write_bytes(b"")
    command = ("tokenize", "in/corpus.txt", "--vocab", "in/v.bin", "--format", "bin")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *COMMAND, *command, "-o", str(output)],
        cwd=tmp_path / "case",
        # Python would cut what it keeps of a compiled module, too, and all would fail from then on.
        env=environment() | {"LLMGPU_DEVICE": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
    )
    fails(done, 1, "ids.bin: File too large")
    assert os.listdir(output.parent) == ["ids.bin"] and output.read_bytes() == b""
