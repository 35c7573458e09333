"""``llmgpu info``: adapters, vocabularies and their tokens, word counts, token files."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llmgpu.backend import list_adapters
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cli import info
from tests.cli.conftest import Run, fails
from tests.text.test_charsmap import MAP, charsmap, step


def test_info_lists_the_adapters(llmgpu: Run) -> None:
    facts = json.loads(llmgpu("info", "--json").stdout)
    assert facts["--device auto, train"]
    adapters = [fact for key, fact in facts.items() if key.startswith("adapter")]
    names = [adapter["name"] for adapter in adapters if adapter["WebGPU"] == "wgpu"]
    assert names == [adapter.name for adapter in list_adapters()]


def test_info_of_a_vocabulary(llmgpu: Run, vocab: Path) -> None:
    facts = json.loads(llmgpu("info", "v.bin", "--json").stdout)
    assert (facts["tokens"], facts["merges"], facts["pattern"]) == (400, 144, "cl100k")
    tokens = llmgpu("info", "v.bin", "--tokens", "--first", "3").stdout
    assert tokens == b"0\t\\x00\n1\t\\x01\n2\t\\x02\n"
    found = llmgpu("info", "v.bin", "--search", "e").stdout.decode().splitlines()
    assert "101\te" in found and all("e" in line for line in found)


def test_info_needs_a_vocabulary_for_tokens(llmgpu: Run) -> None:
    assert llmgpu("info", "--tokens").returncode == 2


def test_tokens_in_every_script(llmgpu: Run, tmp_path: Path) -> None:
    words = ["нет ", "你好 ", "नमस्ते ", "😀 "]
    (tmp_path / "corpus.txt").write_text("".join(words) * 20, encoding="utf-8")
    llmgpu("bpe-train", "corpus.txt", "--vocab-size", "300", "--special-token", "<|end|>", "-q")
    listed = llmgpu("info", "v.bin", "--tokens").stdout.decode().splitlines()
    assert [int(line.split("\t")[0]) for line in listed] == [*range(len(listed))]
    assert {" нет", " 你好", " 😀", "<|end|>"} <= {line.split("\t")[1] for line in listed}
    found = [
        json.loads(line)
        for line in llmgpu("info", "v.bin", "--tokens", "--json").stdout.splitlines()
    ]
    tokens = Vocabulary.load(tmp_path / "v.bin").tokens
    assert [bytes.fromhex(token["hex"]) for token in found] == [*tokens]
    for token in found:
        data = bytes.fromhex(token["hex"])
        assert token["text"] == (data.decode() if is_utf8(data) else None)
    assert [token["text"] for token in found if token["special"]] == ["<|end|>"]


def is_utf8(data: bytes) -> bool:
    return data.decode(errors="ignore").encode() == data


def test_tokens_by_id_and_by_expression(llmgpu: Run, vocab: Path) -> None:
    tokens = Vocabulary.load(vocab).tokens
    done = llmgpu("info", "v.bin", "--id", "300", "--id", "10", "--id", "97")
    assert done.stdout.decode().splitlines()[1:] == ["10\t\\n", "97\ta"]
    fails(
        llmgpu("info", "v.bin", "--id", "400"),
        1,
        "id 400 is not in the vocabulary, which ends at 399",
    )
    found = llmgpu("info", "v.bin", "--search", "^ ?[ab]+$", "--json").stdout.splitlines()
    expected = [
        number
        for number, token in enumerate(tokens)
        if token.lstrip(b" ").strip(b"ab") == b"" and token.strip(b" ") and token[1:].find(b" ") < 0
    ]
    assert [json.loads(line)["id"] for line in found] == expected
    assert llmgpu("info", "v.bin", "--search", r"^\\xff$").stdout == b"255\t\\xff\n"
    if importlib.util.find_spec("regex"):
        for letters in (r"^\p{Latin}$", "^[[:alpha:]]$"):
            done = llmgpu("info", "v.bin", "--search", letters)
            assert len(done.stdout.splitlines()) == 52 and not done.stderr
    fails(llmgpu("info", "v.bin", "--search", "("), 2, "--search '(': missing )")


def test_info_of_counts_and_files_of_ids(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    size = corpus.stat().st_size
    llmgpu("bpe-train", "corpus.txt", "--counts-only", "--save-counts", "c.counts", "-q")
    counts = json.loads(llmgpu("info", "c.counts", "--json").stdout)
    assert (counts["text bytes"], counts["documents"], counts["pattern"]) == (size, 1, "cl100k")
    encode = ("tokenize", "--vocab", "v.bin", "corpus.txt", "--line-documents", "--json", "-q")
    made = json.loads(llmgpu(*encode, "-o", "ids.bin").stdout)
    facts = json.loads(llmgpu("info", "ids.bin", "--json").stdout)
    for name, key in (
        ("count", "tokens"),
        ("documents", "documents"),
        ("text bytes", "text_bytes"),
    ):
        assert facts[name] == made[key]
    assert facts["kind"] == "a token file" and facts["fingerprint"] == made["fingerprint"]
    assert f"count: {made['tokens']}" in llmgpu("info", "ids.bin").stdout.decode()
    llmgpu(*encode, "-o", "s.bin", "--shard-tokens", "1000")
    shards = json.loads(llmgpu("info", "s.json", "--json").stdout)
    assert (shards["count"], shards["shards"]) == (made["tokens"], -(-made["tokens"] // 1000))
    llmgpu(*encode, "-o", "ids.npy")
    assert json.loads(llmgpu("info", "ids.npy", "--json").stdout)["count"] == made["tokens"]
    side = corpus.parent / "ids.bin.json"
    side.write_text(json.dumps(json.loads(side.read_text()) | {"\x1b[2J": {"\x1b": 1}}))
    shown = llmgpu("info", "ids.bin").stdout
    assert b"[2J:" in shown and b"\x1b" not in shown
    with open(corpus.parent / "ids.bin", "ab") as file:
        file.write(b"x")
    fails(llmgpu("info", "ids.bin"), 1, "they don't belong together")
    fails(llmgpu("info", "c.counts", "--tokens"), 1, "c.counts")


def test_merges_in_their_order(llmgpu: Run, vocab: Path) -> None:
    vocabulary = Vocabulary.load(vocab)
    lines = llmgpu("info", "v.bin", "--merges").stdout.decode().splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == vocabulary.merges[:, 2].tolist()
    rows = llmgpu("info", "v.bin", "--merges", "--json", "--first", "2").stdout.splitlines()
    for row, (left, right, made) in zip(map(json.loads, rows), vocabulary.merges[:2], strict=True):
        assert (row["left"], row["right"], row["id"]) == (left, right, made)
        assert bytes.fromhex(row["hex"]) == vocabulary.tokens[left] + vocabulary.tokens[right]
    assert llmgpu("export", "v.bin", "--to", "tiktoken", "-o", "v.tiktoken").returncode == 0
    by_rank = llmgpu("info", "v.tiktoken", "--merges").stdout.decode().splitlines()
    assert by_rank == lines
    token = vocabulary.tokens[300].decode()
    found = llmgpu("info", "v.bin", "--merges", "--search", f"^{re.escape(token)}$").stdout.decode()
    assert found.startswith("300\t") and found.count("\n") == 1
    for options in (("--report", "p.html"), ("--tokens",), ("--id", "3")):
        fails(llmgpu("info", "v.bin", "--merges", *options), 2, "can't be combined with --")
    fails(llmgpu("info", "--merges"), 2, "need a vocabulary")
    fails(llmgpu("info", "v.bin", "--force"), 2, "--force needs --report PAGE")


def test_quiet_adapters(llmgpu_process: Run) -> None:
    done = llmgpu_process("info", "--quiet")
    assert done.returncode == 0 and done.stderr == b"" and done.stdout


def test_a_map_of_characters_is_not_printed(llmgpu: Run, vocab: Path) -> None:
    long = step(charsmap(MAP))
    replace(Vocabulary.load(vocab), normalizer=long).save(vocab.parent / "piece.bin")
    shown = llmgpu("info", "piece.bin").stdout.decode()
    line = next(line for line in shown.splitlines() if line.startswith("normalizer: "))
    assert len(long) > 2000 and len(line) < 300
    size = len(json.loads(long)[0]["charsmap"])
    assert f'"charsmap":"{size:,} characters"' in line.replace(" ", "").replace("chara", " chara")


def test_a_plot_fits_into_the_terminal(
    llmgpu: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"format": "llmgpu-training-log", "version": 1}
    names = ("learning_rate", "grad_norm", "tokens", "tokens_per_second", "seconds", "z_loss")
    record = {**dict.fromkeys(names, 1), "smoothing_loss": 0, "validation_loss": 3.5}
    records = [{**record, "step": 1000 * k, "loss": 9 - k} for k in range(1, 6)]
    lines = "".join(json.dumps(line) + "\n" for line in (head, *records))
    (tmp_path / "log.jsonl").write_text(lines)
    plots = [llmgpu("info", ".", "--plot").stdout.decode()]
    monkeypatch.setattr(info, "is_terminal", lambda stream: True)
    for columns in ("120", "40", "10"):
        monkeypatch.setenv("COLUMNS", columns)
        plots.append(llmgpu("info", ".", "--plot").stdout.decode())
    widths = [max(map(len, plot.splitlines())) for plot in plots]
    assert widths[0] == widths[1] == 83 and plots[0] == plots[1]
    assert widths[2] == 40 and widths[3] <= 32
    for plot in plots:
        assert "validation loss 3.5 at step 5,000" in " ".join(plot.split())
