"""Rows of a table for token ids, and the gradient of the table.

`embed_lookup` takes the best kernel for its table; the others are there by their own names, to be
compared with it. Gradients that are not finite count as 0, and tokens beyond the table have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.tensor import Tensor

FILE = "lm/01_embedding.wgsl"
GROUPED = "lm/01_embedding_grouped.wgsl"
COMPARED = "lm/01_embedding_compared.wgsl"
WORKGROUP_SIZE = 256
TILE_COLUMNS, TILE_TOKENS = 32, 8  # of a workgroup of embed_lookup_2d
VECTOR = 4  # elements of one load
VECTORS_UNDER_WAY = 4  # loads that a thread of embed_lookup_rows begins before it stores
SUBGROUP = 32  # threads that share a row at least, where it is long enough
SLICE = 32  # sorted positions that one thread of embed_backward_grouped walks
NO_TOKEN = 0xFFFFFFFF

Bindings = dict[str, Tensor | NDArray[np.uint32]]


def group_tokens(
    tokens: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Sort positions by their token, as the grouped operations take them.

    tokens: (N,).

    Returns:
        order: (N,) positions, those of equal tokens next to each other and ascending.
        starts: (N + 1,) where in `order` each distinct token begins; N behind the last.
        rows: (N,) the distinct tokens, ascending; `NO_TOKEN` behind the last.
    """
    count = len(tokens)
    order = np.argsort(tokens, kind="stable").astype(np.uint32)
    distinct, first = np.unique(tokens[order], return_index=True)
    starts = np.full(count + 1, count, np.uint32)
    starts[: len(first)] = first
    rows = np.full(count, NO_TOKEN, np.uint32)
    rows[: len(distinct)] = distinct
    return order, starts, rows


class NumpyEmbedding(NumpyRecorder):
    """The operations on arrays."""

    def embed_lookup(self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor) -> None:
        """Out = table[tokens], zeros for tokens >= V; (N,), (V, C), (N, C).

        table: float32 or float16; several tensors are the parts of one table, in order.
        """
        parts = _parts(table)

        def step() -> None:
            for part, first in parts:
                rows = tokens.array.astype(np.int64) - first
                _copy_rows(part.array, rows, out.array, keep=first > 0)

        self.append(step)

    embed_lookup_elements = embed_lookup
    embed_lookup_2d = embed_lookup
    embed_lookup_token = embed_lookup
    embed_lookup_rows_scalar = embed_lookup

    def embed_lookup_rows(
        self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor, lanes: int = 0
    ) -> None:
        """Out = table[tokens]; `lanes` says nothing here."""
        self.embed_lookup(tokens, table, out)

    def embed_lookup_positions(
        self, tokens: Tensor, table: Tensor, positions: Tensor, position_table: Tensor, out: Tensor
    ) -> None:
        """Out = table[tokens] + position_table[positions], each 0 beyond its table.

        (N,), (V, C), (N,), (P, C), (N, C); float32.
        """

        def step() -> None:
            rows = np.empty_like(out.array)
            _copy_rows(position_table.array, positions.array, rows)
            _copy_rows(table.array, tokens.array, out.array)
            out.array[...] += rows

        self.append(step)

    def embed_backward(self, tokens: Tensor, grad_out: Tensor, grad_table: Tensor) -> None:
        """Add the rows of grad_out to those of their tokens; (N,), (N, C), (V, C)."""

        def step() -> None:
            _add_groups(*group_tokens(tokens.array), grad_out.array, grad_table.array)

        self.append(step)

    embed_backward_rows = embed_backward

    def embed_backward_grouped(
        self, order: Tensor, starts: Tensor, rows: Tensor, grad_out: Tensor, grad_table: Tensor
    ) -> None:
        """Add the rows of grad_out to those of their tokens, in a fixed order.

        order, starts, rows: what `group_tokens` returns; grad_out (N, C), grad_table (V, C).
        """

        def step() -> None:
            groups = (order.array, starts.array, rows.array)
            _add_groups(*groups, grad_out.array, grad_table.array)

        self.append(step)

    def embed_gradient_rows(
        self, order: Tensor, starts: Tensor, rows: Tensor, grad_out: Tensor, out: Tensor
    ) -> None:
        """Write the gradient of token rows[g] to row g of out, zeros behind the last.

        order, starts, rows: what `group_tokens` returns; grad_out (N, C).
        out: (U, C), U being N or, where it is known, the number of distinct tokens.
        """

        def step() -> None:
            out.array[...] = 0
            numbers = np.arange(len(rows.array), dtype=np.uint32)
            _add_groups(order.array, starts.array, numbers, grad_out.array, out.array)

        self.append(step)

    def fill_zero(self, tensor: Tensor) -> None:
        """Write zeros; any shape and type."""

        def step() -> None:
            tensor.array[...] = 0

        self.append(step)


class GpuEmbedding(GpuRecorder):
    """The operations as kernels."""

    def embed_lookup(self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor) -> None:
        """Out = table[tokens], zeros for tokens >= V; (N,), (V, C), (N, C).

        table: float32 or float16; several tensors are the parts of one table, in order.
        """
        # Rows of whole vectors: a quarter of the loads, stores and index arithmetic.
        if out.shape[-1] % VECTOR:
            self.embed_lookup_elements(tokens, table, out)
        else:
            self.embed_lookup_rows(tokens, table, out)

    def embed_lookup_elements(
        self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor
    ) -> None:
        """Out = table[tokens], one thread an element; arguments as `embed_lookup` has them."""
        groups = _groups(out.size)
        self._dispatch_parts("embed_lookup", "", groups, {}, tokens, table, out)

    def embed_lookup_rows(
        self, tokens: Tensor, table: Tensor | Sequence[Tensor], out: Tensor, lanes: int = 0
    ) -> None:
        """Out = table[tokens] by 16 bytes; arguments as `embed_lookup` has them.

        lanes: threads that share a row, a power of two up to 256; 0: as many as suit its length.

        Raises:
            ValueError: C is no multiple of 4.
        """
        width = out.shape[-1]
        if width % VECTOR:
            raise ValueError(f"{out.name} has rows of {width} elements, no multiple of {VECTOR}")
        lanes = lanes or lanes_of_row(width)
        self._dispatch_parts(
            "embed_lookup_rows",
            "_vectors",
            _groups(tokens.size * lanes),
            {"LANES": lanes},
            tokens,
            table,
            out,
        )

    def embed_lookup_2d(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        """Out = table[tokens], tiles of 8 tokens by 32 columns; float32."""
        tiles_a_token = -(-out.shape[-1] // TILE_COLUMNS)
        groups = tiles_a_token * -(-tokens.size // TILE_TOKENS)
        self._dispatch_compared("embed_lookup_2d", groups, tokens, table, out)

    def embed_lookup_token(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        """Out = table[tokens], one thread a token; float32."""
        self._dispatch_compared("embed_lookup_token", _groups(tokens.size), tokens, table, out)

    def embed_lookup_rows_scalar(self, tokens: Tensor, table: Tensor, out: Tensor) -> None:
        """Out = table[tokens], one workgroup a token, by 4 bytes; float32."""
        self._dispatch_compared("embed_lookup_rows_scalar", tokens.size, tokens, table, out)

    def embed_lookup_positions(
        self, tokens: Tensor, table: Tensor, positions: Tensor, position_table: Tensor, out: Tensor
    ) -> None:
        """Out = table[tokens] + position_table[positions], each 0 beyond its table.

        (N,), (V, C), (N,), (P, C), (N, C); float32.
        """
        self.dispatch(
            f"{FILE}:embed_lookup_positions",
            _groups(out.size),
            tokens=tokens,
            table=table,
            out=out,
            positions=positions,
            position_table=position_table,
            sum_dims=dims(*out.shape, table.shape[0], position_table.shape[0]),
        )

    def embed_backward(self, tokens: Tensor, grad_out: Tensor, grad_table: Tensor) -> None:
        """Add the rows of grad_out to those of their tokens; (N,), (N, C), (V, C).

        One thread an element; the order of additions is not fixed.
        """
        groups = _groups(grad_out.size)
        self._dispatch_atomic("embed_backward", groups, tokens, grad_out, grad_table)

    def embed_backward_rows(self, tokens: Tensor, grad_out: Tensor, grad_table: Tensor) -> None:
        """Do what `embed_backward` does with one workgroup a token."""
        self._dispatch_atomic("embed_backward_rows", tokens.size, tokens, grad_out, grad_table)

    def embed_backward_grouped(
        self, order: Tensor, starts: Tensor, rows: Tensor, grad_out: Tensor, grad_table: Tensor
    ) -> None:
        """Add the rows of grad_out to those of their tokens, in a fixed order.

        order, starts, rows: what `group_tokens` returns; grad_out (N, C), grad_table (V, C).
        """
        self._add_groups(order, starts, rows, grad_out, grad_table, compact=False)

    def embed_gradient_rows(
        self, order: Tensor, starts: Tensor, rows: Tensor, grad_out: Tensor, out: Tensor
    ) -> None:
        """Write the gradient of token rows[g] to row g of out, zeros behind the last.

        order, starts, rows: what `group_tokens` returns; grad_out (N, C).
        out: (U, C), U being N or, where it is known, the number of distinct tokens.
        """
        self.fill_zero(out)
        self._add_groups(order, starts, rows, grad_out, out, compact=True)

    def fill_zero(self, tensor: Tensor) -> None:
        """Write zeros; any shape and type."""
        words, rest = -(-tensor.nbytes // 4), tensor.nbytes % 4
        kept = 0xFFFFFFFF << 8 * rest & 0xFFFFFFFF if rest else 0
        self.dispatch(
            f"{FILE}:fill_zero", _groups(words), words=tensor, words_dims=dims(words, kept)
        )

    def _dispatch_parts(
        self,
        kernel: str,
        elements: str,
        groups: int,
        constants: dict[str, int],
        tokens: Tensor,
        table: Tensor | Sequence[Tensor],
        out: Tensor,
    ) -> None:
        """Dispatch a lookup for each part of a table; `elements` is what bindings' names end on."""
        for part, first in _parts(table):
            suffix = "_w16" if part.is_half else ""
            bindings: Bindings = {
                f"tokens{suffix}": tokens,
                f"table{elements}{suffix}": part,
                f"out{elements}{suffix}": out,
                f"dims{suffix}": dims(*out.shape, part.shape[0], first),
            }
            keep = {"KEEP": int(first > 0)}
            self.dispatch(f"{FILE}:{kernel}{suffix}", groups, {**constants, **keep}, **bindings)

    def _dispatch_compared(
        self, kernel: str, groups: int, tokens: Tensor, table: Tensor, out: Tensor
    ) -> None:
        sizes = dims(*out.shape, table.shape[0])
        self.dispatch(
            f"{COMPARED}:{kernel}", groups, tokens=tokens, table=table, out=out, dims=sizes
        )

    def _dispatch_atomic(
        self, kernel: str, groups: int, tokens: Tensor, grad_out: Tensor, grad_table: Tensor
    ) -> None:
        self.dispatch(
            f"{FILE}:{kernel}",
            groups,
            tokens=tokens,
            grad_out=grad_out,
            grad_table=grad_table,
            dims=dims(*grad_out.shape, grad_table.shape[0]),
        )

    def _add_groups(
        self,
        order: Tensor,
        starts: Tensor,
        rows: Tensor,
        grad_out: Tensor,
        sums: Tensor,
        *,
        compact: bool,
    ) -> None:
        count, width = grad_out.shape
        slices = -(-count // SLICE)
        pieces = self.scratch("embedding pieces", (max(slices, 1), 2, width))
        shared: Bindings = {
            "starts": starts,
            "rows": rows,
            "group_sums": sums,
            "pieces": pieces,
            "group_dims": dims(count, width, sums.shape[0], slices),
        }
        constants = {"SLICE": SLICE, "COMPACT": int(compact)}
        groups = _groups(slices * width)
        self.dispatch(
            f"{GROUPED}:embed_backward_grouped",
            groups,
            constants,
            order=order,
            row_grads=grad_out,
            **shared,
        )
        self.dispatch(f"{GROUPED}:embed_backward_join", groups, constants, **shared)


def lanes_of_row(width: int) -> int:
    """Return how many threads share a row of `width` elements, a multiple of 4.

    A thread has up to four loads under way. Short rows are shared by no more threads than have a
    load to do, and long ones by a whole workgroup; between, a subgroup at least reads one row.
    """
    vectors = width // VECTOR
    wanted = max(-(-vectors // VECTORS_UNDER_WAY), min(vectors, SUBGROUP), 1)
    return min(1 << (wanted - 1).bit_length(), WORKGROUP_SIZE)


def _parts(table: Tensor | Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Return the parts of a table with the first token of each."""
    parts = [table] if isinstance(table, Tensor) else list(table)
    firsts = np.cumsum([0, *(part.shape[0] for part in parts)])
    return [(part, int(first)) for part, first in zip(parts, firsts, strict=False)]


def _groups(threads: int) -> int:
    return -(-threads // WORKGROUP_SIZE)


def _copy_rows(
    table: NDArray[np.floating],
    rows: NDArray[np.integer],
    out: NDArray[np.float32],
    *,
    keep: bool = False,
) -> None:
    """Copy table[rows] to out; where there is no such row, write zeros or `keep` what is there."""
    known = (rows >= 0) & (rows < len(table))
    if known.all() and table.dtype == out.dtype:
        np.take(table, rows, axis=0, out=out, mode="clip")  # the one mode that makes no copy first
        return
    out[known] = table[rows[known]]
    if not keep:
        out[~known] = 0


def _add_groups(
    order: NDArray[np.uint32],
    starts: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    grad_out: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add each group's sum to row rows[g] of sums, where there is one."""
    groups = int(np.count_nonzero(starts[:-1] < len(order)))
    if not groups:
        return
    values = grad_out[order]
    values[~np.isfinite(values)] = 0
    totals = np.add.reduceat(values, starts[:groups].astype(np.int64), axis=0)
    known = rows[:groups] < len(sums)
    sums[rows[:groups][known]] += totals[known]
