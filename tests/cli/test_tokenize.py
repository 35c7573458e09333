"""``llmgpu tokenize`` as a process: formats, streams, the way back."""

from __future__ import annotations

import gzip
import json
import os
import select
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.tokens.formats import FORMATS
from llmgpu.tokens.sinks import NumbersWriter
from tests.cli.conftest import COMMAND, Run, environment, fails


@pytest.mark.parametrize("name", FORMATS)
def test_files_come_back(
    llmgpu: Run, corpus: Path, vocab: Path, device_name: str, name: str
) -> None:
    arguments = ("--vocab", "v.bin", "--format", name)
    done = llmgpu("tokenize", "corpus.txt", *arguments, "-o", "out", "--device", device_name)
    assert done.returncode == 0 and done.stdout == b"", done.stderr
    back = llmgpu("tokenize", "out", *arguments, "--decode")
    assert back.returncode == 0 and back.stdout == corpus.read_bytes(), back.stderr
    on_cpu = llmgpu("tokenize", "corpus.txt", *arguments, "-o", "cpu", "--device", "cpu")
    assert on_cpu.returncode == 0
    folder = corpus.parent
    assert (folder / "out").read_bytes() == (folder / "cpu").read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_the_ending_gives_the_format_and_reading_recognizes_it(
    llmgpu: Run, corpus: Path, vocab: Path, name: str
) -> None:
    arguments = ("tokenize", "--vocab", "v.bin", "--device", "cpu")
    named = f"named{FORMATS[name].ending.upper()}"
    assert llmgpu(*arguments, "corpus.txt", "-o", named).returncode == 0
    assert llmgpu(*arguments, "corpus.txt", "-o", "asked.txt", "--format", name).returncode == 0
    assert (corpus.parent / named).read_bytes() == (corpus.parent / "asked.txt").read_bytes()
    for ids in (named, "asked.txt"):
        back = llmgpu(*arguments, "--decode", ids, ids)
        assert back.returncode == 0 and back.stdout == 2 * corpus.read_bytes(), back.stderr


def test_files_of_several_formats_are_decoded_together(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    names = ("a.bin", "b.npy", "c.txt", "d.jsonl", "e", "f.ids")
    for name in names:
        llmgpu("tokenize", "corpus.txt", "--vocab", "v.bin", "-o", name, "--device", "cpu")
    back = llmgpu("tokenize", "--vocab", "v.bin", "--decode", *names)
    assert back.returncode == 0 and back.stdout == len(names) * corpus.read_bytes()
    (corpus.parent / "a.bin.json").unlink()
    alone = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "a.bin")
    fails(alone, 1, "a.bin has no side file that records its integer type")
    fails(llmgpu("tokenize", "--vocab", "v.bin", "--decode", "a.bin", "-o", "a.bin"), 1, "input")


def test_a_side_file_is_an_input_of_decoding(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    encode = ("tokenize", "corpus.txt", "--vocab", "v.bin", "--device", "cpu")
    decode = ("tokenize", "--vocab", "v.bin", "--force", "--decode")
    for name in ("a.bin", "b.npy"):
        assert llmgpu(*encode, "-o", name).returncode == 0
    (corpus.parent / "b.npy.json").write_text("of somebody")
    side = (corpus.parent / "a.bin.json").read_bytes()
    fails(llmgpu(*decode, "a.bin", "-o", "a.bin.json"), 1, "a.bin.json is an input")
    assert (corpus.parent / "a.bin.json").read_bytes() == side
    assert llmgpu(*decode, "b.npy", "-o", "b.npy.json").returncode == 0
    assert (corpus.parent / "b.npy.json").read_bytes() == corpus.read_bytes()


@pytest.mark.parametrize("times", [1, 300_000])  # the ids of several blocks
def test_decoded_documents_are_put_apart(
    llmgpu: Run, corpus: Path, vocab: Path, times: int
) -> None:
    text = "low\n" * times + "--\n--\nnewest é\n--\n"
    (corpus.parent / "t.txt").write_text(text)
    apart = ("--vocab", "v.bin", "--device", "cpu", "--doc-separator", "--\n")
    for output in ("a.bin", "a.npy"):
        assert llmgpu("tokenize", "t.txt", *apart, "-o", output).returncode == 0
    back = llmgpu("tokenize", "--decode", "a.bin", *apart)
    assert back.returncode == 0 and back.stdout.decode() == text, back.stderr
    twice = llmgpu("tokenize", "--decode", "a.bin", "a.bin", *apart)
    assert twice.stdout.decode() == f"{text}--\n{text}"
    fails(llmgpu("tokenize", "--decode", "a.npy", *apart), 1, "without --doc-separator")
    for wrong, what in (
        (("-o", "a.jsonl"), "JSON Lines, an object per document"),
        (("--doc-separator", "x"), "several values"),
    ):
        done = llmgpu("tokenize", "--decode", "a.bin", *apart, *wrong)
        fails(done, 2, f"--doc-separator can't be combined with {what}")


def test_binary_ids_are_not_written_to_a_terminal(corpus: Path, vocab: Path) -> None:
    ours, theirs = os.openpty()
    command = [*COMMAND, "tokenize", "corpus.txt", "--vocab", "v.bin", "--device", "cpu"]
    here = {"cwd": corpus.parent, "env": environment(), "stderr": subprocess.PIPE}
    try:
        for name, options in (
            ("standard output", ["--format", "npy"]),
            (os.ttyname(theirs), ["--format", "bin", "-o", os.ttyname(theirs)]),
        ):
            done = subprocess.run([*command, *options], stdout=theirs, **here)  # type: ignore[call-overload]
            fails(done, 1, f"{name} is a terminal: name a file, or redirect")
        assert not select.select([ours], [], [], 0)[0]
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("name", FORMATS)
def test_pipes_come_back(llmgpu: Run, corpus: Path, vocab: Path, name: str) -> None:
    arguments = ("tokenize", "--vocab", "v.bin", "--format", name, "--quiet")
    data = corpus.read_bytes() + b"\x00\xff\xfe end"
    ids = llmgpu(*arguments, "--device", "cpu", stdin=data)
    assert ids.returncode == 0 and ids.stderr == b""
    back = llmgpu(*arguments, "--decode", stdin=ids.stdout)
    assert back.returncode == 0 and back.stdout == data, back.stderr
    if name == "jsonl":  # is seen without --format
        lines = ids.stdout * 100  # more than four blocks
        back = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "-q", stdin=lines)
        assert back.returncode == 0 and back.stdout == data * 100, back.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no named pipes")
def test_a_file_beside_a_pipe_does_not_describe_its_ids(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    arguments = ("tokenize", "--vocab", "v.bin", "--format", "bin")
    llmgpu(*arguments, "corpus.txt", "-o", "a.bin", "--layout", "llmc")
    ids = llmgpu(*arguments, "corpus.txt", "-q").stdout
    folder = corpus.parent
    for name in ("-", "pipe"):
        (folder / f"{name}.json").write_bytes((folder / "a.bin.json").read_bytes())
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_bytes(ids), daemon=True)
    writer.start()
    for name, stdin in (("pipe", b""), ("-", ids)):
        apart = llmgpu(*arguments, "--decode", name, "--doc-separator", "x", stdin=stdin)
        fails(apart, 1, f"{name} does not say where its documents begin")
        back = llmgpu(*arguments, "--decode", name, stdin=stdin)
        assert back.returncode == 0 and back.stdout == corpus.read_bytes(), back.stderr
        assert (b"no side file, so the ids" in back.stderr) == (name == "pipe")
    writer.join()


def test_side_file_and_dtype(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    llmgpu("tokenize", "corpus.txt", "--vocab", "v.bin", "--format", "bin", "-o", "ids.bin")
    side = json.loads((corpus.parent / "ids.bin.json").read_text())
    ids = np.fromfile(corpus.parent / "ids.bin", np.uint16)
    vocabulary = Vocabulary.load(vocab)
    assert side["fingerprint"] == vocabulary.fingerprint
    assert side["count"] == len(ids) and side["bytes"] == corpus.stat().st_size
    assert vocabulary.decode(ids) == corpus.read_bytes()


def test_count_and_json(llmgpu: Run, corpus: Path, vocab: Path, device_name: str) -> None:
    arguments = ("tokenize", "corpus.txt", "--vocab", "v.bin", "--device", device_name)
    counted = llmgpu(*arguments, "--count")
    listed = llmgpu(*arguments, "--json")
    assert int(counted.stdout) == len(listed.stdout.split())
    summary = json.loads(listed.stderr.splitlines()[-1])
    assert summary["tokens"] == int(counted.stdout)
    assert summary["fingerprint"] == Vocabulary.load(vocab).fingerprint and summary["device"]
    assert json.loads(llmgpu(*arguments, "--count", "--json").stdout)["tokens"] == summary["tokens"]


def test_documents_of_all_kinds(llmgpu: Run, vocab: Path, device_name: str) -> None:
    folder = vocab.parent / "docs"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"body": "one two"}\n{"body": ""}\n')
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"three<|>four"))
    (folder / "c.txt").write_bytes(b"five")
    arguments = ("--text-field", "body", "--doc-separator", "<|>", "--format", "jsonl")
    done = llmgpu("tokenize", "docs", "--vocab", "v.bin", "--device", device_name, *arguments)
    vocabulary = Vocabulary.load(vocab)
    texts = [
        vocabulary.decode(np.array(json.loads(line)["ids"], np.int64))
        for line in done.stdout.splitlines()
    ]
    assert texts == [b"one two", b"", b"three", b"four", b"five"]


def test_lines_are_written_as_they_come(vocab: Path, device_name: str) -> None:
    arguments = ["tokenize", "--vocab", "v.bin", "--line-documents", "--device", device_name]
    with subprocess.Popen(
        [sys.executable, "-m", "llmgpu", *arguments],
        cwd=vocab.parent,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        vocabulary = Vocabulary.load(vocab)
        for line in (b"first line\n", b"\n", b"third\n"):
            child.stdin.write(line)
            child.stdin.flush()
            ids = np.array(child.stdout.readline().split(), np.int64)  # before the next is sent
            assert vocabulary.decode(ids) == line
        child.stdin.close()
        assert child.stdout.read() == b""
        assert child.wait(timeout=200) == 0


def test_empty_stdin(llmgpu: Run, vocab: Path, device_name: str) -> None:
    done = llmgpu("tokenize", "--vocab", "v.bin", "--device", device_name, stdin=b"")
    assert done.returncode == 0 and done.stdout in (b"", b"\n")
    counted = llmgpu("tokenize", "--vocab", "v.bin", "--count", "-q", stdin=b"")
    assert counted.stdout == b"0\n"


def test_a_closed_pipe_is_no_error(corpus: Path, vocab: Path, device_name: str) -> None:
    corpus.write_bytes(corpus.read_bytes() * 10)
    command = (
        f"cat corpus.txt | {shlex.join(COMMAND)} tokenize --vocab v.bin -q --line-documents "
        f"--device {device_name} | head -1"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=corpus.parent,
        env=environment(),
        capture_output=True,
        timeout=200,
    )
    assert done.stdout.count(b"\n") == 1 and done.stderr == b""
    assert done.returncode in (0, 141)  # 141: cat was cut off, by SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.txt"], 1, "missing.txt"),
        (["corpus.txt", "-o", "/dev/full"], 1, "/dev/full"),
        (["corpus.txt", "--vocab", "missing.bin"], 1, "missing.bin"),
        (["corpus.txt", "--vocab", "corpus.txt"], 1, "corpus.txt"),
        (["corpus.txt", "--vocab", "short.bin"], 1, "short.bin"),
        (["corpus.txt", "--match", "best"], 2, "best"),
        (["corpus.txt", "--format", "xml"], 2, "xml"),
        (["ids.txt", "--decode"], 1, "400"),
        (["words.txt", "--decode"], 1, "words.txt"),
        (["ids.txt", "--decode", "--count"], 2, "--decode"),
        (["bad.jsonl"], 1, "bad.jsonl"),
        (["corpus.txt", "--device", "no such GPU"], 1, "no such GPU"),
        (["corpus.txt", "--device", "no such GPU", "--shuffle"], 1, "no such GPU"),
        (
            [
                *("corpus.txt", "--device", "no such GPU", "-o", "out.bin", "--shard-tokens", "9"),
                *("--line-documents", "--split", "val=0.1"),
            ],
            1,
            "no such GPU",
        ),
    ],
)
def test_bad_input(
    llmgpu: Run, corpus: Path, vocab: Path, arguments: list[str], code: int, message: str
) -> None:
    folder = corpus.parent
    (folder / "short.bin").write_bytes(vocab.read_bytes()[:-100])
    (folder / "ids.txt").write_text("1 2 400\n")
    (folder / "words.txt").write_text("1 two 3\n")
    (folder / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    before = sorted(folder.iterdir())
    options = [] if "--vocab" in arguments else ["--vocab", "v.bin"]
    target = [] if "-o" in arguments else ["-o", "out"]
    fails(llmgpu("tokenize", *arguments, *options, *target), code, message)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "is_expected"),
    [
        (["corpus.txt", "corpus.txt"], True),
        (["corpus.txt", "--max-tokens", "9"], False),
        (["corpus.txt", "--limit", "99"], False),
        (["corpus.txt", "corpus.txt.gz"], False),
        (["corpus.jsonl", "corpus.txt"], False),
        (["-"], False),
    ],
)
def test_memory_is_reserved_for_plain_text_that_is_read_to_its_end(
    llmgpu: Run,
    corpus: Path,
    vocab: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    is_expected: bool,
) -> None:
    (corpus.parent / "corpus.txt.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    (corpus.parent / "corpus.jsonl").write_text('{"text": "low"}\n')
    expected = []
    monkeypatch.setattr(NumbersWriter, "expect", lambda sink, nbytes: expected.append(nbytes))
    done = llmgpu("tokenize", *options, "--vocab", "v.bin", "-o", "out.npy", stdin=b"low")
    assert done.returncode == 0, done.stderr
    known = [nbytes for nbytes in expected if nbytes is not None]
    assert known == [2 * corpus.stat().st_size] * is_expected


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no named pipes")
def test_a_reader_need_not_come_before_a_device_is_refused(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    os.mkfifo(corpus.parent / "pipe")
    command = ("tokenize", "corpus.txt", "--vocab", "v.bin", "-o", "pipe", "--format", "bin")
    fails(llmgpu(*command, "--device", "no such GPU"), 1, "no such GPU")


def test_a_token_file_of_another_vocabulary(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    llmgpu("bpe-train", "corpus.txt", "-o", "other.bin", "--vocab-size", "300", "--device", "cpu")
    llmgpu("tokenize", "corpus.txt", "--vocab", "v.bin", "--format", "bin", "-o", "ids.bin")
    done = llmgpu("tokenize", "ids.bin", "--decode", "--format", "bin", "--vocab", "other.bin")
    fails(done, 1, "ids.bin was made with vocabulary")
    assert b"other.bin" in done.stderr


def test_names_that_promise_another_format_are_refused(llmgpu: Run, vocab: Path) -> None:
    tokenize = ("tokenize", "--vocab", "v.bin", "corpus.txt", "-o")
    for name in ("ids.parquet", "ids.JSON", "ids.jsonl.gz"):
        fails(llmgpu(*tokenize, name), 1, "can't write ids as")
        assert not (vocab.parent / name).exists()
    done = llmgpu(*tokenize, "x.csv", "--format", "ids")
    assert done.returncode == 0, done.stderr


def test_decoding_takes_no_options_of_text(llmgpu: Run, vocab: Path) -> None:
    for option in (("--limit", "9M"), ("--text-field", "a"), ("--bad-rows", "skip")):
        done = llmgpu("tokenize", "--vocab", "v.bin", "--decode", "corpus.txt", *option)
        fails(done, 2, f"{option[0]} is for text, not for --decode")
