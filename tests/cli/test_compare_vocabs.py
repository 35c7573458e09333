"""``llmgpu compare-vocabs``: overlap, and what both make of a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmgpu import Tokenizer
from llmgpu.bpe.training.statistics import lengths_of, scripts_of
from tests.cli.conftest import Run, fails


@pytest.fixture
def folder(corpus: Path, vocab: Path) -> Path:
    """A corpus, and a second vocabulary, trained on half of it."""
    half = corpus.parent / "half.txt"
    half.write_bytes(corpus.read_bytes()[: corpus.stat().st_size // 2])
    made = Tokenizer.train(half, vocab_size=350, special_tokens=["<|end|>"], device="cpu")
    made.save(corpus.parent / "w.bin")
    return corpus.parent


def test_overlap_and_groups_are_those_of_the_tokens(llmgpu: Run, folder: Path) -> None:
    pair = [Tokenizer.load(folder / name, "cpu") for name in ("v.bin", "w.bin")]
    done = llmgpu(
        "compare-vocabs", "v.bin", "w.bin", "--on", "corpus.txt", "--on", "half.txt", "--json"
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    one, other = (set(tokenizer.get_vocab_bytes()) for tokenizer in pair)
    assert facts["tokens_in_both"] == len(one & other)
    assert facts["tokens_only_in_one"] == [len(one - other), len(other - one)]
    assert [each["ids"] for each in facts["vocabularies"]] == [400, 350] and not facts["same_ids"]
    texts = [(folder / name).read_bytes() for name in ("corpus.txt", "half.txt")]
    assert [file["tokens"] for file in facts["files"]] == [
        [tokenizer.count(text) for tokenizer in pair] for text in texts
    ]
    for kind, group_of in (("script", scripts_of), ("length", lengths_of)):
        for k, tokenizer in enumerate(pair):
            groups = group_of(tokenizer.vocabulary)
            ids = np.concatenate([tokenizer.encode(text) for text in texts]).tolist()
            for row in facts["groups"][kind]:
                mine = [i for i in ids if groups[i] == row["name"]]
                assert row["ids"][k] == groups.count(row["name"])
                assert row["tokens"][k] == len(mine)
                assert row["text_bytes"][k] == len(tokenizer.decode_bytes(mine))


def test_tables_for_people(llmgpu: Run, folder: Path) -> None:
    named = llmgpu("compare-vocabs", "v.bin", "w.bin", "corpus.txt")
    fails(named, 2, "unexpected extra argument (corpus.txt). Name texts to compare on with --on.")
    plain = llmgpu("compare-vocabs", "v.bin", "w.bin").stdout.decode().splitlines()
    assert plain[0].split() == ["v.bin", "w.bin"] and plain[1].split() == ["400", "350", "ids"]
    assert max(map(len, plain)) <= 80
    text = (folder / "corpus.txt").read_bytes()
    done = llmgpu("compare-vocabs", "v.bin", "w.bin", "--on", "-", "-q", stdin=text)
    lines = done.stdout.decode().splitlines()
    rates = [
        f"{len(text) / Tokenizer.load(folder / name, 'cpu').count(text):.3f}"
        for name in ("v.bin", "w.bin")
    ]
    assert [*rates, str(len(text)), "-"] in [line.split() for line in lines]
    same = json.loads(llmgpu("compare-vocabs", "v.bin", "v.bin", "--json").stdout)
    assert same["same_ids"] and same["tokens_only_in_one"] == [0, 0]
    fails(llmgpu("compare-vocabs", "v.bin", "missing"), 1, "missing")


def test_the_page_of_a_vocabulary(llmgpu: Run, folder: Path) -> None:
    done = llmgpu("info", "v.bin", "--report", "v.html", "--on", "corpus.txt")
    assert done.returncode == 0, done.stderr
    page = (folder / "v.html").read_text()
    count = Tokenizer.load(folder / "v.bin", "cpu").count((folder / "corpus.txt").read_bytes())
    assert f"{(folder / 'corpus.txt').stat().st_size / count:.3f}" in page
    fails(llmgpu("info", "v.bin", "--report", "corpus.txt"), 1, "corpus.txt is text")
    fails(llmgpu("info", "v.bin", "--report", "v.bin"), 1, "input")
    fails(llmgpu("info", "v.bin", "--on", "corpus.txt"), 2, "--on needs --report")
    (folder / "empty").write_bytes(b"")
    fails(llmgpu("info", "v.bin", "--report", "e.html", "--on", "empty"), 1, "no text")
    fails(llmgpu("info", "--report", "e.html"), 2, "--report need a vocabulary")
