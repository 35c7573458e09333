"""Initial values of weights."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import drawn_ahead, initial_values, initial_weights
from llmgpu.machine import usable_processors

CONFIG = ModelConfig(vocab_size=300, dim=64, layers=2, heads=2, kv_heads=2, ffn_dim=256)


def test_values_by_the_inputs_of_a_matrix() -> None:
    for index, weight in enumerate(CONFIG.weights()):
        values = initial_values(1, index, weight, "fan-in")
        normal = initial_values(1, index, weight)
        if weight.name.endswith(("o_proj.weight", "down_proj.weight")):
            assert not values.any() and normal.any()
        elif weight.name.startswith("model.layers.") and values.ndim == 2:
            assert np.isclose(values.std(), weight.shape[1] ** -0.5, rtol=0.05)
            np.testing.assert_allclose(values / values.std(), normal / normal.std(), rtol=1e-4)
        else:
            assert np.array_equal(values, normal)


def test_weights_drawn_in_threads_are_those_drawn_one_by_one() -> None:
    config = ModelConfig(vocab_size=40, dim=16, layers=2, heads=2, kv_heads=2, ffn_dim=16)
    take = initial_weights(config, 7)
    for number, weight in enumerate(config.weights()):
        expected = initial_values(7, number, weight)
        np.testing.assert_array_equal(take(weight.name), expected, strict=True)


def test_weights_drawn_ahead_take_bounded_memory() -> None:
    gigabyte = 1 << 30

    class Gpu(Backend):
        is_software = False

    gpu = Gpu(None, "a GPU")
    assert drawn_ahead(CONFIG, gpu) == len(list(CONFIG.weights()))  # all weights fit
    assert drawn_ahead(CONFIG, NUMPY) == min(8, usable_processors())
    large = ModelConfig(20_000, dim=4096, layers=32, heads=32, kv_heads=32, ffn_dim=4096)
    sizes = sorted((4 * weight.size for weight in large.weights()), reverse=True)
    assert (
        sum(sizes[: drawn_ahead(large, gpu)])
        <= gigabyte
        < sum(sizes[: drawn_ahead(large, gpu) + 1])
    )
    huge = ModelConfig(300_000, dim=4096, layers=32, heads=32, kv_heads=32, ffn_dim=4096)
    assert drawn_ahead(huge, gpu) <= 8  # one for each thread, though one alone takes 4.6 GiB


def test_weights_are_taken_in_their_order() -> None:
    config = ModelConfig(vocab_size=40, dim=16, layers=1, heads=2, kv_heads=2, ffn_dim=16)
    with pytest.raises(ValueError, match="the next weight is model"):
        initial_weights(config, 7)("x")
