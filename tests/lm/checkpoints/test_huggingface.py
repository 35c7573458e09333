"""config.json: from and to a model's sizes, and what transformers makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmgpu.errors import CheckpointError
from llmgpu.lm.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from llmgpu.lm.checkpoints.huggingface import (
    describe_model,
    describe_tokenizer,
    model_type,
    read_model,
    read_token_ids,
)
from llmgpu.lm.checkpoints.safetensors_file import naming, read_tensors
from llmgpu.lm.config import PRESETS, ModelConfig, RopeScaling
from tests.lm.samples import (
    END,
    random_weights,
    small_config,
    small_vocabulary,
    sources,
    state_of,
    used_rows,
)

CONFIGS = [
    *PRESETS.values(),
    ModelConfig(1_000, dim=48, heads=6, kv_heads=2, tied=False, rope_theta=5e5, norm_epsilon=1e-6),
    ModelConfig(64, activation="gelu", rope_theta=100),
    ModelConfig(64, qkv_bias=True, rope_scaling=RopeScaling("linear", 2.5)),
    ModelConfig(64, qk_norm=True, head_width=128, seq_len=64, max_positions=512),
    ModelConfig(64, rope_scaling=RopeScaling("llama3", 8, 1, 4, 8192)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_sizes_there_and_back(config: ModelConfig) -> None:
    content = json.loads(json.dumps(describe_model(config, eos_id=0)))
    assert read_model(content) == config
    assert content["model_type"] == (model_type(config) or "llmgpu")
    assert (content["bos_token_id"], content["eos_token_id"]) == (None, 0)


def llama(**changes: Any) -> dict[str, Any]:
    """A config.json as others write it, in the way before version 5 of transformers."""
    content = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "vocab_size": 320,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    } | changes
    return {name: value for name, value in content.items() if value is not ...}


def test_a_config_of_others() -> None:
    expected = ModelConfig(320, 64, 3, 4, 2, 160, 128, tied=False, norm_epsilon=1e-6)
    assert read_model(llama()) == expected
    newer = {"rope_type": "default", "rope_theta": 500.0}
    assert read_model(llama(rope_theta=..., rope_parameters=newer)).rope_theta == 500.0
    assert read_model(llama(num_key_value_heads=...)).kv_heads == 4
    assert read_model(llama(head_dim=None)) == read_model(llama(head_dim=16)) == expected
    assert read_model(llama(head_dim=32)).head_width == 32
    assert read_model(llama(model_type="mistral", sliding_window=None)) == expected
    qwen = {"use_sliding_window": False, "sliding_window": 4096, "layer_types": ["full_attention"]}
    assert read_model(llama(model_type="qwen2", **qwen)) == replace(expected, qkv_bias=True)
    three = replace(expected, qk_norm=True, head_width=128)
    assert read_model(llama(model_type="qwen3", **qwen)) == three


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_stretched_positions(where: str) -> None:
    scaling = {"rope_theta": 500.0, "factor": 8}
    linear = read_model(llama(**{where: scaling | {"type": "linear"}})).rope_scaling
    assert linear == RopeScaling("linear", 8)
    numbers = {"low_freq_factor": 1.0, "high_freq_factor": 4, "rope_type": "llama3"}
    numbers |= {"original_max_position_embeddings": 64}
    llama3 = read_model(llama(**{where: scaling | numbers})).rope_scaling
    assert llama3 == RopeScaling("llama3", 8, 1, 4, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "type 'gpt2' with hidden_act 'silu' are not supported; "),
        (
            {"model_type": "gpt2", "hidden_act": ...},
            "type 'gpt2' with hidden_act None are not supported; .*, qwen3 with silu are",
        ),
        ({"hidden_act": "gelu"}, "models of type 'llama' with hidden_act 'gelu' are not"),
        ({"model_type": ...}, "model_type is missing"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": True}, "hidden_size is True, but must be of type int"),
        ({"hidden_size": 64.0}, r"hidden_size is 64\.0, but must be of type int"),
        ({"num_attention_heads": 5}, "dim 64 is not a multiple of heads 5"),
        (
            {"hidden_size": 10**400},
            r"hidden_size is 10{119}\.\.\., but must be above 0 and at most 9",
        ),
        (
            {"rope_theta": 10**400},
            r"rope_theta is 10{119}\.\.\., but must be above 0 and at most 3",
        ),
        ({"rms_norm_eps": 10**400}, r"rms_norm_eps is 10{119}\.\.\., but must be above 0 and at"),
        ({"rms_norm_eps": 1e39}, r"rms_norm_eps is 1e\+39, but must be above 0 and at most 3"),
        (
            {"rope_scaling": {"type": "linear", "factor": 10**400}},
            r"factor is 10{119}\.\.\., but must be above 0 and at most 3",
        ),
        ({"num_hidden_layers": 0}, "layers is 0, but must be above 0"),
        (
            {"vocab_size": 300, "llmgpu": {"vocab_size": 270}},
            "vocab_size is 300, but by the other sizes it must be 270",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, but must be of type bool"),
        ({"rms_norm_eps": 0.0}, r"rms_norm_eps is 0\.0, but must be above 0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, but must be above 0"),
        ({"rope_theta": ...}, "rope_theta is missing"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2}},
            "rope_type of rope_scaling is 'yarn', which is not supported; use default, linear, "
            "llama3",
        ),
        ({"rope_scaling": {"type": ["linear"]}}, r"rope_type of rope_scaling is \['linear'\]"),
        (
            {"rope_scaling": {"type": "linear", "factor": 0.5}},
            r"'factor': 0\.5, .*, factor and .* at least 1",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        (
            {
                "rope_scaling": {
                    "type": "llama3",
                    "factor": 2,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 1.0,
                    "original_max_position_embeddings": 64,
                }
            },
            r"'low_freq_factor': 4\.0, .* low_freq_factor between 0 and high_freq_factor",
        ),
        ({"attention_bias": True}, "attention_bias is True, but only false is supported"),
        ({"mlp_bias": 1}, "mlp_bias is 1, but only false is supported"),
        ({"sliding_window": 4096}, "sliding_window is 4096, but only null is supported"),
        ({"model_type": "mistral"}, "sliding_window is 4096, but only null is supported"),
        (
            {"model_type": "mistral", "use_sliding_window": False},  # a switch of Qwen alone
            "sliding_window is 4096, but only null is supported",
        ),
        (
            {"model_type": "qwen2", "use_sliding_window": True},
            "use_sliding_window is True, but only false is supported",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            r"layer_types has \['sliding_attention'\], which is not supported",
        ),
        ({"quantization_config": {"bits": 4}}, r"quantization_config is \{'bits': 4\}"),
        ({"head_dim": 6}, "6 numbers per head; it must be a multiple of 4"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_theta is missing"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"rope_parameters": []}, r"rope_parameters is \[\], but must be of type dict"),
        ({"llmgpu": {}}, "vocab_size is missing"),
        ({"llmgpu": {"vocab_size": 200}}, "vocab_size is 320, .* must be 200$"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message), naming("config.json"):
        read_model(llama(**changes))


def test_tables_that_transformers_resized() -> None:
    """transformers keeps the entries of llmgpu."""
    resized = {"vocab_size": 384, "llmgpu": {"vocab_size": 320}}
    assert read_model(llama(**resized, transformers_version="5.13.0")).vocab_size == 384
    with pytest.raises(CheckpointError, match=r"vocab_size is 384, .* must be 320$"):
        read_model(llama(**resized))


def test_begin_and_end() -> None:
    vocabulary = small_vocabulary()
    config = small_config(vocabulary)
    end = vocabulary.special_tokens[END]
    assert read_token_ids({}, "eos_token_id", 263) == ()
    assert read_token_ids({"eos_token_id": end}, "eos_token_id", 263) == (end,)
    assert read_token_ids({"eos_token_id": [end, 5]}, "eos_token_id", 263) == (end, 5)
    for wrong in (-1, 263, "1", True, [263], [[1]]):
        with pytest.raises(CheckpointError, match=r"bos_token_id is .*, but ids are below 263"):
            read_token_ids({"bos_token_id": wrong}, "bos_token_id", 263)
    described = describe_tokenizer(config, vocabulary, end)
    assert described["eos_token"] == END and "bos_token" not in described
    assert "eos_token" not in describe_tokenizer(config, vocabulary, 5)  # a token without a name


def test_tables_have_a_row_for_each_token(tmp_path: Path) -> None:
    vocabulary = small_vocabulary()
    config = small_config(vocabulary, tied=False)
    weights = random_weights(config, 1)
    folder = save_checkpoint(tmp_path, config, vocabulary, *sources(weights), state_of(1))
    content = json.loads((folder / "config.json").read_bytes())
    assert (content["vocab_size"], content["llmgpu"]) == (263, {"vocab_size": 263})
    assert read_model(content) == config
    stored = read_tensors(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert stored[name].shape == (263, config.dim)
    for name, values in used_rows(config, weights).items():
        np.testing.assert_array_equal(load_checkpoint(folder).weights[name], values)


def saved(folder: Path, note: Callable[[str], None], **sizes: Any) -> Path:
    vocabulary = small_vocabulary()
    config = small_config(vocabulary, **sizes)
    given = (*sources(random_weights(config, 1)), state_of(1))
    end = vocabulary.special_tokens[END]
    return save_checkpoint(folder, config, vocabulary, *given, eos_id=end, note=note)


def test_transformers_samples_tokens_only(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = saved(tmp_path, lambda text: None)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 262
    prompt = torch.zeros((20, 1), dtype=torch.int64)
    torch.manual_seed(1)
    made = model.generate(prompt, max_new_tokens=8, pad_token_id=262, attention_mask=prompt + 1)
    assert int(made.max()) < 263 and len(made.unique()) > 20


def test_a_model_without_gate_is_no_llama(tmp_path: Path) -> None:
    notes: list[str] = []
    folder = saved(tmp_path, notes.append, activation="gelu")
    assert [text for text in notes if "not a Llama" in text]
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="llmgpu"):
        transformers.AutoConfig.from_pretrained(folder)
