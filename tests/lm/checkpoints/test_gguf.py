"""A model as a GGUF file, read back by the package gguf and run by llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmgpu.errors import CheckpointError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from llmgpu.lm.checkpoints.gguf import write_model
from tests.bpe.interchange.samples import trained
from tests.llama_cpp import LlamaCpp
from tests.lm.samples import random_weights, small_config, sources, state_of, used_rows
from tests.reference.lm.llama import Llama

SIZES = {"dim": 64, "ffn_dim": 80, "layers": 2, "heads": 4, "kv_heads": 2}


def make_checkpoint(folder: Path, **sizes: object) -> tuple[Checkpoint, dict[str, np.ndarray]]:
    vocabulary = trained()
    config = small_config(vocabulary, **(SIZES | sizes))
    weights = random_weights(config, 4)
    made = save_checkpoint(folder, config, vocabulary, sources(weights), {}, state_of(1))
    return load_checkpoint(made), weights


def test_weights_and_sizes(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    checkpoint, weights = make_checkpoint(tmp_path, tied=False)
    for kind in ("f32", "f16", "q8_0"):
        write_model(checkpoint, tmp_path / "m.gguf", weights=kind)
        reader = package.GGUFReader(tmp_path / "m.gguf")
        assert reader.fields["llama.attention.head_count_kv"].contents() == 2
        assert reader.fields["llama.vocab_size"].contents() == 400
        found = {tensor.name: tensor for tensor in reader.tensors}
        types = {name: tensor.tensor_type.name.lower() for name, tensor in found.items()}
        assert types["blk.1.attn_norm.weight"] == "f32"
        assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == kind
        # 80 numbers can't be divided into blocks of 32.
        assert types["blk.1.ffn_down.weight"] == ("f16" if kind == "q8_0" else kind)
        assert len(found) == len(weights)
    write_model(checkpoint, tmp_path / "m.gguf")
    reader = package.GGUFReader(tmp_path / "m.gguf")
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    used = used_rows(checkpoint.config, weights)
    np.testing.assert_array_equal(found["output.weight"], used["lm_head.weight"])
    # Rows 0 and 8 of a head of 16 turn together here, rows 0 and 1 there.
    ours, theirs = weights["model.layers.1.self_attn.q_proj.weight"], found["blk.1.attn_q.weight"]
    np.testing.assert_array_equal(theirs[:3], ours[[0, 8, 1]])


def test_models_that_it_can_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    checkpoint, _ = make_checkpoint(tmp_path, activation="gelu")
    with pytest.raises(CheckpointError, match="is not a Llama"):
        write_model(checkpoint, tmp_path / "m.gguf")
    (tmp_path / "biases").mkdir()
    checkpoint, _ = make_checkpoint(tmp_path / "biases", qkv_bias=True)
    with pytest.raises(CheckpointError, match="models with qkv_bias can't be exported to GGUF"):
        write_model(checkpoint, tmp_path / "m.gguf")
    (tmp_path / "large").mkdir()
    checkpoint, _ = make_checkpoint(tmp_path / "large")
    name = "model.layers.0.mlp.up_proj.weight"
    larger = checkpoint.weights[name] * np.float32(1e6)
    checkpoint = replace(checkpoint, weights={**checkpoint.weights, name: larger})
    with pytest.raises(CheckpointError, match=rf"{name} has the weight .*too large for f16"):
        write_model(checkpoint, tmp_path / "m.gguf", weights="f16")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_llama_cpp_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:
    pytest.importorskip("gguf")
    checkpoint, weights = make_checkpoint(tmp_path, tied=tied)
    ids = list(range(100, 116))
    wanted = Llama(checkpoint.config, weights).forward(np.array([ids]))[0][:, :400]
    # Keys and values are float16 there, and q8_0 rounds what goes into a product, too.
    for kind, most in (("f32", 0.02), ("f16", 0.02), ("q8_0", 0.5)):
        write_model(checkpoint, tmp_path / "m.gguf", weights=kind)
        theirs = LlamaCpp(tmp_path / "m.gguf")
        found = theirs.logits(ids)
        theirs.close()
        assert np.abs(found - wanted).max() < most * wanted.std()
