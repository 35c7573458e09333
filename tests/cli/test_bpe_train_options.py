"""The options of ``llmgpu bpe-train`` that say what is trained, and what is shown meanwhile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli import console
from llmgpu.cli.console import Reporter, human_time, progress_text
from llmgpu.input_files import number_of
from llmgpu.machine import Memory
from tests.cli.conftest import Run, fails

CPU = ("--device", "cpu")


def test_several_sizes(llmgpu: Run, corpus: Path) -> None:
    folder = corpus.parent
    special = ("--special-token", "<|end|>")
    done = llmgpu("bpe-train", "corpus.txt", *CPU, *special, "--vocab-size", "400,300", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["output"], summary["vocab_size"]) == ("v-400.bin", 400)
    assert [made["output"] for made in summary["smaller"]] == ["v-300.bin"]
    assert summary["smaller"][0]["bytes_per_token"] < summary["bytes_per_token"]
    for size in (300, 400):
        options = ("--vocab-size", str(size), "-o", "v.bin", "-q")
        alone = llmgpu("bpe-train", "corpus.txt", *CPU, *special, *options)
        assert alone.returncode == 0
        assert (folder / f"v-{size}.bin").read_bytes() == (folder / "v.bin").read_bytes()
    fails(
        llmgpu("bpe-train", "corpus.txt", *CPU, "--vocab-size", "300,400", "-o", "-"),
        2,
        "several vocabulary sizes can't be written to standard output",
    )


def test_a_seed_vocabulary(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    options = ("--seed-vocab", "v.bin", "--special-token", "<|new|>", "--vocab-size", "500")
    done = llmgpu("bpe-train", "corpus.txt", *CPU, *options, "-o", "more.bin", "--json")
    assert done.returncode == 0, done.stderr
    seed, more = Vocabulary.load(vocab), Vocabulary.load(corpus.parent / "more.bin")
    assert more.size == 500 and more.tokens[: seed.size] == seed.tokens
    assert more.merges[: len(seed.merges)].tolist() == seed.merges.tolist()
    assert more.special_tokens == {"<|new|>": 499}
    assert json.loads(done.stdout)["new_merges"] == 500 - 400 - 1
    # Without special tokens between, going on is the same as training for longer.
    llmgpu("bpe-train", "corpus.txt", *CPU, "--vocab-size", "499", "-o", "whole.bin", "-q")
    assert more.merges.tolist() == Vocabulary.load(corpus.parent / "whole.bin").merges.tolist()


def test_a_seed_of_another_tool_is_the_same_seed(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    llmgpu("export", "v.bin", "--to", "huggingface", "-o", "tokenizer.json", "-q")
    made = []
    for seed in ("v.bin", "tokenizer.json"):
        options = ("--vocab-size", "450", "--device", "cpu", "-o", "made.bin", "--seed-vocab", seed)
        done = llmgpu("bpe-train", "corpus.txt", *options)
        assert done.returncode == 0, done.stderr
        made.append(Vocabulary.load(corpus.parent / "made.bin"))
    assert made[0].tokens == made[1].tokens and made[0].fingerprint == made[1].fingerprint
    over = ("--vocab-size", "450", "--seed-vocab", "tokenizer.json", "-o", "tokenizer.json")
    fails(llmgpu("bpe-train", "corpus.txt", *over), 1, "input")


def test_a_second_stage_with_another_pattern(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    options = ("--seed-vocab", "v.bin", "--pattern", "none", "--vocab-size", "420")
    done = llmgpu("bpe-train", "corpus.txt", *CPU, *options, "-o", "more.bin")
    assert done.returncode == 0, done.stderr
    assert b"split by none, not by cl100k" in done.stderr
    seed, more = Vocabulary.load(vocab), Vocabulary.load(corpus.parent / "more.bin")
    assert (more.pattern, more.size, more.tokens[: seed.size]) == ("none", 420, seed.tokens)
    ids = llmgpu("tokenize", "--vocab", "more.bin", "corpus.txt", "-o", "ids.bin")
    assert ids.returncode == 0, ids.stderr
    back = llmgpu("tokenize", "--vocab", "more.bin", "--decode", "ids.bin")
    assert back.stdout == corpus.read_bytes()


def test_special_tokens_of_the_seed_are_not_counted(llmgpu: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ab<|x|>" * 50)
    (tmp_path / "seed.txt").write_bytes(b"ab ab ab")
    options = ("--special-token", "<|x|>", "--pattern", "none", "--vocab-size", "258")
    assert llmgpu("bpe-train", "seed.txt", *CPU, *options).returncode == 0
    done = llmgpu(
        "bpe-train", "text.txt", *CPU, "--seed-vocab", "v.bin", "-o", "w.bin", "--json", "-q"
    )
    summary = json.loads(done.stdout)
    assert (summary["vocab_size"], summary["text_bytes"], summary["documents"]) == (258, 100, 51)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--vocab-size", "300,"], 2, "'300,' is not a vocabulary size"),
        (["--vocab-size", "8kb"], 2, "'8kb' is not a vocabulary size"),
        (["--vocab-size", "0.1"], 2, "'0.1' is less than one id"),
        (["--vocab-size", "many"], 2, "'many' is not a vocabulary size"),
        (["--vocab-size", "100,300"], 1, "the vocabulary size is 100"),
        (["--max-token-length", "0"], 2, "0 is not in the range x>=1"),
        (["--seed-vocab", "missing.bin"], 1, "can't read the vocabulary missing.bin"),
        (
            ["--seed-vocab", "v.bin", "--tie", "bytes"],
            1,
            "of the seed vocabulary is 'hf'",
        ),
        (["--seed-vocab", "v.bin", "--vocab-size", "399"], 1, "it must be from 400"),
        (["--engine", "recount"], 1, "the recount engine needs a GPU adapter"),
        (["--engine", "steam"], 2, "steam"),
    ],
)
def test_options_that_are_refused(
    llmgpu: Run, vocab: Path, options: list[str], code: int, message: str
) -> None:
    before = vocab.read_bytes()
    fails(llmgpu("bpe-train", "corpus.txt", *CPU, *options), code, message)
    assert vocab.read_bytes() == before
    assert sorted(path.name for path in vocab.parent.iterdir()) == ["corpus.txt", "v.bin"]


def test_the_longest_token(llmgpu: Run, corpus: Path) -> None:
    done = llmgpu("bpe-train", "corpus.txt", *CPU, "--max-token-length", "3")
    assert done.returncode == 0
    assert b"no pair of tokens of up to 3 bytes occurs at least 2 times" in done.stderr
    vocabulary = Vocabulary.load(corpus.parent / "v.bin")
    assert max(map(len, vocabulary.tokens)) == 3
    assert vocabulary.training["max_token_length"] == 3


def test_the_summary_has_rates(llmgpu: Run, corpus: Path) -> None:
    done = llmgpu("bpe-train", "corpus.txt", *CPU, "--vocab-size", "500", "--json")
    text = done.stderr.decode()
    assert " merges in " in text and " distinct pre-tokens" in text
    assert "B/s)" in text and " merges/s)" in text
    summary = json.loads(done.stdout)
    assert summary["distinct_words"] > 500 and 0 < summary["batches"] <= 244
    assert summary["estimated_memory_bytes"] > 1 << 22
    assert {"total", "count words", "merge"} <= summary["seconds"].keys()
    assert "open device" not in summary["seconds"]  # the CPU opens none


@pytest.mark.parametrize(
    ("phase", "done", "total", "rate", "text"),
    [
        (
            "counting words",
            1_200_000_000,
            3_400_000_000,
            4e8,
            "1.2 GB of 3.4 GB, 400.0 MB/s, 6 s left",
        ),
        ("reading", 5_000_000, None, 2.5e6, "5.0 MB, 2.5 MB/s"),
        ("merging", 12_000, 32_512, 12_000.0, "12,000 of 32,512, 12,000/s, 2 s left"),
        ("merging", 0, 32_512, 0.0, "0 of 32,512"),
        ("merging", 10, 10, 0.0, "10 of 10"),
    ],
)
def test_progress_as_text(phase: str, done: int, total: int | None, rate: float, text: str) -> None:
    assert progress_text(phase, done, total, rate) == text


def test_progress_in_few_columns() -> None:
    assert progress_text("counting words", 35, 100, 13.0, is_narrow=True) == "35%, 5 s left"
    assert progress_text("merging", 0, 100, 0.0, is_narrow=True) == "0%"
    assert progress_text("reading", 5_000, None, 10.0, is_narrow=True) == "5.0 KB, 10 B/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-1, "0 s")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_what_is_counted() -> None:
    counts = [number_of(count, "document") for count in (0, 1, 2000)]
    assert counts == ["0 documents", "1 document", "2,000 documents"]
    assert (number_of(1, "batch"), number_of(2, "batch")) == ("1 batch", "2 batches")


def test_plain_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    report = Reporter(quiet=False)
    for second in range(12):
        now[0] = 100.0 + second
        report("counting words", second * 1_000_000, 20_000_000)
    now[0] += 1
    report("merging", 5, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "counting words 5.0 MB of 20.0 MB, 1.0 MB/s, 15 s left",
        "counting words 10.0 MB of 20.0 MB, 1.0 MB/s, 10 s left",
    ]
    now[0] = 200.0
    for second in range(7):  # a job that is resumed begins in the midst of a phase
        now[0] = 200.0 + second
        report("tokenizing", 50_000_000 + second * 1_000_000, 60_000_000)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "tokenizing 55.0 MB of 60.0 MB, 1.0 MB/s, 5 s left"
    quiet = Reporter(quiet=True)
    now[0] += 100
    quiet("merging", 1, 2)
    quiet.line("nothing")
    assert capsys.readouterr().err == ""


def test_memory_is_said_again_only_when_it_grows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = [70_000_000]
    monkeypatch.setattr("llmgpu.machine.resident_memory", lambda: 50_000_000)
    monkeypatch.setattr("llmgpu.machine.peak_memory", lambda: peak[0])
    monkeypatch.setattr(console, "free_memory", lambda: 1_000_000_000)
    report = Reporter(quiet=False)
    for megabytes in (40, 50, 60, 70, 20, 900, 850):  # and 50 of the process
        report.need_memory(Memory(megabytes * 1_000_000, 0))
    lines = capsys.readouterr().err.splitlines()
    needs = [line for line in lines if line.startswith("needs")]
    assert [line.split()[3] for line in needs] == ["110.0", "132.0", "1.0"]
    assert report.needed_bytes == 900_000_000 and not any("free" in line for line in lines)
    report = Reporter(quiet=False)
    report.need_memory(Memory(450_000_000, likely=150_000_000))
    report.need_memory(Memory(450_000_000, likely=350_000_000))  # nothing grew but the guess
    assert capsys.readouterr().err == "needs about 200.0 MB, at most 550.0 MB of memory\n"
    peak[0] = 1_500_000_000  # reading has taken more than any estimate
    report.need_memory(Memory(1, 0))
    assert report.needed_bytes == 1_500_000_000
    assert "note: only 1.0 GB of memory are free" in capsys.readouterr().err


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    report = Reporter(quiet=False)
    report("merging", 1, 2)
    report("merging", 2, 2)
    report.close()
    assert "merging" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 64, 80, 200])
def test_bars_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(columns))):
        monkeypatch.setenv(name, value)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    report = Reporter(quiet=False)
    for seconds in (0, 100):
        now[0] += seconds
        report("counting words", 100_000_000_000 + seconds * 10**7, 900_000_000_000)
    report.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line.rstrip() for line in re.split("[\r\n]+", shown)]
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert lines[-2].startswith("counting words ") and lines[-2].endswith(" left")


def test_sizes_with_units(llmgpu: Run, vocab: Path) -> None:
    assert llmgpu("bpe-train", "corpus.txt", *CPU, "--vocab-size", "0.3k,.5ki").returncode == 2
    sizes = ("--vocab-size", "0.3k, 0.5Ki,0.3K")
    assert llmgpu("bpe-train", "corpus.txt", *CPU, *sizes, "-o", "w.bin").returncode == 0
    made = sorted(path.name for path in vocab.parent.glob("w-*.bin"))
    assert made == ["w-300.bin", "w-512.bin"]


def test_a_model_is_not_a_pattern(llmgpu: Run, corpus: Path) -> None:
    for model, pattern in (("gpt-4", "cl100k"), ("gpt-4o-mini", "o200k")):
        done = llmgpu("bpe-train", "corpus.txt", "--pattern", model)
        fails(done, 2, f"'{model}' is not a pattern; its pattern is {pattern}")
