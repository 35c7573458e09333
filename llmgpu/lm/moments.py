"""AdamW's moments of one weight: how they are held, and which operation updates them.

`FloatMoments` are float32, `CodedMoments` 8-bit codes with a scale for each block, `RowMoments`
those of a table of which only some rows are updated in a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmgpu.lm.ops.block_codes import BlockCodes, block_codes
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import Tensor


@dataclass(frozen=True)
class Updated:
    """What an update reads and writes besides the moments."""

    parameter: Tensor
    gradient: Tensor
    stats: Tensor
    hyper: Tensor
    decays: bool
    mirror: Tensor | None


class Moments(Protocol):
    """Mean of gradients and mean of squares of one weight."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, for checkpoints; their names begin with the weight's."""

    def record_update(self, operations: Operations, updated: Updated) -> None:
        """Record AdamW's step of the weight."""


@dataclass(frozen=True)
class FloatMoments:
    """Moments in float32, of the weight's shape."""

    first: Tensor
    second: Tensor

    @classmethod
    def make(cls, operations: Operations, weight: Tensor) -> FloatMoments:
        """Make the moments of a weight, zeros at first."""
        return cls(
            operations.tensor(f"{weight.name}.first", weight.shape),
            operations.tensor(f"{weight.name}.second", weight.shape),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.first, self.second

    def record_update(self, operations: Operations, updated: Updated) -> None:
        """Record the step of all elements."""
        operations.adamw_update(
            updated.parameter,
            updated.gradient,
            self.first,
            self.second,
            updated.stats,
            updated.hyper,
            decay=updated.decays,
            mirror=updated.mirror,
        )


@dataclass(frozen=True)
class CodedMoments:
    """Moments in 8 bits an element."""

    first: BlockCodes
    second: BlockCodes

    @classmethod
    def make(cls, operations: Operations, weight: Tensor) -> CodedMoments:
        """Make the moments of a weight, zeros at first."""
        return cls(
            block_codes(operations, f"{weight.name}.first", weight.size),
            block_codes(operations, f"{weight.name}.second", weight.size),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.first.codes, self.first.scales, self.second.codes, self.second.scales

    def record_update(self, operations: Operations, updated: Updated) -> None:
        """Record the step of all elements."""
        operations.adamw_8bit_update(
            updated.parameter,
            updated.gradient,
            self.first,
            self.second,
            updated.stats,
            updated.hyper,
            decay=updated.decays,
            mirror=updated.mirror,
        )


@dataclass(frozen=True)
class RowMoments:
    """Moments of a table; those of rows that are not among `rows` stay as they are."""

    whole: FloatMoments
    rows: Tensor  # uint32, those beyond the table stand for nothing

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.whole.tensors

    def record_update(self, operations: Operations, updated: Updated) -> None:
        """Record the step of the rows."""
        operations.adamw_update_rows(
            updated.parameter,
            updated.gradient,
            self.whole.first,
            self.whole.second,
            self.rows,
            updated.stats,
            updated.hyper,
            decay=updated.decays,
            mirror=updated.mirror,
        )
