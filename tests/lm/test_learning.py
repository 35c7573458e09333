"""A tiny model learns a paragraph by heart and says it again."""

from __future__ import annotations

import numpy as np
import pytest

from llmgpu.lm.config import ModelConfig
from llmgpu.lm.generator import Generator
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.options import SamplingOptions, TrainOptions
from llmgpu.lm.sampling import Sampler
from llmgpu.lm.trainer import Trainer
from tests.lm.samples import generated

PARAGRAPH = b"The tide went out before dawn, and the boats lay on the sand until it came back."
STEPS = 200


@pytest.mark.slow
def test_a_paragraph_is_learnt_by_heart(operations: Operations) -> None:
    ids = np.frombuffer(PARAGRAPH, np.uint8).astype(np.uint32)
    config = ModelConfig(
        vocab_size=256, dim=64, layers=1, heads=4, kv_heads=2, ffn_dim=128, seq_len=len(ids) - 1
    )
    options = TrainOptions(
        batch_size=1,
        steps=STEPS,
        weight_decay=0.0,
        learning_rate=1e-2,
        min_learning_rate=1e-3,
        warmup_steps=10,
    )
    trainer = Trainer(operations, config, options, slots=STEPS)
    trainer.model.initialise(1)
    batch = (ids[None, :-1].copy(), ids[None, 1:].copy())
    for step in range(STEPS):
        trainer.take_step([batch], options.rate(step))
    losses = [result.loss for result in trainer.results(STEPS)]
    assert losses[0] > 5 and losses[-1] < 0.05
    sampler = Sampler(SamplingOptions(0))
    made = generated(Generator(trainer.model), ids[:8].tolist(), len(ids) - 8, sampler)
    assert bytes(ids[:8].tolist()) + bytes(made) == PARAGRAPH
