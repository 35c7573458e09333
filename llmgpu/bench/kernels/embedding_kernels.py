"""Kernels that the embedding's lab compares and a model does not use, as operations."""

from __future__ import annotations

from functools import partial

import numpy as np

from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.embedding import copy_rows
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.recording import dims, workgroups
from llmgpu.lm.ops.tensor import Tensor

TILE_COLUMNS, TILE_TOKENS = 32, 8  # of a workgroup of embed_lookup_2d


def gpu(operations: Operations) -> GpuOperations:
    """Return the operations of a device, the only ones that have these kernels."""
    assert isinstance(operations, GpuOperations)
    return operations


def embed_lookup_2d(operations: Operations, tokens: Tensor, table: Tensor, out: Tensor) -> None:
    """Out = table[tokens], tiles of 8 tokens by 32 columns; float32."""
    tiles_a_token = -(-out.shape[-1] // TILE_COLUMNS)
    groups = tiles_a_token * -(-tokens.size // TILE_TOKENS)
    _look_up(operations, "embed_lookup_2d", groups, tokens, table, out)


def embed_lookup_token(operations: Operations, tokens: Tensor, table: Tensor, out: Tensor) -> None:
    """Out = table[tokens], one thread a token; float32."""
    _look_up(operations, "embed_lookup_token", workgroups(tokens.size), tokens, table, out)


def embed_lookup_rows_scalar(
    operations: Operations, tokens: Tensor, table: Tensor, out: Tensor
) -> None:
    """Out = table[tokens], one workgroup a token, by 4 bytes; float32."""
    _look_up(operations, "embed_lookup_rows_scalar", tokens.size, tokens, table, out)


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
        operations.append(partial(_add_rows, tokens, table, positions, position_table, out))
        return
    operations.dispatch(
        "lm/01_embed_lookup_positions.wgsl",
        workgroups(out.size),
        tokens=tokens,
        table=table,
        out=out,
        positions=positions,
        position_table=position_table,
        dims=dims(*out.shape, table.shape[0], position_table.shape[0]),
    )


def embed_backward(
    operations: Operations, tokens: Tensor, grad_out: Tensor, grad_table: Tensor
) -> None:
    """Add the rows of grad_out to those of their tokens; (N,), (N, C), (V, C).

    One thread an element; the order of additions is not fixed.
    """
    groups = workgroups(grad_out.size)
    _add_atomically(operations, "embed_backward", groups, tokens, grad_out, grad_table)


def embed_backward_rows(
    operations: Operations, tokens: Tensor, grad_out: Tensor, grad_table: Tensor
) -> None:
    """Do what `embed_backward` does with one workgroup a token."""
    groups = tokens.size
    _add_atomically(operations, "embed_backward_rows", groups, tokens, grad_out, grad_table)


def _look_up(
    operations: Operations, kernel: str, groups: int, tokens: Tensor, table: Tensor, out: Tensor
) -> None:
    sizes = dims(*out.shape, table.shape[0])
    gpu(operations).dispatch(
        f"bench/{kernel}.wgsl", groups, tokens=tokens, table=table, out=out, dims=sizes
    )


def _add_atomically(
    operations: Operations,
    kernel: str,
    groups: int,
    tokens: Tensor,
    grad_out: Tensor,
    grad_table: Tensor,
) -> None:
    gpu(operations).dispatch(
        f"lm/01_{kernel}.wgsl",
        groups,
        tokens=tokens,
        grad_out=grad_out,
        grad_table=grad_table,
        dims=dims(*grad_out.shape, grad_table.shape[0]),
    )


def _add_rows(
    tokens: Tensor, table: Tensor, positions: Tensor, position_table: Tensor, out: Tensor
) -> None:
    rows = np.empty_like(out.array)
    copy_rows(position_table.array, positions.array, rows)
    copy_rows(table.array, tokens.array, out.array)
    out.array[...] += rows
