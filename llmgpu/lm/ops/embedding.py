"""Operations of embedding tables: the lookup of rows by token ids, and the table's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import (
    FOUR,
    WORKGROUP_SIZE,
    GpuRecorder,
    Recorder,
    dims,
    recorded,
    workgroups,
)
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Groups, Tensor

VECTORS_UNDER_WAY = 4  # loads that a thread of embed_lookup_rows starts before it stores
SUBGROUP = 32  # least threads that share a row, if the row has as many vectors
SLICE = 32  # sorted positions for one thread of embed_backward_grouped
NO_TOKEN = 0xFFFFFFFF

Ids = NDArray[np.uint32]


def group_tokens(tokens: Ids) -> tuple[Ids, Ids, Ids]:
    """Sort positions by token, for the operations that take `Groups`.

    tokens: (N,).

    Returns:
        order: (N,) positions, sorted by token; positions of equal tokens ascend.
        starts: (N + 1,) index in `order` at which each distinct token starts; N after the last.
        rows: (N,) the distinct tokens, ascending; `NO_TOKEN` after the last.
    """
    count = len(tokens)
    # A stable sort leaves positions of equal tokens ascending, so the order of additions is fixed.
    order = np.argsort(tokens, kind="stable").astype(np.uint32)
    distinct, first = np.unique(tokens[order], return_index=True)
    # After the last group, starts are N and rows are NO_TOKEN, so that kernels need no count.
    starts = np.full(count + 1, count, np.uint32)
    starts[: len(first)] = first
    rows = np.full(count, NO_TOKEN, np.uint32)
    rows[: len(distinct)] = distinct
    return order, starts, rows


class EmbeddingOperations(Recorder):
    """Lookups in embedding tables, and the gradients of the tables, computed by NumPy."""

    @recorded
    def embed_lookup(self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor) -> None:
        """Write out (N, C) = table[tokens], zeros for tokens >= V; tokens: (N,).

        table: (V, C), float32 or float16; or a sequence of tensors into which a table was cut, in
        order.
        """
        for part, first in _parts(table):
            # Row numbers in this part of the table. Tokens of other parts get numbers outside of
            # the part.
            rows = tokens.array.astype(np.int64) - first
            copy_rows(part.array, rows, out.array, keep=first > 0)

    @recorded
    def embed_backward_grouped(self, groups: Groups, grad_out: Tensor, grad_table: Tensor) -> None:
        """Add each row of grad_out (N, C) to the row of its token in grad_table (V, C).

        The order of additions is fixed. Gradients that are not finite are treated as 0. Rows of
        tokens beyond the table are left out.
        """
        _add_groups(groups, groups.rows.array, grad_out.array, grad_table.array)

    @recorded
    def embed_gradient_rows(self, groups: Groups, grad_out: Tensor, out: Tensor) -> None:
        """Write the gradient of the g-th distinct token to row g of out, and zeros to later rows.

        grad_out: (N, C). out: (U, C), where U is N or the number of distinct tokens.
        """
        out.array[...] = 0
        numbers = np.arange(groups.rows.size, dtype=np.uint32)
        _add_groups(groups, numbers, grad_out.array, out.array)


class GpuEmbedding(GpuRecorder, EmbeddingOperations):
    """Lookups in embedding tables, and the gradients of the tables, as GPU kernels."""

    def embed_lookup(self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor) -> None:
        # Rows of whole vectors need a quarter of the loads, stores and index arithmetic.
        width = out.shape[-1]
        self.embed_lookup_by(0 if width % FOUR else lanes_of_row(width), tokens, table, out)

    def embed_lookup_elements(
        self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor
    ) -> None:
        """Append `embed_lookup` as a kernel with one thread per element."""
        self.embed_lookup_by(0, tokens, table, out)

    def embed_lookup_by(
        self, lanes: int, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor
    ) -> None:
        """Append `embed_lookup`, a dispatch for each part of a table.

        The first dispatch writes zeros for tokens of other parts; later ones do not write these
        rows.

        lanes: threads that share a row, a power of two up to 256; each loads vectors of 16 bytes,
            and C is a multiple of 4. 0: one thread per element.
        """
        kernel, groups, shared = "01_embed_lookup", workgroups(out.size), {}
        if lanes:
            kernel, groups = "01_embed_lookup_rows", workgroups(tokens.size * lanes)
            shared = {"LANES": lanes}
        for part, first in _parts(table):
            self.dispatch(
                f"lm/{kernel}.wgsl",
                groups,
                {**shared, "KEEP": int(first > 0), "half": part.is_half},
                tokens=tokens,
                table=part,
                out=out,
                dims=dims(*out.shape, part.shape[0], first),
            )

    def embed_backward_grouped(self, groups: Groups, grad_out: Tensor, grad_table: Tensor) -> None:
        self._add_groups(groups, grad_out, grad_table, compact=False)

    def embed_gradient_rows(self, groups: Groups, grad_out: Tensor, out: Tensor) -> None:
        self.fill_zero(out)
        self._add_groups(groups, grad_out, out, compact=True)

    def _add_groups(self, groups: Groups, grad_out: Tensor, sums: Tensor, *, compact: bool) -> None:
        count, width = grad_out.shape
        slices = -(-count // SLICE)
        shared: dict[str, Tensor | AnyArray] = {
            "starts": groups.starts,
            "rows": groups.rows,
            "sums": sums,
            "pieces": self.scratch("embedding pieces", (max(slices, 1), 2, width)),
            "dims": dims(count, width, sums.shape[0], slices),
        }
        constants = {"SLICE": SLICE, "COMPACT": int(compact)}
        count = workgroups(slices * width)
        inputs = {"order": groups.order, "grad_out": grad_out}
        # Compute the sums inside each slice, then join the sums of groups across slices.
        self.dispatch("lm/01_embed_backward_grouped.wgsl", count, constants, **inputs, **shared)
        self.dispatch("lm/01_embed_backward_join.wgsl", count, constants, **shared)


def lanes_of_row(width: int) -> int:
    """Return the number of threads that share a row of `width` elements, a multiple of 4.

    A thread can have four loads in flight. A short row gets a thread for each load, a longer row at
    least a subgroup, and a very long row a whole workgroup. The number is a power of two.
    """
    vectors = width // FOUR
    wanted = max(-(-vectors // VECTORS_UNDER_WAY), min(vectors, SUBGROUP), 1)
    return min(1 << (wanted - 1).bit_length(), WORKGROUP_SIZE)


def _parts(table: Tensor | Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Return the parts of a table, each with the number of its first token."""
    parts = [table] if isinstance(table, Tensor) else list(table)
    firsts = np.cumsum([0, *(part.shape[0] for part in parts)])
    return [(part, int(first)) for part, first in zip(parts, firsts, strict=False)]


def copy_rows(
    table: NDArray[np.floating], rows: NDArray[np.integer], out: FloatArray, *, keep: bool = False
) -> None:
    """Copy table[rows] to out.

    Rows beyond the table become zeros; with `keep`, they are not written.
    """
    known = (rows >= 0) & (rows < len(table))
    if known.all() and table.dtype == out.dtype:
        np.take(table, rows, axis=0, out=out, mode="clip")  # other modes copy to a buffer first
        return
    out[known] = table[rows[known]]
    if not keep:
        out[~known] = 0


def _add_groups(groups: Groups, rows: Ids, grad_out: FloatArray, sums: FloatArray) -> None:
    """Add the sum of each group g to row rows[g] of `sums`; skip groups beyond the last row."""
    order, starts = groups.order.array, groups.starts.array
    values: FloatArray = grad_out[order]
    values[~np.isfinite(values)] = 0
    # Add up the values from the start of each group to the start of the next.
    count = int(np.count_nonzero(starts[:-1] < len(order)))
    totals = np.add.reduceat(values, starts[:count].astype(np.int64), axis=0)
    known = rows[:count] < len(sums)
    sums[rows[:count][known]] += totals[known]
