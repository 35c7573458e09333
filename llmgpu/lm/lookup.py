"""Rows of a table for ids of any shape, looked up on any backend."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.backend import select_backend
from llmgpu.errors import LlmgpuError
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.tensor import Tensor

LARGEST_ID = 0xFFFFFFFF


def look_up(table: ArrayLike, ids: ArrayLike, *, device: str = "auto") -> NDArray[np.float32]:
    """Return the rows of a table for ids of any shape, float32.

    The result has the shape of the ids, and one more dimension of C columns. An id beyond the table
    gives a row of zeros. A table or result that is larger than a device can bind is divided into
    parts.

    table: (V, C); float16 is kept if the device supports it, other numbers become float32. ids:
    integers of any shape.
    device: auto, cpu, gpu or part of an adapter's name.

    Raises:
        LlmgpuError: the table isn't two-dimensional, or ids are not integers from 0 to 4294967295.
        DeviceError: the device doesn't exist, or has too little memory.
    """
    rows, wanted = np.asarray(table), np.asarray(ids)
    if rows.ndim != 2:
        raise LlmgpuError(f"a table has the shape (rows, columns), not {rows.shape}")
    if wanted.size and wanted.dtype.kind not in "iu":
        raise LlmgpuError(f"ids are integers, not {wanted.dtype}: convert them first")
    if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) <= LARGEST_ID:
        least, most = int(wanted.min()), int(wanted.max())
        raise LlmgpuError(f"ids are from {least} to {most}, but must be from 0 to {LARGEST_ID}")
    out = np.zeros((wanted.size, rows.shape[1]), np.float32)
    if out.size and rows.size:
        operations = open_operations(select_backend(device).device)
        is_half = rows.dtype == np.float16 and operations.has_half_precision
        parts = _upload(operations, rows.astype(np.float16 if is_half else np.float32, copy=False))
        _fill(operations, parts, wanted.reshape(-1).astype(np.uint32), out)
    return out.reshape(*wanted.shape, rows.shape[1])


def _upload(operations: Operations, table: NDArray[np.floating]) -> list[Tensor]:
    """Upload a table in parts of whole rows; return the parts."""
    count = max(operations.max_tensor_bytes // table[:1].nbytes, 1)
    parts = []
    for first in range(0, len(table), count):
        block = table[first : first + count]
        parts.append(operations.tensor("table", block.shape, block.dtype))
        operations.write(parts[-1], block)
    return parts


def _fill(
    operations: Operations, parts: list[Tensor], ids: NDArray[np.uint32], out: NDArray[np.float32]
) -> None:
    """Write the rows of ids (N,) to out (N, C), in blocks that fit into a binding."""
    count = max(operations.max_tensor_bytes // out[:1].nbytes, 1)
    for first in range(0, len(ids), count):
        block = ids[first : first + count]
        tokens = operations.tensor("ids", block.shape, np.uint32)
        found = operations.tensor("rows", (len(block), out.shape[1]))
        operations.write(tokens, block)
        with operations.record("look up") as program:
            operations.embed_lookup(tokens, parts, found)
        operations.run(program)
        out[first : first + count] = operations.read(found)
