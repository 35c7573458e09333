"""What operations take together, beside single tensors."""

from __future__ import annotations

from dataclasses import dataclass

from llmgpu.lm.ops.tensor import Tensor


@dataclass(frozen=True)
class Groups:
    """Equal tokens next to each other, as `group_tokens` returns them; all uint32.

    order: (N,). starts: (N + 1,). rows: (N,).
    """

    order: Tensor
    starts: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Losses:
    """The parts of the loss of each row, all (N,).

    cross_entropy: of the target alone. smoothing: what label smoothing adds. z_loss: what the
    penalty on the log-sum-exp adds.
    """

    cross_entropy: Tensor
    smoothing: Tensor
    z_loss: Tensor

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All parts, in the order in which they are summed up."""
        return self.cross_entropy, self.smoothing, self.z_loss

    def rows(self, start: int, stop: int) -> Losses:
        """Return rows start to stop - 1 of all parts; see `Tensor.rows`."""
        return Losses(*(part.rows(start, stop) for part in self.parts))


@dataclass(frozen=True)
class HeadTensors:
    """Queries of new rows, and a cache of keys and values.

    q: (N, H * D). cache: (L, 2 * K * D), in each row a token's keys, then its values.
    """

    q: Tensor
    cache: Tensor


@dataclass(frozen=True)
class NewRows:
    """New tokens of sequences in a cache.

    tokens: uint32 (N,). places: uint32 (2, N), their positions, and the rows of the cache where
    their sequences start. idle: where those of rows without a token start.
    """

    tokens: Tensor
    places: Tensor
    idle: int
