"""``llmgpu score``: JSON lines about documents, by models of both kinds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run, fails
from tests.cli.test_train import TRAIN
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder
from tests.lm.samples import small_vocabulary
from tests.reference.lm.llama import Llama

TEXTS = ["the and the", "", "a"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = kind_of_model("qwen2")
    return write_folder(tmp_path / "model", config, weights_of(config))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_documents_of_a_model_of_others(llmgpu: Run, model: Path, documents: Path) -> None:
    """The first id comes after the end of text, 262."""
    done = llmgpu("score", "model", "d.jsonl", "--per-token", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    summary = json.loads(done.stderr.splitlines()[-1])
    config = kind_of_model("qwen2")
    reference = Llama(config, weights_of(config))
    for line, text in zip(lines, TEXTS, strict=True):
        ids = np.array([262, *line["ids"]])
        logits = reference.forward(ids[None])[0, :-1]
        losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(ids) - 1), ids[1:]]
        np.testing.assert_allclose(line["log_likelihoods"], -losses, rtol=1e-4)
        assert line["text_bytes"] == len(text) and line["tokens"] == len(ids) - 1
        if text:
            bits = losses.sum() / math.log(2) / len(text)
            assert line["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
            assert line["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-4)
    assert lines[1]["perplexity"] is None and lines[1]["bits_per_byte"] is None
    assert summary["tokens"] == sum(line["tokens"] for line in lines)
    total = sum(line["log_likelihood"] for line in lines)
    assert summary["log_likelihood"] == pytest.approx(total)
    assert (summary["documents"], summary["window"], summary["stride"]) == (3, 64, 32)


def test_a_model_whose_texts_begin_with_a_token(llmgpu: Run, tmp_path: Path) -> None:
    """What its tokenizer.json puts before a text is before prompts, and before what is scored."""
    config = kind_of_model("llama3")
    weights = weights_of(config)
    vocabulary = replace(small_vocabulary(), prefix_ids=(261, 10), suffix_ids=(262,))
    write_folder(tmp_path / "model", config, weights, vocabulary=vocabulary)
    reference = Llama(config, weights)
    ids = np.array([261, 10, 97, 98, 99])
    logits = reference.forward(ids[None])[0]
    done = llmgpu("score", "model", "--per-token", "--device", "cpu", stdin=b"abc")
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    losses = np.log(np.exp(logits[1:-1]).sum(-1)) - logits[[1, 2, 3], ids[2:]]
    assert line["ids"] == [97, 98, 99]
    np.testing.assert_allclose(line["log_likelihoods"], -losses, rtol=1e-4)
    generate = ("generate", "model", "--device", "cpu", "--temperature", "0", "--json")
    done = llmgpu(*generate, "--max-new-tokens", "1", "--ignore-eos", "--prompt", "abc")
    summary = json.loads(done.stdout)
    assert summary["prompt_ids"] == ids.tolist()
    assert summary["ids"] == [int(logits[-1, : vocabulary.size].argmax())]
    done = llmgpu(*generate, "--max-new-tokens", "1")
    assert json.loads(done.stdout)["prompt_ids"] == [261, 10]


def test_a_run_and_a_pipe(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    """A vocabulary without special tokens: the first id is not scored."""
    assert llmgpu(*TRAIN, "--steps", "1", "--device", "cpu").returncode == 0
    done = llmgpu("score", "run", stdin=b"a")
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    assert line["tokens"] == 0


def test_what_is_refused(llmgpu: Run, model: Path, documents: Path) -> None:
    fails(llmgpu("score", "model", "d.jsonl", "--window", "65"), 1, "but must be from 1 to 64")
    fails(llmgpu("score", "model", "d.jsonl", "--stride", "65"), 1, "--stride is 65, but must be")
    fails(llmgpu("score", "gone", "d.jsonl"), 1, "gone: no such folder")
    fails(llmgpu("score", "model", "gone.txt"), 1, "gone.txt")
    fails(llmgpu("score", "d.jsonl", "model"), 1, "d.jsonl: a file, not a run folder")
