"""Rows of a table for ids given as arrays: a model's first step by itself, ids checked first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.errors import InputError
from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.tensor import Tensor

if TYPE_CHECKING:
    from llmgpu.gpu import Device

NAMED_IDS = 5  # bad ids that a message names


def check_ids(ids: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return ids of any shape and any type of integers as uint32, none wrapped.

    Raises:
        InputError: they are no integers, or some are negative or not below `vocab_size`; the
            message has the first of them with their positions.
    """
    numbers = np.asarray(ids)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.uint32)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype}")
    bad = (numbers < 0) | (numbers >= vocab_size)
    if bad.any():
        raise InputError(_describe(numbers, bad, vocab_size))
    return numbers.astype(np.uint32)


def embedding_lookup(
    table: NDArray[np.floating], ids: ArrayLike, device: Device | None = None
) -> NDArray[np.float32]:
    """Return the rows of a table for ids of any shape.

    table: (V, C), float32 or float16. One of more bytes than the device binds is taken in parts.
    device: where to compute; NumPy where there is none.

    Returns:
        (*ids.shape, C), float32.

    Raises:
        InputError: an id is not in the table, or the table is of another shape or type.
        DeviceError: the device can't hold table and result.
    """
    if table.ndim != 2 or table.dtype not in (np.float32, np.float16):
        raise InputError(
            f"a table is float32 or float16 of 2 dimensions, not {table.dtype} of {table.ndim}"
        )
    tokens = check_ids(ids, len(table))
    if device is None:
        return table[tokens].astype(np.float32)
    operations = GpuOperations(device)
    parts = _table_parts(operations, table)
    flat = operations.tensor("ids", (tokens.size,), np.uint32)
    out = operations.tensor("rows", (tokens.size, table.shape[1]))
    operations.write(flat, tokens)
    with operations.record("embedding lookup") as program:
        operations.embed_lookup(flat, parts, out)
    operations.run(program)
    return operations.read(out).reshape(*tokens.shape, table.shape[1])


def _table_parts(operations: GpuOperations, table: NDArray[np.floating]) -> list[Tensor]:
    """Return tensors that hold a table, each of as many rows as the device can bind."""
    values: NDArray[Any] = table if operations.has_half_precision else table.astype(np.float32)
    row_bytes = values.itemsize * values.shape[1]
    rows = max(1, operations.device.max_binding_bytes // max(1, row_bytes))
    parts = []
    for start in range(0, len(values), rows):
        piece = values[start : start + rows]
        parts.append(operations.tensor("table", piece.shape, piece.dtype))
        operations.write(parts[-1], piece)
    return parts


def _describe(ids: NDArray[np.integer], bad: NDArray[np.bool_], vocab_size: int) -> str:
    positions = [tuple(int(k) for k in index) for index in np.argwhere(bad)[:NAMED_IDS]]
    named = ", ".join(f"{ids[position]} at {position}" for position in positions)
    count = int(np.count_nonzero(bad))
    more = ", ..." if count > len(positions) else ""
    verb = "id is" if count == 1 else "ids are"
    return f"{count} {verb} not in the vocabulary of {vocab_size} tokens: {named}{more}"
