"""A small training run that is fully determined: model, first weights, batches, optimizer.

What torch made of it is in tests/lm/recorded/torch_training.json, see `record_torch`.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import ModelConfig

SEED = 20_260
BATCH = 4
RECORDED = Path(__file__).parents[2] / "lm" / "recorded" / "torch_training.json"


@dataclass(frozen=True)
class Hyperparameters:
    """AdamW on the mean cross-entropy, gradients clipped by the norm of all of them.

    Weight decay is decoupled, and only of weights that decay. The learning rate rises linearly for
    `warmup_steps`, then falls as half a cosine from `learning_rate` towards `min_learning_rate`,
    which the step after the last would have.
    """

    steps: int = 100
    learning_rate: float = 1e-3
    min_learning_rate: float = 1e-4
    warmup_steps: int = 10
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 2.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        span = self.learning_rate - self.min_learning_rate
        return self.min_learning_rate + span * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class ReferenceSetup:
    """weights: float32 by name. batches: tokens and targets, uint32 (B, T) each, one a step."""

    config: ModelConfig
    weights: dict[str, NDArray[np.float32]]
    batches: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]]
    hyperparameters: Hyperparameters

    @property
    def checksum(self) -> int:
        """CRC-32 of all weights and batches, in their order."""
        crc = 0
        for array in (*self.weights.values(), *(part for pair in self.batches for part in pair)):
            crc = zlib.crc32(array.tobytes(), crc)
        return crc


@cache
def reference_setup() -> ReferenceSetup:
    """Return the run, which is not to be changed; the same on every machine."""
    config = ModelConfig(
        vocab_size=320, dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=160, seq_len=32
    )
    generator = np.random.default_rng(SEED)
    weights = {
        weight.name: np.ones(weight.shape, np.float32)
        if weight.deviation is None
        else (generator.standard_normal(weight.shape) * weight.deviation).astype(np.float32)
        for weight in config.weights()
    }
    hyperparameters = Hyperparameters()
    batches = [_make_batch(generator, config) for _ in range(hyperparameters.steps)]
    return ReferenceSetup(config, weights, batches, hyperparameters)


def _make_batch(
    generator: np.random.Generator, config: ModelConfig
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Draw text that can be learnt: after each token one of two others comes, the first mostly."""
    text = np.empty((BATCH, config.seq_len + 1), np.uint32)
    text[:, 0] = generator.integers(0, config.vocab_size, BATCH)
    for place in range(config.seq_len):
        chosen = generator.random(BATCH) < 0.8
        text[:, place + 1] = np.where(chosen, 3 * text[:, place] + 1, 5 * text[:, place] + 2)
        text[:, place + 1] %= 60  # of the ids only few are common
    return text[:, :-1].copy(), text[:, 1:].copy()


def recorded() -> dict[str, Any]:
    """Return what torch made of it: losses, gradient norms, versions."""
    content: dict[str, Any] = json.loads(RECORDED.read_bytes())
    return content
