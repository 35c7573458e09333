"""A model as a GGUF file, read back by the package gguf and run by llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.bpe.interchange import formats
from llmgpu.errors import CheckpointError, OutputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from llmgpu.lm.checkpoints.gguf import write_model
from llmgpu.lm.config import RopeScaling
from tests.bpe.interchange.samples import trained
from tests.llama_cpp import LlamaCpp
from tests.lm.samples import random_weights, small_config, sources, state_of, used_rows
from tests.reference.lm.llama import Llama

SIZES = {"dim": 64, "ffn_dim": 80, "layers": 2, "heads": 4, "kv_heads": 2}


def make_checkpoint(
    folder: Path, *, more_rows: int = 0, **sizes: Any
) -> tuple[Checkpoint, dict[str, np.ndarray]]:
    vocabulary = trained()
    config = small_config(vocabulary, **(SIZES | sizes))
    config = replace(config, vocab_size=vocabulary.size + more_rows)
    weights = random_weights(config, 4)
    made = save_checkpoint(folder, config, vocabulary, *sources(weights), state_of(1))
    return load_checkpoint(made), weights


def test_weights_and_sizes(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    checkpoint, weights = make_checkpoint(tmp_path, tied=False)
    assert [*formats.WEIGHT_TYPES] == ["f32", "f16", "q8_0", "q5_0", "q4_0"]
    for kind, file_type in formats.WEIGHT_TYPES.items():
        write_model(checkpoint, tmp_path / "m.gguf", weights=kind, force=True)
        reader = package.GGUFReader(tmp_path / "m.gguf")
        assert reader.fields["llama.attention.head_count_kv"].contents() == 2
        assert reader.fields["llama.vocab_size"].contents() == 400
        found = {tensor.name: tensor for tensor in reader.tensors}
        types = {name: tensor.tensor_type.name.lower() for name, tensor in found.items()}
        assert types["blk.1.attn_norm.weight"] == "f32"
        assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == kind
        # 80 numbers can't be divided into blocks of 32.
        assert types["blk.1.ffn_down.weight"] == ("f16" if kind.startswith("q") else kind)
        assert len(found) == len(weights)
        assert package.LlamaFileType(file_type).name.lower().endswith(f"_{kind}")
        assert reader.fields["general.file_type"].contents() == file_type
        if kind.startswith("q"):
            values = weights["model.layers.1.mlp.up_proj.weight"]
            quantized = package.quantize(values, package.GGMLQuantizationType[kind.upper()])
            np.testing.assert_array_equal(found["blk.1.ffn_up.weight"].data, quantized)
            restored = package.dequantize(quantized, package.GGMLQuantizationType[kind.upper()])
            steps = 2 ** (int(kind[1]) - 1)  # on either side of zero
            assert np.abs(restored - values).max() < np.abs(values).max() / steps
    with pytest.raises(OutputError, match=r"a GGUF file with 21 tensors, and another GGUF file"):
        write_model(checkpoint, tmp_path / "m.gguf")
    write_model(checkpoint, tmp_path / "m.gguf", force=True)
    reader = package.GGUFReader(tmp_path / "m.gguf")
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    used = used_rows(checkpoint.config, weights)
    np.testing.assert_array_equal(found["output.weight"], used["lm_head.weight"])
    # Rows 0 and 8 of a head of 16 turn together here, rows 0 and 1 there.
    ours, theirs = weights["model.layers.1.self_attn.q_proj.weight"], found["blk.1.attn_q.weight"]
    np.testing.assert_array_equal(theirs[:3], ours[[0, 8, 1]])


def test_linear_scaling_is_named(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    checkpoint, _ = make_checkpoint(tmp_path, rope_scaling=RopeScaling("linear", 4.0))
    write_model(checkpoint, tmp_path / "m.gguf")
    fields = package.GGUFReader(tmp_path / "m.gguf").fields
    found = [fields[f"llama.rope.scaling.{name}"].contents() for name in ("type", "factor")]
    assert found == ["linear", 4.0]


def test_models_that_it_can_not_hold(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    checkpoint, _ = make_checkpoint(tmp_path, activation="gelu")
    with pytest.raises(CheckpointError, match="is not a Llama"):
        write_model(checkpoint, tmp_path / "m.gguf")
    (tmp_path / "biases").mkdir()
    stretched = RopeScaling("llama3", 8.0, 1.0, 4.0, 16)
    checkpoint, _ = make_checkpoint(tmp_path / "biases", qkv_bias=True, rope_scaling=stretched)
    with pytest.raises(CheckpointError, match="kind llama3 only to llama models, not to qwen2"):
        write_model(checkpoint, tmp_path / "m.gguf")
    (tmp_path / "large").mkdir()
    checkpoint, _ = make_checkpoint(tmp_path / "large")
    name = "model.layers.0.mlp.up_proj.weight"
    larger = checkpoint.weights[name] * np.float32(1e6)
    checkpoint = replace(checkpoint, weights={**checkpoint.weights, name: larger})
    with pytest.raises(CheckpointError, match=rf"{name} has the weight .*too large for f16"):
        write_model(checkpoint, tmp_path / "m.gguf", weights="f16")
    assert not (tmp_path / "m.gguf").exists()


def _rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the values of a weight in a file with weights of a kind."""
    package = pytest.importorskip("gguf")
    if values.ndim == 1 or values.shape[-1] % 32:
        return values
    number = package.GGMLQuantizationType[kind.upper()]
    rounded: np.ndarray = package.dequantize(package.quantize(values, number), number)
    return rounded


KINDS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False},
    "wide heads": {"head_width": 32},
    "qwen2": {"qkv_bias": True, "norm_epsilon": 1e-6, "rope_theta": 1e6},
    "qwen2, linear": {"qkv_bias": True, "rope_scaling": RopeScaling("linear", 4.0)},
    "qwen3": {"qk_norm": True, "head_width": 32, "tied": False},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 16), "rope_theta": 5e5},
    "more rows than ids": {"more_rows": 70, "max_positions": 96},
}


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_gives_the_same_logits(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    sizes = {"seq_len": 64} | KINDS[kind]
    checkpoint, weights = make_checkpoint(tmp_path, **sizes)
    ids = list(range(100, 148))
    wanted = Llama(checkpoint.config, weights).forward(np.array([ids]))[0]
    wanted = wanted[:, : checkpoint.config.vocab_size]
    # Keys and values are float16 there, and q8_0 rounds what goes into a product, too.
    bounds = {"f32": 0.004, "f16": 0.006, "q8_0": 0.1, "q5_0": 0.1, "q4_0": 0.1}
    for stored, most in bounds.items():
        if stored in ("q5_0", "q4_0"):  # compare with the weights that such a file holds
            rounded = {name: _rounded(values, stored) for name, values in weights.items()}
            wanted = Llama(checkpoint.config, rounded).forward(np.array([ids]))[0]
            wanted = wanted[:, : checkpoint.config.vocab_size]
        write_model(checkpoint, tmp_path / "m.gguf", weights=stored, force=True)
        theirs = LlamaCpp(tmp_path / "m.gguf")
        found = theirs.logits(ids)
        theirs.close()
        assert np.sqrt(np.square(found - wanted).mean()) < most * wanted.std()
        if kind not in ("untied", "qwen3"):
            break  # other types differ in how rows are stored, not in the kind of model
