"""Ways to look rows of a table up and to add to them, on tensors of a NumPy or GPU engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.models import embedding_kernels as lab
from llmgpu.bench.models.embedding_job import (
    BACKWARD,
    HALF,
    LOOKUP,
    POSITIONS,
    REPEATED,
    EmbeddingData,
)
from llmgpu.lm.ops.backends import NumpyOperations
from llmgpu.lm.ops.embedding import group_tokens
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.tensor import Tensor


class Place:
    """The tensors of one kind of work on one engine, made when they are asked for.

    Raises:
        DeviceError: from any attribute, where the device has not the memory.
    """

    def __init__(self, operations: Operations, data: EmbeddingData, kind: str) -> None:
        """Begin without tensors."""
        self.operations = operations
        self.data = data
        self.kind = kind
        self.made: NDArray[np.float32] | None = None  # by a way that makes its own output

    @property
    def is_backward(self) -> bool:
        """Whether a table's gradient is the answer, instead of rows."""
        return self.kind in (BACKWARD, REPEATED)

    @property
    def is_half(self) -> bool:
        """Whether the table is in half precision."""
        return self.kind == HALF

    @cached_property
    def tokens(self) -> Tensor:
        """Token ids, (N,)."""
        return self._filled("tokens", self.data.tokens(self.kind))

    @cached_property
    def table_parts(self) -> list[Tensor]:
        """The table, float32 or float16, in as many parts as bindings need."""
        table: NDArray[Any] = self.data.half_table if self.is_half else self.data.table
        rows = max(self.operations.max_tensor_bytes // table[:1].nbytes, 1)
        parts = range(0, len(table), min(rows, len(table)))
        return [self._filled("table", table[first : first + rows]) for first in parts]

    @property
    def table(self) -> Tensor:
        """The table in one."""
        (table,) = self.table_parts
        return table

    @cached_property
    def out(self) -> Tensor:
        """Rows of tokens, (N, C)."""
        return self.operations.tensor("rows", self.data.grad_out.shape)

    @cached_property
    def positions(self) -> Tensor:
        """Each token's position, (N,)."""
        return self._filled("positions", self.data.positions)

    @cached_property
    def position_table(self) -> Tensor:
        """Rows of positions, (T, C)."""
        return self._filled("position table", self.data.position_table)

    @cached_property
    def grad_out(self) -> Tensor:
        """Gradients of the rows, (N, C)."""
        return self._filled("row gradients", self.data.grad_out)

    @cached_property
    def grad_table(self) -> Tensor:
        """Gradient of the table, (V, C)."""
        return self.operations.tensor("table gradient", self.data.table.shape)

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor, Tensor]:
        """What `group_tokens` returns."""
        order, starts, rows = group_tokens(self.data.tokens(self.kind))
        return (
            self._filled("order", order),
            self._filled("starts", starts),
            self._filled("distinct tokens", rows),
        )

    def append(self, step: Callable[[], None]) -> None:
        """Append a function to the program being recorded, in NumPy."""
        assert isinstance(self.operations, NumpyOperations)
        self.operations.append(step)

    def record(self, work: Callable[[Place], None]) -> Program:
        """Return the program of what `work` appends for this place."""
        program: Program
        with self.operations.record(self.kind) as program:
            work(self)
        return program

    def clear(self) -> None:
        """Make the table's gradient 0."""
        zeros = self.record(lambda place: place.operations.fill_zero(place.grad_table))
        self.operations.run(zeros)

    def answer(self) -> NDArray[Any]:
        """Return what the work left behind."""
        if self.made is not None:
            return self.made
        return self.operations.read(self.grad_table if self.is_backward else self.out)

    def _filled(self, name: str, values: NDArray[Any]) -> Tensor:
        tensor = self.operations.tensor(name, values.shape, values.dtype)
        self.operations.write(tensor, values)
        return tensor


@dataclass(frozen=True)
class Variant:
    """A way to do a kind of work.

    record: appends its operations to the program being recorded, as `Place.record` takes it.
    in_parts: whether it takes tables of several parts.
    """

    kind: str
    way: str
    record: Callable[[Place], None]
    in_parts: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.kind}: {self.way}"


def _index(place: Place) -> None:
    """Make the rows anew, as ``table[tokens]`` does."""

    def step() -> None:
        place.made = place.table.array[place.tokens.array]

    place.append(step)


def _add_row_after_row(place: Place) -> None:
    tokens, grad_out, grad_table = place.tokens.array, place.grad_out.array, place.grad_table.array

    def step() -> None:
        for s, token in enumerate(tokens):
            grad_table[token] += grad_out[s]

    place.append(step)


def _add_at(place: Place) -> None:
    tokens, grad_out, grad_table = place.tokens.array, place.grad_out.array, place.grad_table.array
    place.append(lambda: np.add.at(grad_table, tokens, grad_out))


def _grouped(place: Place) -> None:
    place.operations.embed_backward_grouped(*place.groups, place.grad_out, place.grad_table)


def _lookup(place: Place) -> None:
    place.operations.embed_lookup(place.tokens, place.table_parts, place.out)


def _positions(place: Place) -> None:
    lab.embed_lookup_positions(
        place.operations,
        place.tokens,
        place.table,
        place.positions,
        place.position_table,
        place.out,
    )


# The first of each kind is what others are compared with.
NUMPY_VARIANTS = (
    Variant(LOOKUP, "np.take into memory that is there", _lookup),
    Variant(LOOKUP, "table[tokens]", _index),
    Variant(HALF, "np.take", _lookup),
    Variant(POSITIONS, "np.take, added", _positions),
    *(
        variant
        for kind in (BACKWARD, REPEATED)
        for variant in (
            Variant(kind, "row after row", _add_row_after_row),
            Variant(kind, "np.add.at", _add_at),
            Variant(kind, "grouped", _grouped),
        )
    ),
)
GPU_VARIANTS = (
    Variant(
        LOOKUP,
        "one thread a token",
        lambda p: lab.embed_lookup_token(p.operations, p.tokens, p.table, p.out),
    ),
    Variant(
        LOOKUP,
        "one thread an element",
        lambda p: lab.gpu(p.operations).embed_lookup_elements(p.tokens, p.table_parts, p.out),
        in_parts=True,
    ),
    Variant(
        LOOKUP,
        "8 tokens x 32 columns a workgroup",
        lambda p: lab.embed_lookup_2d(p.operations, p.tokens, p.table, p.out),
    ),
    Variant(
        LOOKUP,
        "one workgroup a token",
        lambda p: lab.embed_lookup_rows_scalar(p.operations, p.tokens, p.table, p.out),
    ),
    Variant(LOOKUP, "16-byte loads", _lookup, in_parts=True),
    Variant(HALF, "16-byte loads", _lookup, in_parts=True),
    Variant(POSITIONS, "one thread an element", _positions),
    *(
        variant
        for kind in (BACKWARD, REPEATED)
        for variant in (
            Variant(
                kind,
                "atomic, one thread an element",
                lambda p: lab.embed_backward(p.operations, p.tokens, p.grad_out, p.grad_table),
            ),
            Variant(
                kind,
                "atomic, one workgroup a token",
                lambda p: lab.embed_backward_rows(p.operations, p.tokens, p.grad_out, p.grad_table),
            ),
            Variant(kind, "grouped", _grouped),
        )
    ),
)
