"""Word counts saved, added up and trained on: the vocabulary is that of the whole corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgpu.bpe.words.counts_file import load_counts
from tests.cli.conftest import Run, fails

CPU = ("--device", "cpu", "--vocab-size", "500")
SPECIAL = ("--special-token", "<|end|>")


def test_counts_of_parts_train_the_vocabulary_of_the_whole(llmgpu: Run, corpus: Path) -> None:
    folder = corpus.parent
    text = corpus.read_bytes()
    middle = text.index(b"\n", len(text) // 2)
    (folder / "one.txt").write_bytes(text[:middle] + b"<|end|>" + text[: middle // 2])
    (folder / "two.txt").write_bytes(text[middle:])
    for name, documents, threads in (("one", 2, "1"), ("two", 1, "3")):
        options = ("--save-counts", f"{name}.counts", "--counts-only", "--threads", threads)
        done = llmgpu("bpe-train", f"{name}.txt", *CPU, *SPECIAL, *options, "--json")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["output"], summary["documents"]) == (f"{name}.counts", documents)
    assert not (folder / "v.bin").exists()
    both = ("--from-counts", "one.counts", "--from-counts", "two.counts")
    done = llmgpu("bpe-train", *both, *CPU, *SPECIAL, "--save-counts", "sum.counts", "--json")
    assert done.returncode == 0, done.stderr
    whole = ("one.txt", "two.txt", "-o", "w.bin", "--save-counts", "whole.counts")
    assert llmgpu("bpe-train", *whole, *CPU, *SPECIAL, "-q").returncode == 0
    assert (folder / "v.bin").read_bytes() == (folder / "w.bin").read_bytes()
    assert (folder / "sum.counts").read_bytes() == (folder / "whole.counts").read_bytes()
    summary = json.loads(done.stdout)
    counts = load_counts(folder / "sum.counts")
    assert summary["distinct_words"] == len(counts.words)
    assert (summary["text_bytes"], summary["documents"]) == (counts.words.text_bytes, 3)


def test_counts_say_which_pattern(llmgpu: Run, corpus: Path) -> None:
    save = ("--pattern", "gpt2", "--save-counts", "c", "--counts-only")
    assert llmgpu("bpe-train", "corpus.txt", *CPU, *save, "-q").returncode == 0
    assert llmgpu("bpe-train", "--from-counts", "c", *CPU, "-q").returncode == 0
    direct = ("corpus.txt", "--pattern", "gpt2", "-o", "w.bin")
    assert llmgpu("bpe-train", *direct, *CPU, "-q").returncode == 0
    folder = corpus.parent
    assert (folder / "v.bin").read_bytes() == (folder / "w.bin").read_bytes()
    done = llmgpu("bpe-train", "--from-counts", "c", *CPU, "--pattern", "class")
    fails(done, 1, "c: the words were cut by pattern 'gpt2', not by 'class'")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 1, "the corpus is empty"),
        (["corpus.txt", "--from-counts", "c"], 2, "for standard input) or --from-counts"),
        (["corpus.txt", "--counts-only"], 2, "--counts-only needs --save-counts"),
        (
            ["--from-counts", "c", "--limit", "1KB"],
            2,
            "--limit can't be combined with --from-counts",
        ),
        (
            ["--from-counts", "c", "--doc-separator", "x"],
            2,
            "--doc-separator can't be combined with --from-counts",
        ),
        (["--from-counts", "corpus.txt"], 1, "corpus.txt: not a file of llmgpu word counts"),
        (["--from-counts", "missing"], 1, "can't read missing"),
        (["--from-counts", "c", *SPECIAL], 1, "c: special token '<|end|>' was counted"),
        (["--from-counts", "c", "--from-counts", "d"], 1, "c and d can't be added up: pattern"),
        (["corpus.txt", "--threads", "0"], 2, "0 is not in the range 1<=x<=1024"),
        (["corpus.txt", "--save-counts", "missing/c"], 1, "can't write missing/c"),
        (
            ["corpus.txt", "--save-counts", "e", "--counts-only", "--checkpoint", "k"],
            2,
            "--checkpoint can't be combined with --counts-only",
        ),
    ],
)
def test_what_does_not_go_together(
    llmgpu: Run, corpus: Path, arguments: list[str], code: int, message: str
) -> None:
    for name, pattern in (("c", "class"), ("d", "none")):
        save = ("--save-counts", name, "--counts-only", "--pattern", pattern)
        assert llmgpu("bpe-train", "corpus.txt", *CPU, *save, "-q").returncode == 0
    fails(llmgpu("bpe-train", *arguments, *CPU), code, message)
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["c", "corpus.txt", "d"]


def test_a_run_that_is_resumed_does_not_count_again(llmgpu: Run, corpus: Path) -> None:
    folder = corpus.parent
    arguments = ("corpus.txt", *CPU, "--checkpoint", "kept")
    failing = llmgpu("bpe-train", *arguments, "--save-counts", "missing/c")
    fails(failing, 1, "can't write missing/c")
    counts = load_counts(folder / "kept" / "counts")
    resumed = (*arguments, "--resume", "--save-counts", "c", "--json")
    done = llmgpu("bpe-train", *resumed)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert "count words" not in summary["seconds"]
    assert summary["documents"] == counts.documents == 1
    assert sorted(path.name for path in folder.iterdir()) == ["c", "corpus.txt", "kept", "v.bin"]
    left = sorted(path.name for path in (folder / "kept").iterdir())
    assert left == ["options.toml", "run.json"]
    made = (folder / "v.bin").read_bytes()
    assert llmgpu("bpe-train", "corpus.txt", *CPU, "-q", "-o", "w.bin").returncode == 0
    assert (folder / "w.bin").read_bytes() == made


def test_options_of_merging_have_no_effect_on_counts(llmgpu: Run, corpus: Path) -> None:
    count = ("bpe-train", "corpus.txt", "--counts-only", "--save-counts", "c", "--device", "cpu")
    assert b"has no effect" not in llmgpu(*count).stderr
    options: tuple[str, ...] = ("--vocab-size", "300", "--min-frequency", "3")
    options += ("--max-token-length", "9", "--tie", "bytes", "--match", "greedy")
    options += ("--engine", "batched")
    done = llmgpu(*count, *options)
    notes = [
        line
        for line in done.stderr.decode().splitlines()
        if "has no effect with --counts-only" in line
    ]
    assert done.returncode == 0
    assert sorted(note.split()[1] for note in notes) == sorted(options[::2])
