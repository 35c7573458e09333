"""Kernels that the embedding's lab compares and a model does not use, as operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.embedding import copy_rows
from llmgpu.lm.ops.operations import Groups, Operations
from llmgpu.lm.ops.recording import dims, workgroups
from llmgpu.lm.ops.tensor import Tensor

TILE_COLUMNS, TILE_TOKENS = 32, 8  # of a workgroup of embed_lookup_2d


@dataclass(frozen=True)
class LabKernel:
    """A kernel as an operation of a device: a lookup, or with `adds` its gradient; float32.

    A lookup takes tokens (N,), table (V, C) and out (N, C), the rows of the tokens. A gradient
    takes tokens, grad_out (N, C) and grad_table (V, C), to which it adds with atomics, so that the
    order of additions is not fixed.

    groups: returns the workgroups for rows (N, C).
    """

    file: str
    groups: Callable[[int, int], int]
    adds: bool = False

    def __call__(self, operations: Operations, tokens: Tensor, *others: Tensor) -> None:
        """Append the kernel to the program being recorded."""
        assert isinstance(operations, GpuOperations)
        names = ("grad_out", "grad_table") if self.adds else ("table", "out")
        rows, table = others if self.adds else reversed(others)
        bound = {"tokens": tokens, **dict(zip(names, others, strict=True))}
        sizes = dims(*rows.shape, table.shape[0])
        operations.dispatch(self.file, self.groups(*rows.shape), **bound, dims=sizes)


embed_lookup_2d = LabKernel(
    "bench/embed_lookup_2d.wgsl", lambda n, c: -(-c // TILE_COLUMNS) * -(-n // TILE_TOKENS)
)
embed_lookup_token = LabKernel("bench/embed_lookup_token.wgsl", lambda n, _: workgroups(n))
embed_lookup_rows_scalar = LabKernel("bench/embed_lookup_rows_scalar.wgsl", lambda n, _: n)
embed_backward = LabKernel("lm/01_embed_backward.wgsl", lambda n, c: workgroups(n * c), adds=True)
embed_backward_rows = LabKernel("lm/01_embed_backward_rows.wgsl", lambda n, _: n, adds=True)


def embed_backward_grouped(operations: Operations, t: dict[str, Tensor]) -> None:
    """Add gradients to the table's rows, groups of equal tokens at a time."""
    groups = Groups(t["order"], t["starts"], t["rows"])
    operations.embed_backward_grouped(groups, t["grad_out"], t["grad_table"])


def embed_gradient_rows(operations: Operations, t: dict[str, Tensor]) -> None:
    """Sum gradients of equal tokens, into a row for each."""
    groups = Groups(t["order"], t["starts"], t["rows"])
    operations.embed_gradient_rows(groups, t["grad_out"], t["out"])


def embed_lookup_positions(
    operations: Operations,
    tokens: Tensor,
    table: Tensor,
    positions: Tensor,
    position_table: Tensor,
    out: Tensor,
) -> None:
    """Out = table[tokens] + position_table[positions], each 0 beyond its table.

    (N,), (V, C), (N,), (P, C), (N, C); float32, on every backend.
    """
    if not isinstance(operations, GpuOperations):

        def add_rows() -> None:
            rows = np.empty_like(out.array)
            copy_rows(position_table.array, positions.array, rows)
            copy_rows(table.array, tokens.array, out.array)
            out.array[...] += rows

        operations.append(add_rows)
        return
    bound = {"tokens": tokens, "table": table, "out": out, "positions": positions}
    bound |= {"position_table": position_table}
    sizes = dims(*out.shape, table.shape[0], position_table.shape[0])
    operations.dispatch(
        "lm/01_embed_lookup_positions.wgsl", workgroups(out.size), **bound, dims=sizes
    )
