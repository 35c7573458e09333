"""``llmgpu train --lora-rank``: adapters of a model, and a run of them that resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from llmgpu.lm.checkpoints.checkpoint import load_checkpoint
from llmgpu.lm.checkpoints.safetensors_file import read_tensors
from tests.cli.conftest import Run, fails, killed_before
from tests.cli.test_train import SIZES, assert_same_weights
from tests.lm.pretrained_folders import kind_of_model, weights_of, write_folder

CONFIG = kind_of_model("qwen2")
TRAIN = ("train", "--init", "model", "corpus.txt", "--batch-size", "2", "--seq-len", "16")
LORA = (*TRAIN, "--lora-rank", "2", "--lora-targets", "q_proj,down_proj", "--steps", "6")


@pytest.fixture
def model(corpus: Path) -> Path:
    return write_folder(corpus.parent / "model", CONFIG, weights_of(CONFIG))


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_adapters_are_written_merged_and_resumed_after_a_kill(
    llmgpu: Run, corpus: Path, model: Path, precision: str
) -> None:
    options = ("--device", "cpu", "--precision", precision, "--lr", "1e-2")
    done = llmgpu(*LORA, "-o", "whole", *options)
    assert done.returncode == 0, done.stderr
    assert b"adapter for peft in whole/step-00000006/adapter" in done.stderr
    step = corpus.parent / "whole/step-00000006"
    config = json.loads((step / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4, "model")
    assert config["target_modules"] == ["q_proj", "down_proj"]
    tensors = read_tensors(step / "adapter/adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2
    merged = load_checkpoint(step).weights
    for name, values in weights_of(CONFIG).items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        change = 0.0
        if f"{key}.lora_A.weight" in tensors:
            change = 2 * tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
            assert np.abs(change).max() > 1e-3
        np.testing.assert_allclose(merged[name], values + change, rtol=1e-5, atol=1e-6)

    more = ("--save-interval", "2", "--keep", "9")
    killed_before("step-00000004", 1, corpus.parent, *LORA, "-o", "run", *options, *more)
    assert [each.name for each in corpus.parent.glob("run/step-*")] == ["step-00000002"]
    done = llmgpu("train", "-o", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_weights(corpus.parent / "run", corpus.parent / "whole")


def test_a_run_that_resumes_needs_the_same_model(llmgpu: Run, corpus: Path, model: Path) -> None:
    assert llmgpu(*LORA, "-o", "run", "--device", "cpu").returncode == 0
    shutil.rmtree(model)
    fails(llmgpu("train", "-o", "run", "--resume", "--steps", "8"), 1, "model: no such folder")
    write_folder(model, CONFIG, weights_of(CONFIG, 2))
    again = llmgpu("train", "-o", "run", "--resume", "--steps", "8")
    fails(again, 1, "model is not the model that the run in run began with")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lora-targets", "q_proj,x"), "--lora-targets has 'x'; use some of q_proj, k_proj"),
        (("--lora-alpha", "0"), "--lora-alpha is 0"),
        (("--optimizer", "muon"), "--optimizer muon can't be combined with --lora-rank"),
    ],
)
def test_options_of_adapters(
    llmgpu: Run, model: Path, options: tuple[str, ...], message: str
) -> None:
    fails(llmgpu(*TRAIN, "--lora-rank", "2", "-o", "run", "--device", "cpu", *options), 1, message)


def test_adapters_are_for_a_model_that_is_trained(llmgpu: Run, corpus: Path, vocab: Path) -> None:
    command = ("train", "--vocab", "v.bin", "corpus.txt", "-o", "run", *SIZES)
    fails(llmgpu(*command, "--lora-rank", "2"), 1, "use --init FOLDER")
