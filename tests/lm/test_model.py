"""Initial values of weights."""

from __future__ import annotations

import numpy as np

from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import initial_values

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
