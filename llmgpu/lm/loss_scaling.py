"""Dynamic scaling of the loss, so that half-precision gradients neither vanish nor overflow.

All gradients are multiplied by a power of two, and the optimizer divides by it. A step whose
gradients overflow changes no weight and halves the scale; after many steps without one it doubles
(P. Micikevicius et al., Mixed Precision Training, arXiv 1710.03740).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import AnyArray

FIRST_SCALE = 2.0**16
LARGEST_SCALE = 2.0**24
GROWTH_STEPS = 2_000  # without an overflow, after which the scale doubles


class LossScaling:
    """The scale of a run's loss.

    scale: of the next step. good_steps: since the last change. skipped: steps since the beginning
    that overflowed. tensor: (4,), the same for checkpoints.
    """

    def __init__(self, operations: Operations) -> None:
        """Start with a scale that is soon lowered if it is too large."""
        self._operations = operations
        self.tensor = operations.tensor("loss scaling", (4,))
        self.scale, self.good_steps, self.skipped = FIRST_SCALE, 0, 0

    def load(self, values: AnyArray) -> None:
        """Take over the contents of `tensor` in a checkpoint."""
        scale, good_steps, skipped, _ = values.tolist()
        self.scale, self.good_steps, self.skipped = scale, int(good_steps), int(skipped)

    def take_lowest(self, others: Iterable[AnyArray]) -> None:
        """Take over the `tensor` of the worker with the lowest scale, the first of these."""
        self.load(min(others, key=lambda values: float(values[0])))
        self._write()

    def end_step(self, *, overflowed: bool) -> bool:
        """Choose the next step's scale; return False for an overflow that no scale prevents."""
        if overflowed:
            if self.scale <= 1:
                return False
            self.scale, self.good_steps, self.skipped = self.scale / 2, 0, self.skipped + 1
        elif self.good_steps + 1 < GROWTH_STEPS:
            self.good_steps += 1
        else:
            self.scale, self.good_steps = min(2 * self.scale, LARGEST_SCALE), 0
        self._write()
        return True

    def _write(self) -> None:
        values = np.array([self.scale, self.good_steps, self.skipped, 0], np.float32)
        self._operations.write(self.tensor, values)
