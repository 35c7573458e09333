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


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention layer: B, T, H, K and D.

    Head h uses key/value head h // (heads // kv_heads).

    Raises:
        ValueError: the heads can't be divided evenly among the key/value heads.
    """

    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        """Check the numbers of heads."""
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads can't share {self.kv_heads} key/value heads")

    @property
    def group(self) -> int:
        """Heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys, 1 / sqrt(D)."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class AttentionTensors:
    """What attention reads and writes; rows are the tokens of B sequences, one after the other.

    q, out: (N, H * D). k, v: (N, K * D). log_sum_exp: (N, H), written for the backward pass.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    log_sum_exp: Tensor


@dataclass(frozen=True)
class AttentionGradients:
    """Gradients of the tensors of these names: that of `out` is read, the others are written."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor


@dataclass(frozen=True)
class Norm:
    """What a norm reads and writes: x, out (N, C); weight (C,); inverse_rms (N,)."""

    x: Tensor
    weight: Tensor
    out: Tensor
    inverse_rms: Tensor


@dataclass(frozen=True)
class Rotation:
    """The angles of rows: those of positions uint32 (N,).

    cosines, sines: (positions, D/2), as `rotary_tables` makes them.
    """

    cosines: Tensor
    sines: Tensor
    positions: Tensor
    head_dim: int
