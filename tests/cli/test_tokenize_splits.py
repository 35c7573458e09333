"""``llmgpu tokenize``: the first tokens, splits of documents, tokens to look at."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
from pathlib import Path

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.tokens.bin import read_side_file
from tests.cli.conftest import COMMAND, Run, environment, fails, read_terminal

ENCODE = ("tokenize", "--vocab", "v.bin", "--device", "cpu", "corpus.txt")


def lines_of(llmgpu: Run, name: str) -> list[bytes]:
    back = llmgpu("tokenize", "--vocab", "v.bin", "--decode", name)
    assert back.returncode == 0, back.stderr
    return back.stdout.splitlines(keepends=True)


def test_splits_have_all_documents_once(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    split = ("--line-documents", "--split", "val=0.1", "--split", "test=20%")
    done = llmgpu(*ENCODE, *split, "-o", "train.bin", "--json", "-q")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    parts = {name: lines_of(llmgpu, name) for name in ("train.bin", "val.bin", "test.bin")}
    lines = corpus.read_bytes().splitlines(keepends=True)
    assert sorted(line for part in parts.values() for line in part) == sorted(lines)
    assert [part["documents"] for part in summary["parts"]] == [*map(len, parts.values())]
    assert 0.03 < len(parts["val.bin"]) / len(lines) < 0.2
    for name, part in parts.items():
        assert [line for line in lines if line in part] == part or len(set(lines)) < len(lines)
        assert read_side_file(corpus.parent / name)["bytes"] == sum(map(len, part))
    again = llmgpu(*ENCODE, *split, "-o", "o-train.bin", "--shard-tokens", "500")
    assert again.returncode == 0, again.stderr
    manifest = json.loads((corpus.parent / "o-val.json").read_bytes())
    assert manifest["documents"] == len(parts["val.bin"])
    other = llmgpu(*ENCODE, *split, "-o", "other.bin", "--seed", "1")
    assert other.returncode == 0 and lines_of(llmgpu, "other-val.bin") != parts["val.bin"]


def test_what_splits_refuse(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    fails(llmgpu(*ENCODE, "--split", "val=0.1"), 2, "--split needs -o FILE")
    for wrong in ("val", "val=1", "val=0", "val=", "=0.1", "a/b=0.1", "val=.", "val=-1"):
        fails(llmgpu(*ENCODE, "-o", "x.bin", "--split", wrong), 2, "write val=0.01")
    fails(llmgpu(*ENCODE, "-o", "x.bin", "--split", "a=.6", "--split", "b=.6"), 1, "120%")
    (corpus.parent / "x-val.bin").write_text("text")
    fails(llmgpu(*ENCODE, "-o", "x.bin", "--split", "val=0.1"), 1, "x-val.bin is text")
    assert not (corpus.parent / "x.bin").exists()
    few = llmgpu(*ENCODE, "corpus.txt", "-o", "y.bin", "--split", "val=0.001")
    assert few.returncode == 0 and b"note: y-val.bin got no documents" in few.stderr


def test_splits_in_shards_resume(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    split = ("--line-documents", "--split", "val=0.3", "--shard-tokens", "300")
    llmgpu(*ENCODE, *split, "-o", "a.bin")
    expected = {path.name: path.read_bytes() for path in corpus.parent.glob("a*.bin")}
    fails(llmgpu(*ENCODE, *split, "-o", "a.bin", "--json", "--decode"), 2, "with --decode")
    assert len(expected) > 4
    again = llmgpu(*ENCODE, *split, "-o", "a.bin", "--resume")
    assert again.returncode == 0
    assert {path.name: path.read_bytes() for path in corpus.parent.glob("a*.bin")} == expected


def test_the_first_tokens(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    ids = Tokenizer.load(vocab, "cpu").encode(corpus.read_bytes(), dtype=list)
    done = llmgpu(*ENCODE, "--max-tokens", "7", "--json")
    assert done.stdout.split() == [str(i).encode() for i in ids[:7]]
    summary = json.loads(done.stderr.splitlines()[-1])
    text = Tokenizer.load(vocab).decode_bytes(ids[:7])
    assert (summary["tokens"], summary["text_bytes"]) == (7, len(text))
    assert llmgpu(*ENCODE, "--max-tokens", "1M", "--count").stdout == f"{len(ids)}\n".encode()
    fails(llmgpu(*ENCODE, "--max-tokens", "7", "--decode"), 2, "--max-tokens")


def test_tokens_are_shown_in_lines_and_on_a_terminal_in_colours(
    llmgpu: Run, corpus: Path, vocab: Path
) -> None:
    corpus.write_text("low \x1b[1m☃\n")
    tokenizer = Tokenizer.load(vocab, "cpu")
    ids = tokenizer.encode(corpus.read_bytes(), dtype=list)
    plain = llmgpu(*ENCODE, "--format", "tokens").stdout.decode().splitlines()
    assert [int(line.split("\t")[0]) for line in plain] == ids
    fails(llmgpu(*ENCODE, "--format", "tokens", "--decode"), 2, "--decode can't read")
    fails(llmgpu(*ENCODE, "--format", "tokens", "-o", "corpus.txt"), 1, "input")
    piped = subprocess.run(
        [*COMMAND, *ENCODE, "--format", "tokens", "-q"],
        cwd=corpus.parent,
        env={k: v for k, v in environment().items() if k != "NO_COLOR"} | {"FORCE_COLOR": "1"},
        capture_output=True,
        check=True,
    )
    assert piped.stdout.decode().startswith("\x1b[38;5;16;")
    for variables, sign in (({"NO_COLOR": ""}, "\x1b[38;5;16;"), ({"NO_COLOR": "1"}, "│")):
        ours, theirs = pty.openpty()
        subprocess.run(
            [*COMMAND, *ENCODE, "--format", "tokens", "-q"],
            cwd=corpus.parent,
            env=environment() | {"TERM": "xterm"} | variables,
            stdout=theirs,
            check=True,
        )
        os.close(theirs)
        shown = read_terminal(ours)
        assert shown.count(sign) == len(ids) and "\x1b[1m" not in shown


def test_no_bar_erases_what_a_terminal_shows(corpus: Path, vocab: Path) -> None:
    """Ids and progress meet where standard output and standard error are one terminal."""
    ours, theirs = pty.openpty()
    subprocess.run(
        [*COMMAND, *ENCODE, "--line-documents", "--max-tokens", "9"],
        cwd=corpus.parent,
        env=environment() | {"TERM": "xterm"},
        stdout=theirs,
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    shown = read_terminal(ours)
    assert "\x1b" not in shown and "9 tokens from" in shown


def test_documents_in_another_order(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    shuffle = ("--line-documents", "--shuffle", "--seed", "3")
    plain = llmgpu(*ENCODE, "--line-documents", "--format", "jsonl").stdout.splitlines()
    found = llmgpu(*ENCODE, *shuffle, "--format", "jsonl").stdout.splitlines()
    assert sorted(found) == sorted(plain) and found != plain
    assert llmgpu(*ENCODE, *shuffle, "-o", "a.bin").returncode == 0
    assert llmgpu(*ENCODE, *shuffle, "--shard-tokens", "500", "-o", "b.bin").returncode == 0
    ids = np.fromfile(corpus.parent / "a.bin", "<u2").tolist()
    assert ids == [i for line in found for i in json.loads(line)["ids"]]
    shards = sorted(corpus.parent.glob("b-*.bin"))
    assert b"".join(path.read_bytes() for path in shards) == (corpus.parent / "a.bin").read_bytes()
    done = llmgpu(*ENCODE, *shuffle, "--split", "val=0.2", "-o", "train.bin", "--json", "-q")
    parts = json.loads(done.stdout)["parts"]
    assert [part["documents"] for part in parts] == [
        read_side_file(corpus.parent / name)["documents"] for name in ("train.bin", "val.bin")
    ]
    fails(llmgpu(*ENCODE, "--shuffle", "--count"), 2, "--shuffle can't be combined")
    assert not list(corpus.parent.glob("tmp*"))


def test_ids_to_be_shuffled_wait_in_the_folder_of_the_output(
    llmgpu: Run, corpus: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (corpus.parent / "made").mkdir()
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for output, folder in (("made/a.bin", "made"), ("a.bin", ".")):
        done = llmgpu(*ENCODE, "--line-documents", "--shuffle", "-o", output)
        fails(done, 1, f"can't write {folder}/a temporary file: No space left on device")


def test_a_split_by_position_is_that_of_nanogpt(
    llmgpu: Run, corpus: Path, vocab: Path, corpus_text: bytes
) -> None:
    """Both files are what tokenizing the two parts of the text gives."""
    nano = (*ENCODE, "-o", "train.bin", "--split", "val=10%", "--split-by", "position")
    done = llmgpu(*nano, "--layout", "nanogpt", "--json")
    assert done.returncode == 0, done.stderr
    cut = corpus_text.index(b"\n", round(len(corpus_text) * 0.9) - 1) + 1
    tokenizer = Tokenizer.load(vocab, "cpu")
    for name, text in (("train.bin", corpus_text[:cut]), ("val.bin", corpus_text[cut:])):
        ids = np.fromfile(corpus.parent / name, np.uint16)
        assert ids.tolist() == tokenizer.encode(text).tolist() and len(ids)
    shards = (*nano, "--shard-tokens", "300")
    assert llmgpu(*shards, "--force").returncode == 0
    done = llmgpu(*shards, "--resume")
    assert b"all shards of train.bin are finished" in done.stderr, done.stderr
    fails(llmgpu(*shards, "--resume", "--limit", "9"), 1, "can't be split by position")
    for options in (("--shuffle",), ("--seed", "2"), ("--max-tokens", "9"), ("--part", "1/2")):
        fails(llmgpu(*nano, *options), 2, "which keeps the order")
    fails(llmgpu(*ENCODE, "--split-by", "position"), 2, "--split-by needs --split")


def test_one_document_is_not_divided(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    split = (*ENCODE, "-o", "t.bin", "--split", "val=0.1")
    fails(llmgpu(*split), 2, "corpus.txt is a single document, which --split can't divide")
    assert not [*corpus.parent.glob("t*.bin")]
    for divided in ("--line-documents", "--split-by=position", "--doc-separator= "):
        done = llmgpu(*split, divided)
        assert done.returncode == 0, done.stderr
        assert (corpus.parent / "t-val.bin").stat().st_size


def test_chunks(llmgpu: Run, corpus: Path, vocab: Path, corpus_text: bytes) -> None:
    chunked = (*ENCODE, "--chunk-tokens", "100", "--overlap", "20", "--eos", "0")
    done = llmgpu(*chunked, "-o", "c.jsonl", "--json")
    ids = [*Tokenizer.load(vocab, "cpu").encode(corpus_text).tolist(), 0]
    lines = (corpus.parent / "c.jsonl").read_text().splitlines()
    chunks = [json.loads(line)["ids"] for line in lines]
    assert chunks == [ids[begin : begin + 100] for begin in range(0, len(ids) - 20, 80)]
    assert json.loads(done.stdout)["documents"] == len(chunks)
    assert json.loads(done.stdout)["tokens"] == sum(map(len, chunks))
    fails(llmgpu(*ENCODE, "--overlap", "3"), 2, "--overlap needs --chunk-tokens N")
    fails(llmgpu(*ENCODE, "--overlap", "3", "--chunk-tokens", "3"), 2, "must be less than")
