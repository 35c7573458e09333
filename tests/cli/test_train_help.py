"""What ``llmgpu train --help`` and ``llmgpu generate --help`` list, and in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, fails


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train", "--vocab --output --resume --preset --dim --steps --batch-size --lr --min-lr "
         "--log-interval --keep --limit --device --json"),
        ("generate", "--prompt --max-new-tokens --temperature --top-k --top-p --seed --device"),
    ],
)  # fmt: skip
def test_what_is_needed_first_is_listed_first(llmgpu: Run, command: str, expected: str) -> None:
    done = llmgpu(command, "--help")
    assert done.returncode == 0
    options = done.stdout.decode().split("Options:")[1]
    listed = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", options, re.MULTILINE)
    positions = [listed.index(option) for option in expected.split()]
    assert positions == sorted(positions)


def test_numbers_have_units(llmgpu: Run, tmp_path: Path) -> None:
    """What is wrong with a number is said before anything is read."""
    (tmp_path / "text").write_bytes(b"a")
    command = ("train", "text", "-o", "run", "--vocab", "missing.bin", "--dim", "1Ki", "--steps")
    fails(llmgpu(*command, "2k"), 1, "can't read the vocabulary missing.bin")
    fails(llmgpu(*command, "x"), 2, "'x' is not a number; write 500, 8k or 1Ki")
    fails(llmgpu(*command, "0"), 2, "'0' is less than one")
