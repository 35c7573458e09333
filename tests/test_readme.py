"""The README's console examples run as they stand, and print what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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
    text = README.read_text(encoding="utf-8")
    records = sorted((README.parent / "llmgpu" / "bench" / "recorded").glob("*.json"))
    expected = {
        (
            result["what"],
            result["engine"].split(" (")[0],
            f"{result['text_bytes'] / 1e6:.1f}",
            str(result["vocab_size"]),
            f"{result['seconds']['median']:.3f}",
            f"{result['mb_per_second']:.2f}",
        )
        for record in records
        for result in json.loads(record.read_text())["results"]
        if "seconds" in result
    }
    rows = [line.strip("| ").split(" | ")[1:] for line in text.splitlines() if line.count("|") == 8]
    assert len(records) == 2
    assert {tuple(row) for row in rows[2:]} == expected
