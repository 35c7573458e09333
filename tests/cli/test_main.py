"""The command line as a whole: help without a GPU, exit codes, and where errors go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmgpu import __version__
from llmgpu.cli import COMMANDS
from tests.cli.conftest import environment, run, run_process, start

IMPORTS = """
import sys
from click.testing import CliRunner
from llmgpu.cli import cli
result = CliRunner().invoke(cli, sys.argv[1:])
print(result.exit_code, *sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_and_version_import_no_wgpu(arguments: list[str]) -> None:
    command = [sys.executable, "-c", IMPORTS, *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    code, *modules = done.stdout.split()
    assert code == "0"
    assert "llmgpu" in modules
    assert "wgpu" not in modules


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_an_example(name: str) -> None:
    text = run(name, "--help").stdout
    assert "Example:" in text
    assert f"llmgpu {name}" in text


def test_help_lists_all_commands_and_an_example() -> None:
    text = run("--help").stdout
    assert "Example:" in text
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_version() -> None:
    done = run_process("--version")
    assert (done.code, done.stdout.decode(), done.stderr) == (0, f"llmgpu, version {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["bpe-train"],
        ["bpe-train", "x", "--vocab-size", "many"],
        ["bpe-train", "x", "--pattern", "nix"],
        ["bpe-train", "x", "--limit", "10 parsecs"],
        ["bpe-train", "x", "--doc-separator", ""],
        ["tokenize", "x"],
        ["tokenize", "x", "--vocab", "v.bin", "--decode", "--count"],
        ["info", "--tokens"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_says_why(arguments: list[str], tmp_path: Path, vocab: Path) -> None:
    (tmp_path / "v.bin").write_bytes(vocab.read_bytes())
    done = run_process(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert done.stdout == b""
    assert "\nError: " in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["v.bin"]


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"], ["info", "v.bin"]])
def test_output_that_nobody_reads_is_no_error(
    arguments: list[str], tmp_path: Path, vocab: Path
) -> None:
    (tmp_path / "v.bin").write_bytes(vocab.read_bytes())
    with start(*arguments, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("arguments", [["--help"], ["info"], ["tokenize", "--count"]], ids=" ".join)
def test_full_disk_under_stdout_is_one_line(arguments: list[str], vocab: Path) -> None:
    if arguments != ["--help"]:
        arguments = [*arguments, *(["--vocab"] if "--count" in arguments else []), str(vocab)]
    with open("/dev/full", "wb") as full:
        done = run_process(*arguments, stdout=full, data=b"the cat")
    assert "No space left" in done.error


def test_debug_shows_the_traceback() -> None:
    done = run_process("info", "missing.bin", "--debug")
    assert done.code == 1
    assert "Traceback" in done.stderr
    assert "missing.bin" in done.stderr.splitlines()[-1]
    assert "missing.bin" in run_process("info", "missing.bin").error
