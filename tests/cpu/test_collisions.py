"""The hashes of the engine's tables are keyed: words that collide do so in one process alone."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmgpu.cpu import build
from tests.conftest import PYTHON_PATH

WORDS, BUCKETS = 2000, 1024  # as in collisions.c
# Of words at random 2 fall into a bucket on average; more than 16 have a chance of 1e-7.
MOST = 16


def test_words_that_collide_under_one_key_do_not_under_others(tmp_path: Path) -> None:
    compiler = os.environ.get("CC", "cc").split()
    program = str(tmp_path / "collisions")
    sources = [Path(__file__).with_name("collisions.c"), build.FOLDER / "words.c"]
    files = [*map(str, sources), *build.LIBRARIES]
    try:
        flags = ["-O1", "-pthread", f"-I{build.FOLDER}"]
        subprocess.run([*compiler, *flags, "-o", program, *files], check=True)
    except OSError:
        pytest.skip("there is no C compiler")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    fullest = dict(map(int, line.split()) for line in done.stdout.splitlines())
    assert set(fullest) == {0, 5, 8, 12, 15, 16, 24, 40, 64}
    assert {length: most for length, most in fullest.items() if most > MOST} == {}


@pytest.mark.slow
def test_files_do_not_depend_on_the_keys(tmp_path: Path) -> None:
    words = [f"{'xyz'[k % 3] * (k % 23)}{k * k % 7919} " for k in range(20_000)]
    (tmp_path / "t.txt").write_text("".join(words))
    program = """
import sys
from llmgpu.cli import cli
for command in ("bpe-train t.txt --vocab-size 900 -o v.bin --save-counts w.counts",
                "tokenize t.txt --vocab v.bin -o t.ids", "export v.bin --to huggingface -o t.json"):
    cli([*command.split(), "--quiet", "--force"], standalone_mode=False)
"""
    digests = set()
    for _ in range(20):
        environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "LLMGPU_DEVICE": "cpu"}
        command = [sys.executable, "-c", program]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        names = ("v.bin", "w.counts", "t.ids", "t.json")
        content = b"".join((tmp_path / name).read_bytes() for name in names)
        digests.add(hashlib.sha256(content).hexdigest())
    assert len(digests) == 1
