"""Causal attention with grouped key/value heads.

The scores of a sequence are never in memory all at once. Kernels keep running maxima and sums (T.
Dao et al., FlashAttention, arXiv 2205.14135) and recompute probabilities in the backward pass.
NumPy computes a block of queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.kernel_source import struct_dtype
from llmgpu.lm.ops.matrix_tiling import HALVES
from llmgpu.lm.ops.matrix_units import AttentionUnits, attention_units
from llmgpu.lm.ops.recording import GpuRecorder, Recorder, as_single, dims, recorded, workgroups
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    FloatArray,
    Tensor,
)

MAX_HEAD_DIM = 128  # widest head that the kernels support
BLOCK_ROWS = 64  # queries or keys of a workgroup, as in lm/attention_tiles.wgsl
COLUMNS = 64  # columns of the gradients of keys and values that a workgroup computes
SLOT_BYTES = 80  # bytes of workgroup memory for each slot of a tile; a tile has 160 or 288 slots
PARAMS = struct_dtype("lm/attention_sizes.wgsl", "AttentionParams")
MOST_WEIGHT_BYTES = 1 << 30  # most bytes of weights that are stored for the backward pass
BLOCK_SCORES = 1 << 22  # most scores that NumPy holds at a time, unless a block is a single query


def tile_constants(head_dim: int, limits: Mapping[str, int]) -> dict[str, int]:
    """Return the constants of lm/attention_tiles.wgsl that fit a device's limits."""
    memory = limits["max-compute-workgroup-storage-size"]
    depths = {depth: BLOCK_ROWS // 2 * (depth + 1) for depth in (8, 4)}  # number of slots, by depth
    depth = next(depth for depth, slots in depths.items() if slots * SLOT_BYTES <= memory)
    return {"HEAD_QUADS": head_dim // 4, "DEPTH_QUADS": depth, "TILE_SLOTS": depths[depth]}


class AttentionOperations(Recorder):
    """Attention, computed by NumPy, a block of queries at a time."""

    def attends_in_half(self, head_dim: int) -> bool:
        """Whether matrix units compute attention of float16 tensors for heads of this width."""
        return False

    @recorded
    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> None:
        """Write `out`, and `log_sum_exp` for the backward pass.

        starts: uint32 (N,), for each row the first position of its sequence to which it attends, at
            most the row's own position. Starts never decrease within a sequence. q, k, v and out
            are float32, or float16 if `attends_in_half`.

        Raises:
            DeviceError: the kernels don't support heads of this width.
        """

        def compute(batch: slice) -> None:
            firsts = starts.array.reshape(shape.batch, shape.seq)[batch]
            queries, target, sums = _by_head(shape, shape.group, batch, t.q, t.out, t.log_sum_exp)
            keys, values = _by_head(shape, 1, batch, t.k, t.v)
            queries, keys, values = map(as_single, (queries, keys, values))
            for rows in _blocks(shape):
                scores = _scores(queries, keys, rows, firsts, shape)
                # Softmax, shifted by the largest score so that no exponential overflows.
                largest = scores.max(-1, keepdims=True)
                scores -= largest
                p = np.exp(scores, out=scores)
                total = p.sum(-1, keepdims=True)
                sums[..., rows, :] = largest + np.log(total)
                p /= total
                target[..., rows, :] = p @ values[..., : rows.stop, :]

        self.over_rows(shape.batch, shape.batch * shape.heads * shape.seq**2, compute)

    @recorded
    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> None:
        """Write the gradients of q, k and v, float32, after `attention` of the same tensors.

        grad.out has the type of t.out.

        Raises:
            DeviceError: the kernels don't support heads of this width.
        """

        def compute(batch: slice) -> None:
            firsts = starts.array.reshape(shape.batch, shape.seq)[batch]
            of_queries = t.q, t.out, t.log_sum_exp, grad.out, grad.q
            queries, outs, sums, grads, target_q = _by_head(shape, shape.group, batch, *of_queries)
            of_keys = t.k, t.v, grad.k, grad.v
            keys, values, target_k, target_v = _by_head(shape, 1, batch, *of_keys)
            target_k[...] = target_v[...] = 0
            queries, outs, grads = map(as_single, (queries, outs, grads))
            keys, values = map(as_single, (keys, values))
            for rows in _blocks(shape):
                seen = np.s_[..., : rows.stop, :]
                # Recompute the probabilities of the block, then the gradients of its scores.
                p = _scores(queries, keys, rows, firsts, shape)
                p -= sums[..., rows, :]
                np.exp(p, out=p)
                grad_out = grads[..., rows, :]
                # The gradient of a softmax is ds = p (dp - delta), where delta, the sum of p dp
                # over the row, equals grad_out . out.
                delta = (grad_out * outs[..., rows, :]).sum(-1, keepdims=True)
                ds = grad_out @ values[seen].swapaxes(-1, -2)
                ds -= delta
                ds *= p
                ds *= np.float32(shape.scale)
                # A block completes the gradients of its queries. The gradients of keys and values
                # are sums over all blocks.
                target_q[..., rows, :] = ds @ keys[seen]
                _add_group(target_k[seen], ds, queries[..., rows, :])
                _add_group(target_v[seen], p, grad_out)

        self.over_rows(shape.batch, shape.batch * shape.heads * shape.seq**2, compute)


class GpuAttention(GpuRecorder, AttentionOperations):
    """Attention, as GPU kernels."""

    def attends_in_half(self, head_dim: int) -> bool:
        return attention_units(self.device, head_dim, gradients=True) is not None

    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> None:
        units = self._units(t, shape, gradients=False)
        rows = BLOCK_ROWS if units is None else units.tile.rows
        groups = shape.batch * shape.heads * -(-shape.seq // rows)
        self._over_tiles("05_attention", groups, shape, units, **vars(t), starts=starts)

    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> None:
        units = self._units(t, shape, gradients=True)
        rows, column_sets = BLOCK_ROWS, -(-shape.head_dim // COLUMNS)
        if units is not None:
            rows, column_sets = units.tile.rows, units.column_sets
        blocks = shape.batch * -(-shape.seq // rows)
        inputs = {"q": t.q, "k": t.k, "v": t.v, "grad_out": grad.out, "log_sum_exp": t.log_sum_exp}
        inputs["delta"] = self._delta(t.out, grad.out, starts, shape)
        of_queries, of_keys = "10_attention_backward_q", "10_attention_backward_kv"
        groups, key_groups = blocks * shape.heads, blocks * shape.kv_heads * column_sets
        outputs = {"grad_k": grad.k, "grad_v": grad.v}
        weights = None if units is None else self._stored_weights(units, shape)
        if weights is None:
            self._over_tiles(of_queries, groups, shape, units, **inputs, grad_q=grad.q)
            self._over_tiles(of_keys, key_groups, shape, units, **inputs, **outputs)
            return
        # The kernel of the gradients of queries stores the weights of scores for the other kernel.
        self._over_tiles(
            of_queries,
            groups,
            shape,
            units,
            {"stores": 1},
            **inputs,
            grad_q=grad.q,
            weights=weights,
        )
        inputs = {name: inputs[name] for name in ("q", "grad_out", "delta")} | {"weights": weights}
        self._over_tiles(f"{of_keys}_stored", key_groups, shape, units, **inputs, **outputs)

    def _stored_weights(self, units: AttentionUnits, shape: AttentionShape) -> Tensor | None:
        """Return scratch memory for the weights of all scores; None if they must not be stored.

        The weights of a score are its probability and its gradient, two float16.
        """
        step = units.tile.step
        steps = -(-shape.seq // step)
        sizes = (shape.batch * shape.heads, steps, shape.seq, 2 * step)
        has_room = units.stored_memory <= self.device.limits["max-compute-workgroup-storage-size"]
        has_room &= 2 * prod(sizes) <= min(MOST_WEIGHT_BYTES, self.max_tensor_bytes)
        if shape.saves_memory or not has_room:
            return None
        return self.scratch("attention weights", sizes, np.float16)

    def _units(
        self, t: AttentionTensors, shape: AttentionShape, *, gradients: bool
    ) -> AttentionUnits | None:
        """Return the matrix units for half-precision tensors; None for float32 tensors."""
        if not t.q.is_half:
            return None
        if (units := attention_units(self.device, shape.head_dim, gradients=gradients)) is None:
            raise DeviceError(
                f"{self.device.name} has no matrix units for heads {shape.head_dim} wide; "
                "use --precision f32"
            )
        return units

    def _over_tiles(
        self,
        kernel: str,
        groups: int,
        shape: AttentionShape,
        units: AttentionUnits | None,
        more: Mapping[str, int] = MappingProxyType({}),
        /,
        **tensors: Tensor,
    ) -> None:
        """Dispatch a kernel with one workgroup per tile, or its variant for matrix units.

        more: further settings of that variant.
        """
        params = attention_params(shape, shape.seq, groups)
        if units is None:
            file, settings = f"lm/{kernel}.wgsl", tile_constants(shape.head_dim, self.device.limits)
        else:
            file, settings = f"lm/{kernel}_units.wgsl", {**units.settings, **more}
        self.dispatch(file, groups, settings, params=params, **tensors)

    def _delta(
        self, out: Tensor, grad_out: Tensor, starts: Tensor, shape: AttentionShape
    ) -> Tensor:
        """Return the sums of out * grad_out over each head, (N, H), followed by the starts (N,)."""
        rows = out.shape[0]
        count = rows * shape.heads
        delta = self.scratch("attention delta", (count + rows,))
        tensors = {"out": out, "grad_out": grad_out, "delta": delta, "starts": starts}
        kernel, constants = "lm/10_attention_delta.wgsl", {"HEAD_QUADS": shape.head_dim // 4}
        if out.is_half:
            kernel = "lm/10_attention_delta_half.wgsl"
            constants = {"vectors": shape.head_dim // HALVES}
        sizes = dims(count, 0, rows)
        self.dispatch(kernel, workgroups(count), constants, **tensors, dims=sizes)
        return delta


def attention_params(shape: AttentionShape, seq: int, workgroups: int) -> NDArray[np.void]:
    """Return the contents of the kernels' uniform; seq: T, or the number of rows of the cache.

    Raises:
        DeviceError: the kernels don't support heads of this width.
    """
    if shape.head_dim % 4 or not 4 <= shape.head_dim <= MAX_HEAD_DIM:
        raise DeviceError(
            f"heads are {shape.head_dim} wide, but the kernels take multiples of 4 up to "
            f"{MAX_HEAD_DIM}; change the number of heads or use --device cpu"
        )
    scales = (shape.scale, shape.scale * np.log2(np.e))
    starts = shape.batch * shape.seq * shape.heads  # index of the starts in `delta`
    return np.array([(seq, shape.heads, shape.kv_heads, workgroups, *scales, starts)], PARAMS)


def _by_head(shape: AttentionShape, group: int, batch: slice, *tensors: Tensor) -> list[FloatArray]:
    """Return a view (b, K, group, T, D) of the sequences `batch` of each tensor.

    group: H / K for queries, 1 for keys and values. tensors: (N, K * group * D), where D is 1 for
    a number per head.
    """
    sizes = shape.batch, shape.seq, shape.kv_heads, group, -1
    return [x.array.reshape(sizes).transpose(0, 2, 3, 1, 4)[batch] for x in tensors]


def _blocks(shape: AttentionShape) -> Iterator[slice]:
    """Yield slices of queries: as many queries as have BLOCK_SCORES scores, but at least one."""
    rows = max(1, BLOCK_SCORES // max(1, shape.batch * shape.heads * shape.seq))
    for start in range(0, shape.seq, rows):
        yield slice(start, min(start + rows, shape.seq))


def _scores(
    queries: FloatArray,
    keys: FloatArray,
    rows: slice,
    firsts: NDArray[np.uint32],
    shape: AttentionShape,
) -> FloatArray:
    """Return scaled scores of a block of queries with all keys up to the block's end.

    firsts: (B, T), the first key to which each query attends. Scores of earlier keys, and of keys
    after the query, are -inf.
    """
    seen = keys[..., : rows.stop, :].swapaxes(-1, -2)
    scores: FloatArray = queries[..., rows, :] @ seen
    scores *= np.float32(shape.scale)
    # Causal: a query sees no key after its own position.
    positions = np.arange(rows.stop)
    np.copyto(scores, -np.inf, where=positions > positions[rows, None])
    if firsts[:, rows].any():
        earlier = positions < firsts[:, rows, None]
        np.copyto(scores, -np.inf, where=earlier[:, None, None])
    return scores


def _add_group(target: FloatArray, weights: FloatArray, rows: FloatArray) -> None:
    """Add weights^T rows to target (B, K, 1, keys, D), summed over the heads of each group."""
    target += (weights.swapaxes(-1, -2) @ rows).sum(2, keepdims=True)
