"""The lines that tell how much memory a command needs, against the peak of its process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from llmgpu.machine import peak_memory
from llmgpu.text.generated import generate_text
from tests.cli.conftest import environment

pytestmark = pytest.mark.skipif(peak_memory() is None, reason="the system tells no peak")

# Every need is reported, because it exceeds a tenth of this "free" memory.
COMMAND = """
import llmgpu.cli.console as console
from llmgpu.cli import main
from llmgpu.machine import peak_memory
console.free_memory = lambda: 1 << 20
try:
    main()
finally:
    print("peak", peak_memory())
"""
MEGABYTES = {b"kB": 1e-3, b"MB": 1, b"GB": 1e3}
BPE_TRAIN = ("bpe-train", "-o", "v.bin", "--vocab-size", "1000", "--force")
TOKENIZE = ("tokenize", "--vocab", "v.bin", "-o", "t.bin", "--force")
TRAIN = ("train", "--vocab", "v.bin", "-o", "run", "--force", "--steps", "3", "--dim", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    text = b"".join(generate_text(8 << 20))
    (folder / "text.txt").write_bytes(text)
    (folder / "small.txt").write_bytes(text[: 1 << 20])
    line = text[: 4 << 20].decode(errors="ignore")
    (folder / "line.jsonl").write_text(json.dumps({"text": line}) + "\n")
    (folder / "one.jsonl").write_text(json.dumps({"text": 8 * line}) + "\n")
    run(folder, "", *BPE_TRAIN, "small.txt")
    return folder


def run(folder: Path, engine: str, *arguments: str) -> tuple[float, list[list[float]]]:
    """Return the peak of a command on the CPU in MB, and the figures of its memory lines in MB."""
    command = [sys.executable, "-c", COMMAND, *arguments, "--device", "cpu"]
    env = environment() | {"LLMGPU_CPU": engine}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = re.findall(rb"^needs (.*) of memory", done.stderr, re.MULTILINE)
    figures = [re.findall(rb"([0-9.]+) ([kMG]B)", line) for line in lines]
    peak = int(done.stdout.split(b"peak ")[1]) / 1e6
    return peak, [[float(number) * MEGABYTES[unit] for number, unit in line] for line in figures]


@pytest.mark.parametrize("engine", ["", "numpy"])
@pytest.mark.parametrize("command", [BPE_TRAIN, TOKENIZE])
def test_two_figures_where_distinct_words_are_unknown(
    folder: Path, command: tuple[str, ...], engine: str
) -> None:
    output = {"v.bin": "other.bin"} if command is BPE_TRAIN else {}
    arguments = [output.get(argument, argument) for argument in command]
    peak, lines = run(folder, engine, *arguments, "text.txt")
    # A later line has a higher bound: on a busy machine the first measurement sees less growth.
    [about, most], *_ = lines
    assert 0.5 * peak <= about <= 2 * peak and peak <= most


def test_writing_tokens_of_megabytes_is_reported(folder: Path) -> None:
    (folder / "letters.txt").write_bytes(b"a" * 3_000_000)
    options = (*BPE_TRAIN[:2], "other.bin", *BPE_TRAIN[3:])
    peak, [[merging], [writing]] = run(folder, "", *options, "letters.txt")
    assert merging < peak <= writing <= 2 * peak


@pytest.mark.parametrize(
    "arguments",
    [
        (*BPE_TRAIN[:2], "other.bin", *BPE_TRAIN[3:], "line.jsonl"),
        (*BPE_TRAIN[:2], "other.bin", *BPE_TRAIN[3:], "one.jsonl"),
        (*BPE_TRAIN[:2], "other.bin", *BPE_TRAIN[3:], "text.txt", "one.jsonl"),
        (*TOKENIZE, "line.jsonl"),
        (*TOKENIZE, "one.jsonl"),
        (*TRAIN, "small.txt"),
    ],
    ids=lambda arguments: f"{arguments[0]}-{'-'.join(arguments[6:])}",
)
def test_never_more_is_used_than_said(folder: Path, arguments: tuple[str, ...]) -> None:
    peak, lines = run(folder, "", *arguments)
    assert peak <= max(chain.from_iterable(lines), default=0), lines
    if arguments[0] == "train":
        assert [len(line) for line in lines] == [1]
