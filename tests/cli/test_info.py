"""``llmgpu info``: adapters, and what is in a vocabulary file."""

from __future__ import annotations

import json
from pathlib import Path

from llmgpu.backend import list_adapters
from llmgpu.bpe.vocabulary import Vocabulary
from tests.cli.conftest import run, run_process


def test_lists_the_adapters() -> None:
    facts = json.loads(run("info", "--json").stdout.splitlines()[-1])
    adapters = list_adapters()
    names = [facts[f"adapter {number}"]["name"] for number in range(len(adapters))]
    assert names == [adapter.name for adapter in adapters]
    assert f"adapter {len(adapters)}" not in facts
    assert facts["--device auto, train"]
    text = run("info").stdout
    assert all(name in text for name in names)


def test_shows_the_facts_of_a_vocabulary(vocab: Path) -> None:
    vocabulary = Vocabulary.load(vocab)
    facts = json.loads(run("info", vocab, "--json").stdout)
    assert facts["tokens"] == vocabulary.size == 290
    assert facts["merges"] == len(vocabulary.merges)
    assert facts["fingerprint"] == vocabulary.fingerprint
    assert f"fingerprint: {vocabulary.fingerprint}\n" in run("info", vocab).stdout


def test_lists_tokens(vocab: Path) -> None:
    vocabulary = Vocabulary.load(vocab)
    lines = run("info", vocab, "--tokens").stdout.splitlines()
    assert len(lines) == vocabulary.size
    assert lines[0] == r"0" + "\t" + r"\x00"
    assert lines[ord("a")] == "97\ta"


def test_searches_tokens(vocab: Path) -> None:
    tokens = Vocabulary.load(vocab).tokens
    wanted = [number for number, token in enumerate(tokens) if b"at" in token]
    lines = run("info", vocab, "--search", "at").stdout.splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == wanted
    first = run("info", vocab, "--search", "at", "--first", "1", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in first] == wanted[:1]


def test_damaged_files_are_one_line(vocab: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(vocab.read_bytes()[:-20])
    assert "damaged.bin" in run_process("info", damaged).error
    assert str(tmp_path) in run_process("info", tmp_path).error
