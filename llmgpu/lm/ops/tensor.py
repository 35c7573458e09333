"""Tensors, and groups of tensors that are arguments of one operation.

A tensor is a name, a shape and a type for an array or for memory of a device. Tensors side by side
in a device's memory can be computed as a single tensor: a dispatch takes several microseconds even
if it has little to compute, and a small tensor does not keep a device busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llmgpu.gpu.adapters import Buffer

AnyArray: TypeAlias = NDArray[Any]  # an array of float32, float16, uint32 or uint8
FloatArray: TypeAlias = NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]  # of tensors, by their names

# Packed matrices start at multiples of this many elements: 256 bytes in half precision.
PACKED_ELEMENTS = 128


@dataclass(frozen=True, eq=False)
class Tensor:
    """An argument of an operation.

    name: name in messages and checkpoints.
    shape, dtype: float32, float16, uint32 or uint8; C order.
    data: an array of the same shape (NumPy), or a buffer (GPU).
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    data: Any

    @property
    def array(self) -> AnyArray:
        """The data of a tensor on the host, as an array."""
        return cast("AnyArray", self.data)

    @property
    def buffer(self) -> Buffer:
        """The data of a tensor on a device, as a buffer."""
        return cast("Buffer", self.data)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_half(self) -> bool:
        """Whether elements are half-precision numbers."""
        return self.dtype == np.float16

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start to stop - 1 of the first dimension, in the same memory.

        Raises:
            ValueError: the tensor has fewer rows, or on a device row `start` doesn't begin at a
                multiple of 256 bytes.
        """
        if not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"{self.name} has {self.shape[0]} rows, not {start} to {stop}")
        shape = (stop - start, *self.shape[1:])
        if isinstance(self.data, np.ndarray):
            return replace(self, shape=shape, data=self.data[start:stop])
        row = self.nbytes // self.shape[0]
        return replace(self, shape=shape, data=self.buffer.view(start * row, (stop - start) * row))

    def reshaped(self, *shape: int) -> Tensor:
        """Return the same elements, in C order, in another shape of the same size."""
        data = self.data.reshape(shape) if isinstance(self.data, np.ndarray) else self.data
        return replace(self, shape=shape, data=data)

    def part(self, start: int, stop: int) -> Tensor:
        """Return elements start to stop - 1 in C order, in the same memory.

        Raises:
            ValueError: the tensor has fewer elements, or on a device element `start` doesn't begin
                at a multiple of 256 bytes.
        """
        return self.reshaped(self.size).rows(start, stop)


@dataclass(frozen=True)
class Packed:
    """Matrices `parts` of one width in one tensor (rows, C), matrix i from row starts[i] on.

    Rows of zeros between matrices align each start, so that a device can bind each matrix.
    """

    tensor: Tensor
    starts: Shape
    parts: tuple[Tensor, ...]

    @staticmethod
    def layout(shapes: Iterable[Shape]) -> tuple[Shape, tuple[int, int]]:
        """Return the row at which each matrix starts, and the shape of the packed tensor.

        Neither depends on the type of elements. shapes: the shapes of the matrices.
        """
        starts, end, width = [], 0, 1
        for rows, width in shapes:
            multiple = PACKED_ELEMENTS // math.gcd(width, PACKED_ELEMENTS)
            starts.append(-(-end // multiple) * multiple)
            end = starts[-1] + rows
        return tuple(starts), (end, width)

    @classmethod
    def of(cls, tensor: Tensor, shapes: Shapes) -> Packed:
        """Divide a tensor of the shape that `layout` returns; shapes: by the matrices' names."""
        starts, _ = cls.layout(shapes.values())
        parts = (
            replace(tensor.rows(start, start + rows), name=name)
            for start, (name, (rows, _)) in zip(starts, shapes.items(), strict=True)
        )
        return cls(tensor, starts, tuple(parts))


@dataclass(frozen=True)
class Groups:
    """Positions grouped by token, as `group_tokens` returns them; all uint32.

    order: (N,). starts: (N + 1,). rows: (N,).
    """

    order: Tensor
    starts: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Losses:
    """The target of each row and the parts of its loss, all (N,).

    targets: uint32; the loss of a row whose target is no token is 0. cross_entropy: negative
    logarithm of the target's probability. smoothing: the part added by label smoothing. z_loss: the
    part added by the penalty on the log-sum-exp.
    """

    targets: Tensor
    cross_entropy: Tensor
    smoothing: Tensor
    z_loss: Tensor

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The parts of the loss, in the order in which they are summed up."""
        return self.cross_entropy, self.smoothing, self.z_loss

    def rows(self, start: int, stop: int) -> Losses:
        """Return rows start to stop - 1 of all tensors; see `Tensor.rows`."""
        return Losses(*(each.rows(start, stop) for each in vars(self).values()))


@dataclass(frozen=True)
class HeadTensors:
    """Queries of new rows, and a cache of keys and values.

    q: (N, H * D). cache: (L, 2 * K * D); a row has the keys of a token, then the token's values.
    """

    q: Tensor
    cache: Tensor

    @property
    def pairs_per_row(self) -> int:
        """Number of pairs of elements of a row's queries, keys and values."""
        return (self.q.shape[1] + self.cache.shape[1]) // 2


@dataclass(frozen=True)
class NewRows:
    """New tokens of sequences in a cache.

    tokens: uint32 (N,). places: uint32 (2, N), the tokens' positions, and the cache rows at which
    the tokens' sequences start. idle: a row without a token has this start in `places`.
    """

    tokens: Tensor
    places: Tensor
    idle: int


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention layer: B, T, H, K and D.

    Head h uses key/value head h // (heads // kv_heads); `heads` is a multiple of `kv_heads`.

    saves_memory: whether the backward pass computes the weights of scores twice instead of storing
        them; the results have the same bits.
    """

    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    saves_memory: bool = False

    @property
    def group(self) -> int:
        """Number of query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys, 1 / sqrt(D)."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class AttentionTensors:
    """The tensors of attention. Rows are the tokens of B sequences, one sequence after the other.

    q, out: (N, H * D). k, v: (N, K * D). log_sum_exp: (N, H), written for the backward pass.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    log_sum_exp: Tensor


@dataclass(frozen=True)
class AttentionGradients:
    """Gradients of `AttentionTensors`. Operations read `out`, and write q, k and v."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor


@dataclass(frozen=True)
class PackedGradient:
    """The gradients of attention's output and of the input of `split_heads`, both float16.

    Operations read `out` (N, H * D), and write `packed` (N, R). starts: first columns of q, k and v
    in `packed`, multiples of 8. rotation: row t of each sequence has position t.
    """

    out: Tensor
    packed: Tensor
    starts: Sequence[int]
    rotation: Rotation


@dataclass(frozen=True)
class Norm:
    """The tensors of a norm: x, out (N, C); weight (C,); inverse_rms (N,)."""

    x: Tensor
    weight: Tensor
    out: Tensor
    inverse_rms: Tensor


@dataclass(frozen=True)
class Rotation:
    """The angles by which rotary embedding turns rows.

    cosines, sines: (number of positions, D/2), see `rotary_tables`. positions: uint32 (N,), the
    position of each row.
    """

    cosines: Tensor
    sines: Tensor
    positions: Tensor
    head_dim: int

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The rotation's tensors by the names of the kernels' bindings."""
        return {"cosines": self.cosines, "sines": self.sines, "positions": self.positions}


def places_of(shape: Shape) -> int:
    """Return the number of elements from the start of a tensor to where the next may start."""
    return -(-math.prod(shape) // PACKED_ELEMENTS) * PACKED_ELEMENTS


def group_shapes(shapes: Shapes, most: int) -> Iterator[dict[str, Shape]]:
    """Divide tensors, in order, into groups of similar sizes, each of up to `most` elements."""
    total = sum(map(places_of, shapes.values()))
    enough = -(-total // -(-total // most))
    group: dict[str, Shape] = {}
    size = 0
    for name, shape in shapes.items():
        if group and (size >= enough or size + places_of(shape) > most):
            yield group
            group, size = {}, 0
        group[name] = shape
        size += places_of(shape)
    yield group


def adjacent_runs(rows: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Group rows of tensors into runs, so that `joined` can make one tensor of each column.

    In a run, the tensors of each column are contiguous in memory. All rows have the same number of
    tensors. Returns the row numbers of each run. On the CPU, each run has one row.
    """
    if rows and isinstance(rows[0][0].data, np.ndarray):
        return [[number] for number in range(len(rows))]
    runs: list[list[int]] = []
    ends: dict[tuple[int, int], list[int]] = {}  # runs, by the end of their first column in memory
    for number, row in enumerate(rows):
        buffer = row[0].buffer
        run = ends.get((id(buffer.handle), buffer.offset), [])
        if not run or not all(map(_follows, row, rows[run[-1]])):
            run = []
            runs.append(run)
        run.append(number)
        ends[id(buffer.handle), buffer.offset + row[0].nbytes] = run
    return runs


def _follows(tensor: Tensor, before: Tensor) -> bool:
    """Whether a tensor starts in memory where another one ends, with no gap in between."""
    mine, other = tensor.buffer, before.buffer
    return mine.handle is other.handle and mine.offset == other.offset + before.nbytes


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return contiguous tensors as one tensor of all their elements, (n,); see `adjacent_runs`.

    A single tensor is returned unchanged.
    """
    if len(tensors) == 1:
        return tensors[0]
    memory = tensors[0].buffer.until(tensors[-1].buffer)
    return replace(tensors[0], shape=(sum(each.size for each in tensors),), data=memory)


def spanning(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]] | None:
    """Return one tensor of the memory from the first to the last tensor, and where each starts.

    A start is a number of elements. The tensors, whose elements have one size, may lie in any
    order. Returns None unless they are in one buffer. On the CPU, returns the first tensor and
    zeros.
    """
    if isinstance(tensors[0].data, np.ndarray):
        return tensors[0], [0] * len(tensors)
    buffers = sorted((each.buffer for each in tensors), key=lambda buffer: buffer.offset)
    if any(buffer.handle is not buffers[0].handle for buffer in buffers):
        return None
    memory = buffers[0].until(buffers[-1])
    itemsize = tensors[0].dtype.itemsize
    starts = [(each.buffer.offset - memory.offset) // itemsize for each in tensors]
    return replace(tensors[0], shape=(memory.nbytes // itemsize,), data=memory), starts
