"""Sizes of models: what is refused, and what a preset amounts to."""

from __future__ import annotations

from typing import Any

import pytest

from llmgpu.errors import InputError
from llmgpu.lm.config import PRESETS, ModelConfig, RopeScaling, preset


def test_gpt2_has_124_million_parameters() -> None:
    config = preset("gpt2", 50_257)
    assert config.padded_vocab_size == 50_304
    assert 123_000_000 < config.parameters < 125_000_000
    assert config.parameters == sum(weight.size for weight in config.weights())


def test_sizes_in_place_of_a_preset_s() -> None:
    config = preset("tiny", 300, dim=64, heads=2, layers=None)
    assert (config.dim, config.heads, config.kv_heads, config.layers) == (64, 2, 2, 4)
    assert preset("tiny", 300, heads=4, kv_heads=2).kv_heads == 2


def test_every_weight_has_its_own_name_and_norms_do_not_decay() -> None:
    for config in (*PRESETS.values(), ModelConfig(vocab_size=7, tied=False, activation="gelu")):
        weights = list(config.weights())
        assert len({weight.name for weight in weights}) == len(weights)
        for weight in weights:
            assert weight.decays == (len(weight.shape) == 2) == (weight.deviation is not None)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dim": 100, "heads": 3}, "dim 100 is not a multiple of heads 3"),
        ({"heads": 4, "kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        ({"dim": 12, "heads": 2, "kv_heads": 1}, r"= 6 numbers per head; .* multiple of 4"),
        ({"layers": 0}, "layers is 0, but must be at least 1"),
        ({"seq_len": 0}, "seq_len is 0, but must be at least 1"),
        ({"vocab_size": -1}, "vocab_size is -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig(**{"vocab_size": 300, **sizes})


def test_an_unknown_kind_of_rope_scaling_is_refused() -> None:
    kind: Any = "yarn"
    with pytest.raises(
        InputError, match=r"is {'kind': 'yarn', .* kind must be one of linear, llama3"
    ):
        RopeScaling(kind, 2.0)
