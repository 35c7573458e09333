"""``llmgpu bpe-train --checkpoint``: a process is killed, and another one ends its work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run, environment, fails

OPTIONS = ("--device", "cpu", "--vocab-size", "700,6000", "--special-token", "<|end|>")


@pytest.fixture
def long_words(tmp_path: Path) -> Path:
    """A text of many different words, which take a while to merge."""
    rng = np.random.default_rng(5)
    letters = rng.integers(97, 105, (250_000, 12), dtype=np.uint8)
    letters[:, -1] = ord(" ")
    path = tmp_path / "long.txt"
    path.write_bytes(letters.tobytes())
    return path


def kill_while_it_merges(folder: Path, *arguments: str) -> None:
    log = folder / "kept" / "merges"
    with subprocess.Popen(
        [sys.executable, "-m", "llmgpu", "bpe-train", *arguments],
        cwd=folder,
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as child:
        deadline = time.monotonic() + 200
        while not log.exists() or log.stat().st_size < 4000:
            assert child.poll() is None, "it was done before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=200) == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_run_is_resumed(llmgpu: Run, long_words: Path) -> None:
    folder = long_words.parent
    arguments = ("long.txt", "-o", "v.bin", *OPTIONS, "--checkpoint", "kept")
    kill_while_it_merges(folder, *arguments)
    assert not (folder / "v-700.bin").exists() and not (folder / "v-6000.bin").exists()
    fails(llmgpu("bpe-train", *arguments), 1, "kept exists already: use --resume")
    other = [*arguments, "--resume", "--min-frequency", "3"]
    fails(llmgpu("bpe-train", *other), 1, "minimum frequency was 2 and is 3 now")
    done = llmgpu("bpe-train", *arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert b"resuming from kept" in done.stderr
    assert not (folder / "kept").exists()
    assert json.loads(done.stdout)["new_merges"] == 6000 - 257
    alone = llmgpu("bpe-train", "long.txt", "-o", "w.bin", *OPTIONS, "-q")
    assert alone.returncode == 0
    for size in (700, 6000):
        made, expected = folder / f"v-{size}.bin", folder / f"w-{size}.bin"
        assert made.read_bytes() == expected.read_bytes()


def test_a_corpus_that_has_changed_is_refused(llmgpu: Run, long_words: Path) -> None:
    arguments = ("long.txt", *OPTIONS, "--checkpoint", "kept")
    kill_while_it_merges(long_words.parent, *arguments)
    with open(long_words, "ab") as text:
        text.write(b"more")
    fails(llmgpu("bpe-train", *arguments, "--resume"), 1, "corpus files")
    assert (long_words.parent / "kept" / "merges").exists()


def test_nothing_to_resume(llmgpu: Run, corpus: Path) -> None:
    arguments = ("--device", "cpu", "--vocab-size", "300", "--checkpoint", "kept", "--resume")
    done = llmgpu("bpe-train", "corpus.txt", *arguments)
    assert done.returncode == 0
    assert b"note: there is no kept to resume from: starting from scratch" in done.stderr
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["corpus.txt", "v.bin"]


def test_a_run_that_fails_before_it_does_anything_leaves_no_checkpoint(
    llmgpu: Run, tmp_path: Path
) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    done = llmgpu("bpe-train", "empty.txt", "--device", "cpu", "--checkpoint", "kept")
    fails(done, 1, "the corpus is empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_options_of_checkpoints(llmgpu: Run, corpus: Path) -> None:
    fails(llmgpu("bpe-train", "corpus.txt", "--resume"), 2, "--resume needs --checkpoint")
    done = llmgpu("bpe-train", "corpus.txt", "--checkpoint", "kept", "--engine", "recount")
    fails(done, 2, "--checkpoint can't be combined with --engine recount")
    assert [path.name for path in corpus.parent.iterdir()] == ["corpus.txt"]
