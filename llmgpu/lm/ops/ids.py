"""Operations at both ends of a model: the lookup of ids in tables, and the loss of target ids.

Label smoothing: C. Szegedy et al., Rethinking the Inception Architecture, arXiv 1512.00567. z-loss:
A. Chowdhery et al., PaLM, arXiv 2204.02311.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import (
    FOUR,
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Groups, Losses, Tensor

VECTORS_UNDER_WAY = 4  # loads that a thread of embed_lookup_rows starts before it stores
SUBGROUP = 32  # least threads that share a row, if the row has as many vectors
SLICE = 32  # sorted positions for one thread of embed_backward_grouped
NO_TOKEN = 0xFFFFFFFF
LEAST_THREADS = 64  # least threads of a workgroup; a workgroup computes one row
THREAD_LOGITS = 4  # logits that a thread reads at once

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


class IdOperations(Recorder):
    """Lookups, the gradients of tables, cross-entropy, and the largest logits, by NumPy."""

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

    @recorded
    def cross_entropy(self, logits: Tensor, losses: Losses, params: Tensor, tokens: int) -> None:
        """Write the loss of each row, and overwrite the logits by their gradient.

        A logit that is NaN or infinite makes the loss and the gradient of its row NaN.

        logits: (N, V), float32, or float16 if V is a multiple of 4.
        tokens: W, the number of tokens. The first W of the V columns belong to tokens. All other
            columns are not read, and their gradient is 0.
        losses: the loss and the gradient of a row whose target is W or more are 0.
        params: (4,): factor of the gradients (1 / number of valid targets, 0 if there are none),
            label smoothing, weight of the z-loss, 1 / W.
        """

        def compute(rows: slice) -> None:
            block = as_single(logits.array[rows])
            block[:, tokens:] = 0
            found = _cross_entropy(block[:, :tokens], losses.targets.array[rows], params.array)
            for part, values in zip(losses.parts, found, strict=True):
                part.array[rows] = values
            put(block, logits.array[rows])

        self.over_blocks(compute, *logits.shape)

    @recorded
    def argmax(self, logits: Tensor, out: Tensor, tokens: int) -> None:
        """Write, for each row, the column of the largest of the first `tokens` logits.

        If several are equal, the first column is written. logits: (N, V). out: uint32 (N,).
        """
        out.array[...] = logits.array[:, :tokens].argmax(axis=1)

    @recorded
    def sum_losses(self, losses: Tensor, out_sum: Tensor) -> None:
        """Write the sum of the losses (N,) to out_sum (1,)."""
        out_sum.array.flat[0] = losses.array.sum(dtype=np.float64)


class GpuIds(GpuRecorder, IdOperations):
    """The operations of `IdOperations`, as GPU kernels."""

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

    def cross_entropy(self, logits: Tensor, losses: Losses, params: Tensor, tokens: int) -> None:
        threads = thread_count(-(-logits.shape[1] // THREAD_LOGITS), LEAST_THREADS)
        self.cross_entropy_by(threads, logits, losses, params, tokens)

    def cross_entropy_by(
        self, threads: int, logits: Tensor, losses: Losses, params: Tensor, tokens: int
    ) -> None:
        """Append `cross_entropy` with `threads` threads for each row, a power of two up to 256."""
        rows, width = logits.shape
        self.dispatch(
            "lm/07_cross_entropy_half.wgsl" if logits.is_half else "lm/07_cross_entropy.wgsl",
            rows,
            {"WORKGROUP_SIZE": threads},
            logits=logits,
            tgts=losses.targets,
            losses=losses.cross_entropy,
            dims=dims(rows, width, tokens),
            params=params,
            smoothing=losses.smoothing,
            z_losses=losses.z_loss,
        )

    def argmax(self, logits: Tensor, out: Tensor, tokens: int) -> None:
        rows, width = logits.shape
        threads = thread_count(tokens, LEAST_THREADS)
        sizes = dims(rows, width, tokens)
        constants = {"WORKGROUP_SIZE": threads}
        self.dispatch("lm/07_argmax.wgsl", rows, constants, logits=logits, out=out, dims=sizes)

    def sum_losses(self, losses: Tensor, out_sum: Tensor) -> None:
        self.dispatch(
            "lm/07_sum_losses.wgsl", 1, losses=losses, out_sum=out_sum, n=dims(losses.size)
        )


def lanes_of_row(width: int) -> int:
    """Return the number of threads that share a row of `width` elements, a multiple of 4.

    A thread can have four loads in flight. A short row gets a thread for each load, a longer row at
    least a subgroup, and a very long row a whole workgroup. The number is a power of two.
    """
    vectors = width // FOUR
    return thread_count(max(-(-vectors // VECTORS_UNDER_WAY), min(vectors, SUBGROUP), 1))


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


def _cross_entropy(
    logits: FloatArray, targets: NDArray[np.uint32], params: FloatArray
) -> tuple[FloatArray, ...]:
    """Return the parts of the losses of a block of rows; overwrite logits by their gradient."""
    counted = targets < logits.shape[1]
    is_bad = counted & ~np.isfinite(logits).all(axis=1)
    logits[is_bad | ~counted] = 0
    parts = _loss_and_gradient(logits, np.where(counted, targets, 0), params)
    for array in (*parts, logits):
        array[~counted] = 0
        array[is_bad] = np.nan
    return parts


@np.errstate(over="ignore")  # a difference of logits may overflow to -inf, whose exponential is 0
def _loss_and_gradient(
    logits: FloatArray, index: NDArray[np.uint32], params: FloatArray
) -> tuple[FloatArray, ...]:
    """Compute `_cross_entropy` for rows of finite logits whose targets, `index`, are tokens.

    The kernel uses the same formulas. They have no cancellation if logits are large: 1 - p of the
    target is computed as the sum of all other probabilities.
    """
    inv_norm, alpha, beta, inv_vocabulary = params
    target = np.arange(len(logits)), index
    largest = logits.max(axis=1)
    # Distances to the largest logit are not above 0, so exponentials can't overflow.
    logits -= largest[:, None]
    losses: FloatArray = -logits[target]
    smoothing = np.zeros_like(losses)
    if alpha > 0:
        mean = logits.mean(axis=1, dtype=np.float64).astype(np.float32)
        smoothing = alpha * (logits[target] - mean)
    np.exp(logits, out=logits)
    # rest: sum of all exponentials but the target's. rest / total is 1 - p, accurate even for p
    # near 1.
    target_part = logits[target]
    logits[target] = 0
    rest = logits.sum(axis=1)
    total = rest + target_part
    lse = largest + np.log(total)
    z_losses = beta * lse * lse
    # If the target has the largest logit, total is 1 + rest. A small `rest` would be rounded away
    # in this sum, but log1p keeps it.
    log_total = np.where(target_part == 1, np.log1p(rest), np.log(total))
    losses += log_total

    # The gradient is p - q, where q is the smoothed target, plus the gradient of the z-loss. The
    # target's entry is computed from `rest`.
    pull = 2 * beta * lse
    spread = alpha * inv_vocabulary
    logits *= ((1 + pull) / total)[:, None]
    logits -= spread
    logits[target] = (pull * target_part - rest) / total + alpha - spread
    logits *= inv_norm
    return losses, smoothing, z_losses
