"""``llmgpu bpe-train`` as a process: files, streams, exit codes, interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.cli.conftest import Run, environment, fails
from tests.conftest import require_adapter


def test_devices_write_the_same_file(llmgpu: Run, corpus: Path, device_name: str) -> None:
    options = ("--vocab-size", "350", "--special-token", "<|end|>")
    done = llmgpu("bpe-train", str(corpus), "-o", "a.bin", "--device", device_name, *options)
    assert done.returncode == 0 and done.stdout == b""
    assert b"training on" in done.stderr
    assert b"350 tokens from" in done.stderr
    llmgpu("bpe-train", str(corpus), "-o", "b.bin", "--device", "cpu", *options)
    folder = corpus.parent
    assert (folder / "a.bin").read_bytes() == (folder / "b.bin").read_bytes()
    assert Vocabulary.load(folder / "a.bin").special_tokens == {"<|end|>": 349}


def test_stdin_and_stdout(llmgpu: Run, corpus: Path) -> None:
    data = corpus.read_bytes()
    arguments = ("--device", "cpu", "--vocab-size", "300")
    done = llmgpu("bpe-train", "-", "-o", "-", "--json", *arguments, stdin=data)
    assert done.returncode == 0
    vocabulary = Vocabulary.from_bytes(done.stdout)
    summary = json.loads(done.stderr.splitlines()[-1])
    assert summary["vocab_size"] == vocabulary.size == 300
    assert summary["fingerprint"] == vocabulary.fingerprint
    assert summary["text_bytes"] == len(data)


def test_quiet_and_json(llmgpu: Run, corpus: Path) -> None:
    done = llmgpu(
        "bpe-train", str(corpus), "-q", "--json", "--vocab-size", "260", "--device", "cpu"
    )
    assert done.stderr == b""
    assert json.loads(done.stdout)["merges"] == 4


def test_a_small_corpus_gives_a_smaller_vocabulary(llmgpu: Run, device_name: str) -> None:
    done = llmgpu("bpe-train", "-", "--device", device_name, stdin=b"abcabcab")
    assert done.returncode == 0
    assert (
        b"note: the vocabulary has 258 tokens instead of 32,768: after 2 merges, no pair"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.txt"], 1, "missing.txt"),
        (["empty.txt"], 1, "the corpus is empty"),
        (["*.nothing"], 1, "*.nothing"),
        (["corpus.txt", "--vocab-size", "255"], 1, "the vocabulary size is 255"),
        (["corpus.txt", "--device", "no-such-gpu"], 1, "no-such-gpu"),
        (["corpus.txt", "--limit", "ten"], 2, "is not a size"),
        (["corpus.txt", "--pattern", "gpt9"], 2, "gpt9"),
        (["bad.txt", "--encoding-errors", "strict"], 1, "bad.txt"),
        (["corpus.txt", "-o", "no/such/folder/v.bin"], 1, "no/such/folder"),
        ([], 1, "the corpus is empty"),  # a pipe that nothing comes from
    ],
)
def test_bad_input(
    llmgpu: Run, corpus: Path, arguments: list[str], code: int, message: str
) -> None:
    folder = corpus.parent
    (folder / "empty.txt").write_bytes(b"")
    (folder / "bad.txt").write_bytes(b"good \xff bad")
    before = sorted(folder.iterdir())
    options = [] if "--device" in arguments else ["--device", "cpu"]
    fails(llmgpu("bpe-train", *arguments, *options), code, message)
    assert sorted(folder.iterdir()) == before


def test_a_full_disk(llmgpu: Run, corpus: Path) -> None:
    done = llmgpu("bpe-train", str(corpus), "-o", "/dev/full", "--device", "cpu")
    fails(done, 1, "/dev/full")


def test_debug_shows_the_traceback(llmgpu: Run) -> None:
    done = llmgpu("bpe-train", "missing.txt", "--debug")
    assert done.returncode == 1 and b"Traceback" in done.stderr


def test_a_failure_keeps_the_old_file(llmgpu: Run, vocab: Path) -> None:
    before = vocab.read_bytes()
    fails(llmgpu("bpe-train", "-", "-o", str(vocab), "--device", "cpu"), 1, "empty")
    assert vocab.read_bytes() == before


def test_an_interrupt_leaves_nothing(tmp_path: Path, device_name: str) -> None:
    arguments = ["bpe-train", "-", "--device", device_name, "--pattern", "none"]
    with subprocess.Popen(
        [sys.executable, "-m", "llmgpu", *arguments],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stderr.readline()  # the line that names the device: the command is under way
        child.stdin.write(b"text that never ends " * 1000)
        child.stdin.flush()
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=200) == 130
        assert b"Traceback" not in child.stderr.read()
    assert list(tmp_path.iterdir()) == []


# Says how far it is at each report of progress, not every few seconds only.
TALKATIVE = """
from llmgpu.__main__ import main
from llmgpu.cli import console
console.LINE_SECONDS = 0.0
main()
"""


def test_an_interrupt_while_the_adapter_merges(tmp_path: Path) -> None:
    require_adapter()
    letters = np.random.default_rng(5).integers(97, 123, 1_000_000, dtype=np.uint8)
    (tmp_path / "corpus.txt").write_bytes(letters.tobytes())  # enough for very many merges
    arguments = ["bpe-train", "corpus.txt", "--device", "gpu", "--engine", "recount"]
    arguments += ["--pattern", "none", "--vocab-size", "65536"]
    with subprocess.Popen(
        [sys.executable, "-c", TALKATIVE, *arguments],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stderr is not None
        while not (line := child.stderr.readline()).startswith(b"merging "):
            assert line, "it ended before it merged"
        child.send_signal(signal.SIGINT)
        code = child.wait(timeout=200)
        rest = child.stderr.read()
    assert code == 130, rest
    assert rest.splitlines()[-1] == b"interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]
