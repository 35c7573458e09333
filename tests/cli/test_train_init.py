"""``llmgpu train --init`` and ``generate`` with models of others."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.interchange.formats import open_vocabulary
from llmgpu.lm.checkpoints.checkpoint import load_checkpoint, open_model
from llmgpu.lm.runs.run_folder import read_log
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.models import BYTES, SPECIAL
from tests.bpe.interchange.models import model as sentencepiece_model
from tests.cli.conftest import Run, fails
from tests.cli.test_train import assert_same_weights
from tests.harness.arguments import overridden
from tests.llama_cpp import LlamaCpp
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder
from tests.lm.samples import small_vocabulary
from tests.reference.lm.llama import Llama
from tests.reference.pieces import MARK, NORMAL, Piece

TRAIN = ("train", "--init", "model", "corpus.txt", "--device", "cpu", "--batch-size", "2")


@pytest.fixture
def model(corpus: Path) -> Path:
    """A Qwen3 that takes 64 tokens, with more rows than its tokenizer has tokens."""
    config, vocabulary = kind_of_model("qwen3"), small_vocabulary("qwen2")
    vocabulary = replace(vocabulary, prefix_ids=(261,))
    weights, folder = weights_of(config), corpus.parent / "model"
    return write_folder(folder, config, weights, dtype="BF16", vocabulary=vocabulary)


def test_a_run_begins_with_the_weights_of_a_model(llmgpu: Run, corpus: Path, model: Path) -> None:
    """At a learning rate of 0 they stay; the next run resumes without the model's folder."""
    done = llmgpu(*TRAIN, "-o", "same", "--steps", "1", "--lr", "0")
    assert done.returncode == 0, done.stderr
    checkpoint, saved = load_checkpoint(corpus.parent / "same"), open_model(model)
    assert checkpoint.config == saved.config
    # Training puts nothing before a text, so that its model has not seen that.
    assert (saved.vocabulary.prefix_ids, checkpoint.vocabulary.prefix_ids) == ((261,), ())
    for name, values in saved.weights.items():
        np.testing.assert_array_equal(checkpoint.weights[name], values)

    done = llmgpu(*TRAIN, "-o", "whole", "--steps", "6", "--seq-len", "16")
    assert done.returncode == 0, done.stderr
    facts = read_log(corpus.parent / "whole/log.jsonl").facts
    assert (facts["init"], facts["options"]["learning_rate"]) == ("model", 2e-5)
    more = ("--seq-len", "16", "--save-interval", "3", "--keep", "9")
    assert llmgpu(*TRAIN, "-o", "run", "--steps", "6", *more).returncode == 0
    shutil.rmtree(corpus.parent / "run/step-00000006")
    shutil.rmtree(model)
    done = llmgpu("train", "-o", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_weights(corpus.parent / "run", corpus.parent / "whole")
    content = json.loads((corpus.parent / "run/step-00000006/config.json").read_text())
    assert (content["max_position_embeddings"], content["model_type"]) == (64, "qwen3")
    made = llmgpu("generate", "run", "--prompt", "the " * 10, "--max-new-tokens", "5")
    assert made.returncode == 0 and made.stdout.startswith(b"the the"), made.stderr
    fails(llmgpu("train", "-o", "run", "--resume", "--init", "x"), 1, "began with --init model")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "64"), "--dim is 64, but --init sets the size"),
        (("--untied",), "--tied is False, but --init sets the size"),
        (("--preset", "tiny"), "--preset can't be combined with --init"),
        (("--seq-len", "65"), "seq_len is 65, but the model takes at most 64"),
        (("--vocab", "v.bin"), "the model in model needs "),
        (("--init", "corpus.txt"), "corpus.txt: a file, not a run folder"),
    ],
)
def test_what_does_not_fit_the_model(
    llmgpu: Run, model: Path, vocab: Path, options: tuple[str, ...], message: str
) -> None:
    fails(llmgpu(*overridden(*TRAIN, *options), "-o", "run"), 1, message)
    assert not (model.parent / "run").exists()


def test_a_model_that_can_not_be_used_is_one_line(llmgpu: Run, model: Path) -> None:
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(content | {"sliding_window": 4096}))
    for command in ((*TRAIN, "-o", "run"), ("generate", "model", "--prompt", "a")):
        fails(llmgpu(*command), 1, "sliding_window is 4096, but only null is supported")


def test_a_run_never_replaces_the_model_that_it_begins_with(llmgpu: Run, model: Path) -> None:
    assert llmgpu(*TRAIN, "-o", "run", "--steps", "1", "--seq-len", "16").returncode == 0
    again = ("train", "--init", "run", "corpus.txt", "--device", "cpu", "-o", "run", "--force")
    fails(llmgpu(*again, "--steps", "1"), 1, "is an input")
    fails(llmgpu(*TRAIN, "-o", "model"), 1, "model is not empty and is not a run folder")


def test_a_checkpoint_says_where_it_is_from_and_where_texts_end(
    llmgpu: Run, corpus: Path, model: Path
) -> None:
    """The ends of the model's texts are kept, beside the one that the run puts after documents."""
    (model / "generation_config.json").write_text('{"eos_token_id": [262, 5]}')
    command = (*TRAIN, "-o", "run", "--steps", "2", "--seq-len", "16", "--eos", "<|x|>")
    assert llmgpu(*command, "--save-interval", "1").returncode == 0
    shutil.rmtree(corpus.parent / "run/step-00000002")
    assert llmgpu("train", "-o", "run", "--resume").returncode == 0
    step = corpus.parent / "run/step-00000002"
    card = (step / "README.md").read_text()
    assert "It began with the weights of `model`." in card and "- `corpus.txt`\n" in card
    assert "| steps | 2 |" in card and "bits per byte" in card
    assert "```sh\nllmgpu train --init model corpus.txt --device cpu " in card
    generation = json.loads((step / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == ([5, 261, 262], 261)
    assert open_model(step).stop_ids == {5, 261, 262}
    tokenizer = json.loads((step / "tokenizer_config.json").read_text())
    assert tokenizer["pad_token"] == tokenizer["eos_token"] == "<|x|>"
    assert tokenizer["model_max_length"] == 64


def pieces_of(text: str) -> list[Piece]:
    """Pieces of Llama 2's kind, with every character of a text and every pair of two, in order."""
    letters = sorted({MARK, *text.replace(" ", MARK)} - {"\n"})
    pairs = sorted({a + b for a, b in pairwise(text.replace(" ", MARK)) if "\n" not in (a, b)})
    texts = [*pairs, *letters]
    return [*SPECIAL, *BYTES, *((t, -float(k), NORMAL) for k, t in enumerate(texts))]


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer.json"])
def test_a_model_of_llama_2s_kind(llmgpu: Run, corpus: Path, name: str) -> None:
    """Trained further, its checkpoint opens in transformers and llama.cpp, tokenizer included."""
    data = sentencepiece_model(pieces_of(corpus.read_text()[:2000]))
    (corpus.parent / "m.model").write_bytes(data)
    vocabulary = open_vocabulary(corpus.parent / "m.model")
    config = replace(kind_of_model("llama", vocabulary.size), max_positions=64)
    folder = write_folder(
        corpus.parent / "model", config, weights_of(config), vocabulary=vocabulary, eos_token_id=2
    )
    if name == "tokenizer.model":
        (folder / "tokenizer.json").unlink()
        (corpus.parent / "m.model").rename(folder / name)
    done = llmgpu(*TRAIN, "-o", "run", "--steps", "2", "--seq-len", "16")
    assert done.returncode == 0, done.stderr
    made = llmgpu("generate", "run", "--prompt", "the the", "--max-new-tokens", "5")
    assert made.returncode == 0 and made.stdout.startswith(b"the the"), made.stderr
    checkpoint = load_checkpoint(corpus.parent / "run")
    text = corpus.read_text()[:60]
    ids = Tokenizer(checkpoint.vocabulary).encode(text, dtype=list)
    expected = Llama(checkpoint.config, dict(checkpoint.weights)).forward(np.array([ids]))[0]
    assert open_vocabulary(checkpoint.folder / "tokenizer.json").size == vocabulary.size

    if importlib.util.find_spec("gguf") and os.environ.get("LLMGPU_LLAMA_CPP"):
        done = llmgpu("export", "run", "-o", "m.gguf")
        assert done.returncode == 0, done.stderr
        llama = LlamaCpp(corpus.parent / "m.gguf")
        assert llama.encode(text) == ids
        llama.close()
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.folder)
    assert tokenizer(text, add_special_tokens=False).input_ids == ids
    theirs = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.folder)
    found = theirs(torch.tensor([ids])).logits[0].detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
