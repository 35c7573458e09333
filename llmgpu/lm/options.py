"""What a training run is asked for, apart from the sizes of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from llmgpu.errors import InputError
from llmgpu.lm.runs.schedule import LearningRate

Precision = Literal["f32", "f16"]
OptimizerName = Literal["adamw", "adamw-8bit"]

PRECISIONS: tuple[str, ...] = get_args(Precision)
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)


@dataclass(frozen=True)
class TrainOptions:
    """Everything that decides what a run computes; two runs with the same are the same.

    batch_size: sequences at a time. grad_accum: batches a step. steps: optimizer steps in all.
    learning_rate rises over warmup_steps and falls by a cosine to min_learning_rate.
    weight_decay: on matrices only. grad_clip: largest global norm of the gradients, 0: any.
    precision: "f16" computes with half-precision copies of the matrices. sparse_embedding: update
    only the rows of the embedding table whose ids came up (not with a tied table).
    evaluation_fraction: of the text, kept out of training. evaluation_batches: how many at most.
    """

    batch_size: int = 8
    grad_accum: int = 1
    steps: int = 1000
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 100
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    label_smoothing: float = 0.0
    z_loss: float = 1e-4
    seed: int = 1337
    precision: Precision = "f32"
    optimizer: OptimizerName = "adamw"
    sparse_embedding: bool = False
    evaluation_fraction: float = 0.01
    evaluation_batches: int = 20

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{field.name} is {value}, it must be a number of at least 0")
        for name in ("batch_size", "grad_accum", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("beta1", "beta2", "label_smoothing", "evaluation_fraction"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)}, it must be less than 1")
        if self.sparse_embedding and self.optimizer != "adamw":
            raise InputError(f"sparse_embedding goes with adamw, not with {self.optimizer}")
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"seed is {self.seed}, it must be from 0 to 2^63 - 1")

    @property
    def sequences(self) -> int:
        """Sequences that a step takes."""
        return self.batch_size * self.grad_accum

    def schedule(self) -> LearningRate:
        """Return the learning rate's schedule; LlmgpuError if its numbers do not fit together."""
        return LearningRate(
            peak=self.learning_rate,
            minimum=self.min_learning_rate,
            warmup_steps=self.warmup_steps,
            total_steps=max(self.steps, self.warmup_steps),
        )
