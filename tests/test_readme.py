"""The README's console examples run as they stand, and print what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Return the commands of all console blocks in order, each with the output shown below it."""
    found: list[tuple[str, str]] = []
    for block in BLOCK.findall(README.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


@pytest.mark.slow
def test_examples_run_and_print_what_they_show(tmp_path: Path) -> None:
    commands = examples()
    assert len(commands) >= 10
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}", "LLMGPU_DEVICE": "cpu"}
    for command, shown in commands:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if shown:
            assert done.stdout.rstrip("\n") == shown.rstrip("\n"), command
    programs = PYTHON_BLOCK.findall(README.read_text(encoding="utf-8"))
    assert len(programs) >= 2
    for program in programs:  # they go on with the files that the commands have made
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{program}\n{done.stderr}"


def test_numbers_are_those_of_the_recorded_runs() -> None:
    records = sorted((README.parent / "llmgpu" / "bench" / "recorded").glob("*.json"))
    assert len(records) == 2
    results = [
        result
        for record in records
        for result in json.loads(record.read_text(encoding="utf-8"))["results"]
        if "seconds" in result
    ]
    text = [r for r in results if r["what"] in ("bpe-train", "tokenize")]
    assert {tuple(row[1:]) for row in table_rows(7)} == {text_row(r) for r in text}
    training = {training_row(r) for r in results if r["what"] == "train"}
    embedding = {embedding_row(r) for r in results if r["what"] == "embedding"}
    shown = table_rows(5)
    steps = {tuple(row[1:]) for row in shown if "cores" in row[0]}
    assert steps == training
    rows = {tuple(row) for row in shown if "cores" not in row[0]}
    assert rows and rows <= embedding


def test_rates_of_large_texts_are_those_of_the_recorded_runs() -> None:
    folder = README.parent / "llmgpu" / "bench" / "recorded" / "growth"
    record = json.loads((folder / "nvidia-h200-tokenize.json").read_text(encoding="utf-8"))
    results = record["results"]
    assert {r["same_ids_as_gigatoken"] for r in results if "same_ids_as_gigatoken" in r} == {True}
    assert {tuple(row) for row in table_rows(6)} == {large_text_row(r) for r in results}


def table_rows(columns: int) -> list[list[str]]:
    """Return the rows of all tables with so many columns, without their heads."""
    lines = README.read_text(encoding="utf-8").splitlines()
    numbers = [i for i, line in enumerate(lines) if line.count("|") == columns + 1]
    heads = {i - 1 for i in numbers if lines[i].startswith("| ---")}
    rules = {i + 1 for i in heads}
    return [lines[i].strip("| ").split(" | ") for i in numbers if i not in heads | rules]


def engine_name(result: dict[str, Any]) -> str:
    name: str = result["engine"].split(" (")[0]
    return name


def text_row(result: dict[str, Any]) -> tuple[str, ...]:
    slots = f", {result['variant'].split()[0]} slots" if "variant" in result else ""
    return (
        result["what"],
        engine_name(result) + slots,
        f"{result['text_bytes'] / 1e6:.1f}",
        str(result["vocab_size"]),
        f"{result['seconds']['median']:.3f}",
        f"{result['mb_per_second']:.2f}",
    )


def large_text_row(result: dict[str, Any]) -> tuple[str, ...]:
    seconds = result["seconds"]
    return (
        result["text"],
        f"{result['text_bytes'] / 1e9:.1f}",
        result["engine"],
        str(len(seconds["runs"])),
        f"{seconds['median']:.3f}",
        f"{result['text_bytes'] / seconds['median'] / 1e9:.2f}",
    )


def training_row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["job"].split(":")[0],
        f"{engine_name(result)}, {result['variant']}",
        f"{result['seconds']['median'] * 1e3:.1f}",
        f"{result['tokens_per_second']:.0f}",
    )


def embedding_row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["job"].split(":")[0],
        result["variant"],
        engine_name(result),
        f"{result['seconds']['median'] * 1e6:.1f}",
        f"{result['bytes_per_second'] / 1e12:.2f}",
    )
