"""What is read and where it goes: kinds of sources, full disks, readers that leave, interrupts."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmgpu.backend import list_adapters
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.tokens.formats import FORMATS
from tests.cli.conftest import COMMAND, Run, environment, fails, run_here
from tests.conftest import by_nobody

TRAIN = ("bpe-train", "--device", "cpu", "--vocab-size", "300", "--quiet", "--json", "-o", "-")
TEXT = b"abc abc abc " * 20


def trained_on(llmgpu: Run, *arguments: str, stdin: bytes = b"") -> tuple[dict[str, int], bytes]:
    """Train a small vocabulary; return the summary and the merged tokens."""
    done = llmgpu(*TRAIN, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    merged = Vocabulary.from_bytes(done.stdout).tokens[256:]
    return json.loads(done.stderr), b" ".join(merged)


def test_sources_of_all_kinds_train_alike(llmgpu: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(TEXT)
    (folder / "deep" / "b.jsonl").write_text(json.dumps({"body": TEXT.decode()}) + "\n")
    (folder / "deep" / "c.txt.gz").write_bytes(gzip.compress(TEXT))
    separated = (b"<|>".join([TEXT] * 3), "--doc-separator", "<|>")
    _, expected = trained_on(llmgpu, "-", *separated[1:], stdin=separated[0])
    for source in ("data", "data/**/*.*"):
        summary, merged = trained_on(llmgpu, source, "--text-field", "body")
        assert merged == expected
        assert (summary["documents"], summary["text_bytes"]) == (3, 3 * len(TEXT))


def test_limit_cuts_the_text(llmgpu: Run) -> None:
    summary, merged = trained_on(llmgpu, "-", "--limit", "240B", stdin=TEXT + b"xyz " * 500)
    assert summary["text_bytes"] == 240
    assert b"abc" in merged and b"x" not in merged


def test_special_tokens_separate_and_are_not_counted(llmgpu: Run) -> None:
    summary, merged = trained_on(
        llmgpu, "-", "--special-token", "<|end|>", stdin=(TEXT + b"<|end|>") * 9
    )
    assert summary["text_bytes"] == 9 * len(TEXT)
    assert merged.endswith(b"<|end|>") and merged.count(b"|") == 2


def test_strict_names_file_and_offset(llmgpu: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good " * 2 + b"\xff bad")
    done = llmgpu("bpe-train", "bad.txt", "--device", "cpu", "--encoding-errors", "strict")
    fails(done, 1, "bad.txt")
    assert b"10" in done.stderr


@pytest.mark.parametrize("command", ["bpe-train", "tokenize"])
def test_an_unknown_adapter_lists_those_there_are(llmgpu: Run, vocab: Path, command: str) -> None:
    more = ["--vocab", "v.bin"] if command == "tokenize" else ["-o", "new.bin"]
    done = llmgpu(command, "corpus.txt", "--device", "no-such-gpu", *more)
    names = [adapter.name for adapter in list_adapters()]
    for text in names or ["no GPU adapter found"]:
        fails(done, 1, text)
    assert not (vocab.parent / "new.bin").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions")
@pytest.mark.parametrize("name", ["corpus.txt", "v.bin"])
def test_an_unreadable_file(vocab: Path, open_folder: Path, name: str) -> None:
    for path in vocab.parent.iterdir():
        shutil.copy(path, open_folder)
    command = ("tokenize", "corpus.txt", "--vocab", "v.bin", "--device", "cpu", "--count", "-q")
    assert run_here(open_folder, command, b"").stderr == b""
    (open_folder / name).chmod(0)
    said = by_nobody(lambda: run_here(open_folder, command, b"").stderr.decode())
    assert said.startswith("error: ") and name in said and said.count("\n") == 1, said
    assert "permission denied" in said.lower()


@pytest.mark.parametrize("name", FORMATS)
def test_a_failure_keeps_the_old_token_file(llmgpu: Run, vocab: Path, name: str) -> None:
    folder = vocab.parent
    (folder / "bad.txt").write_bytes(b"good \xff bad")
    (folder / "out").write_bytes(b"\0old")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    arguments = ("--vocab", "v.bin", "--format", name, "-o", "out", "--encoding-errors", "strict")
    fails(llmgpu("tokenize", "bad.txt", "--device", "cpu", *arguments), 1, "bad.txt")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", FORMATS)
def test_pipes_of_both_devices_are_alike(
    llmgpu: Run, vocab: Path, device_name: str, name: str
) -> None:
    data = (vocab.parent / "corpus.txt").read_bytes()[:5000] + b"\x00\xff\xfe"
    arguments = ("tokenize", "--vocab", "v.bin", "--format", name, "--quiet", "--device")
    done = llmgpu(*arguments, device_name, stdin=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == llmgpu(*arguments, "cpu", stdin=data).stdout


@pytest.mark.parametrize("arguments", ["--help", "info v.bin", "tokenize --vocab v.bin --count"])
def test_a_full_disk_under_stdout(vocab: Path, arguments: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments.split()],
            cwd=vocab.parent,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=200,
        )
    fails(done, 1, "can't write standard output: No space left")


@pytest.mark.parametrize("arguments", ["--help", "info --help", "info v.bin"])
def test_output_that_nobody_reads(vocab: Path, arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, *arguments.split()],
        cwd=vocab.parent,
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=200,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", FORMATS)
def test_interrupted_tokenizing_leaves_nothing(vocab: Path, name: str) -> None:
    folder = vocab.parent
    before = sorted(folder.iterdir())
    arguments = ["tokenize", "--vocab", "v.bin", "--format", name, "-o", "out", "--device", "cpu"]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(b"text that never ends ")
        child.stdin.flush()
        while sorted(folder.iterdir()) == before and child.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)  # the temporary file is there; now it waits for more text
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=200) == 130
        assert child.stderr.read().splitlines()[-1] == b"interrupted"
    assert sorted(folder.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes stdout")
def test_a_stdout_that_is_closed_is_no_traceback(corpus: Path) -> None:
    command = f"{shlex.join(COMMAND)} bpe-train corpus.txt -q --device cpu >&-"
    done = subprocess.run(
        command, shell=True, cwd=corpus.parent, env=environment(), capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
