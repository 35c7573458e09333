"""The learning rate of each step: linear warm-up, then a cosine decay to a minimum."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmgpu.errors import LlmgpuError


@dataclass(frozen=True)
class LearningRate:
    """A schedule of learning rates.

    peak: at the end of the warm-up.
    minimum: from step `total_steps` on.
    warmup_steps: the first of them has peak / warmup_steps, the last one the peak.

    Raises:
        LlmgpuError: a number is negative, or the minimum or the warm-up is larger than the whole.
    """

    peak: float
    minimum: float
    warmup_steps: int
    total_steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.peak < math.inf:
            raise LlmgpuError(
                f"the learning rate goes from {self.peak} to {self.minimum}; "
                "use 0 <= minimum <= peak"
            )
        if not 0 <= self.warmup_steps <= self.total_steps:
            raise LlmgpuError(
                f"{self.warmup_steps} of {self.total_steps} steps warm up; "
                f"use 0 to {self.total_steps}"
            )


def learning_rate(step: int, options: LearningRate) -> float:
    """Return the learning rate of a step, 0 for the first."""
    if step < options.warmup_steps:
        return options.peak * (step + 1) / options.warmup_steps
    if step >= options.total_steps:
        return options.minimum
    progress = (step - options.warmup_steps) / (options.total_steps - options.warmup_steps)
    height = (1 + math.cos(math.pi * progress)) / 2
    return options.minimum + (options.peak - options.minimum) * height
