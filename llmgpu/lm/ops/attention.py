"""Causal attention with grouped key/value heads.

The scores of a sequence are never in memory all at once. Kernels keep running maxima and sums (T.
Dao et al., FlashAttention, arXiv 2205.14135) and recompute probabilities in the backward pass.
NumPy computes a block of queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import DeviceError
from llmgpu.kernel_source import struct_dtype
from llmgpu.lm.ops.layers import columns_of, turned
from llmgpu.lm.ops.matrix_tiling import HALVES
from llmgpu.lm.ops.matrix_units import AttentionUnits, attention_units
from llmgpu.lm.ops.recording import (
    FOUR,
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    recorded,
    row_blocks,
    workgroups,
)
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    FloatArray,
    PackedGradient,
    Tensor,
    spanning,
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

        self.over_blocks(compute, shape.batch, shape.heads * shape.seq**2)

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

        self.over_blocks(compute, shape.batch, shape.heads * shape.seq**2)

    def attention_backward_to_packed(
        self, t: AttentionTensors, grad: PackedGradient, starts: Tensor, shape: AttentionShape
    ) -> None:
        """Write grad.packed, after `attention` of the same float16 tensors."""
        tensors = {"q": t.q, "k": t.k, "v": t.v}
        single = {name: self.scratch(f"grad_{name}", x.shape) for name, x in tensors.items()}
        gradients = AttentionGradients(**single, out=grad.out)
        self.attention_backward(t, gradients, starts, shape)
        self._pack(gradients, grad)

    @recorded
    def _pack(self, single: AttentionGradients, grad: PackedGradient) -> None:
        rotation = grad.rotation
        for tensor, columns in columns_of(grad.starts, single):
            rows = tensor.array
            if tensor is not single.v:
                rows = turned(rows, rotation, rotation.positions.array, inverse=True)
            np.copyto(grad.packed.array[:, columns], rows, casting="same_kind")


class GpuAttention(GpuRecorder, AttentionOperations):
    """Attention, as GPU kernels."""

    def attends_in_half(self, head_dim: int) -> bool:
        return attention_units(self.device, head_dim, gradients=True) is not None

    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> None:
        units = self._units(t, shape, gradients=False)
        rows = BLOCK_ROWS if units is None else units.rows
        groups = shape.batch * shape.heads * -(-shape.seq // rows)
        if units is None:
            self._over_tiles("05_attention", groups, shape, **vars(t), starts=starts)
            return
        heads, offsets = _as_one_binding(HALVES, t.q, t.k, t.v)
        params = attention_params(shape, shape.seq, groups, offsets)
        tensors = {"out": t.out, "log_sum_exp": t.log_sum_exp, "starts": starts, "heads": heads}
        self.dispatch(
            "lm/05_attention_units.wgsl", groups, units.settings, params=params, **tensors
        )

    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> None:
        units = self._units(t, shape, gradients=True)
        if units is not None:
            of_keys, offsets = _as_one_binding(FOUR, grad.k, grad.v)
            strides = [tensor.shape[1] // FOUR for tensor in (grad.q, grad.k)]
            tensors = {"grad_out": grad.out, "starts": starts}
            places, gradients = [0, *offsets, *strides], (grad.q, of_keys)
            self._backward_on_units(units, t, gradients, places, shape, {}, tensors)
            return
        blocks = shape.batch * -(-shape.seq // BLOCK_ROWS)
        inputs = {"q": t.q, "k": t.k, "v": t.v, "grad_out": grad.out, "log_sum_exp": t.log_sum_exp}
        inputs["delta"] = self._delta(t.out, grad.out, starts, shape)
        groups = blocks * shape.heads
        self._over_tiles("10_attention_backward_q", groups, shape, **inputs, grad_q=grad.q)
        groups = blocks * shape.kv_heads * -(-shape.head_dim // COLUMNS)
        outputs = {"grad_k": grad.k, "grad_v": grad.v}
        self._over_tiles("10_attention_backward_kv", groups, shape, **inputs, **outputs)

    def attention_backward_to_packed(
        self, t: AttentionTensors, grad: PackedGradient, starts: Tensor, shape: AttentionShape
    ) -> None:
        units = self._units(t, shape, gradients=True)
        assert units is not None, "float16 heads need matrix units"
        tables, (_, sines) = _as_one_binding(FOUR, grad.rotation.cosines, grad.rotation.sines)
        stride = grad.packed.shape[1] // HALVES
        places = [*(start // HALVES for start in grad.starts), stride, stride, sines]
        tensors = {"grad_out": grad.out, "starts": starts, "tables": tables}
        gradients, settings = (grad.packed, grad.packed), {"packed": 1}
        self._backward_on_units(units, t, gradients, places, shape, settings, tensors)

    def _backward_on_units(
        self,
        units: AttentionUnits,
        t: AttentionTensors,
        gradients: tuple[Tensor, Tensor],
        places: Sequence[int],
        shape: AttentionShape,
        settings: dict[str, int],
        tensors: dict[str, Tensor],
    ) -> None:
        """Dispatch the kernels of gradients for matrix units.

        gradients: the memory of the gradients of queries, and the memory of the others. places:
            values of the fields of `params` from `grad_queries` on. tensors: by the names of
            bindings that all these kernels have.
        """
        heads, offsets = _as_one_binding(HALVES, t.q, t.k, t.v)

        def dispatch(kernel: str, groups: int, more: dict[str, int], **inputs: Tensor) -> None:
            groups *= shape.batch * -(-shape.seq // units.rows)
            params = attention_params(shape, shape.seq, groups, [*offsets, *places])
            file, constants = f"lm/10_attention_backward_{kernel}_units.wgsl", units.settings | more
            bound = {"heads": heads, "gradients": gradients[kernel != "q"], **tensors, **inputs}
            self.dispatch(file, groups, constants, params=params, **bound)

        # The kernel for queries keeps the weights of scores for the kernel for keys and values, or
        # else delta, from which that kernel computes the weights again.
        weights = self._stored_weights(units, shape)
        kept = weights or self.scratch("attention delta", t.log_sum_exp.shape)
        stores, sums = {"stores": int(weights is not None)}, t.log_sum_exp
        dispatch("q", shape.heads, settings | stores, log_sum_exp=sums, out=t.out, kept=kept)
        groups = shape.kv_heads * units.column_sets
        if weights is None:
            dispatch("kv", groups, settings, log_sum_exp=sums, delta=kept)
        else:
            dispatch("kv_stored", groups, settings, weights=weights)

    def _stored_weights(self, units: AttentionUnits, shape: AttentionShape) -> Tensor | None:
        """Return scratch memory for the weights of all scores; None if they must not be stored.

        The weights of a score are its probability and its gradient, two float16.
        """
        step = units.step
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
        self, kernel: str, groups: int, shape: AttentionShape, /, **tensors: Tensor
    ) -> None:
        """Dispatch a kernel for float32 tensors with one workgroup per tile."""
        params = attention_params(shape, shape.seq, groups)
        constants = tile_constants(shape.head_dim, self.device.limits)
        self.dispatch(f"lm/{kernel}.wgsl", groups, constants, params=params, **tensors)

    def _delta(
        self, out: Tensor, grad_out: Tensor, starts: Tensor, shape: AttentionShape
    ) -> Tensor:
        """Return the sums of out * grad_out over each head, (N, H), followed by the starts (N,)."""
        rows = out.shape[0]
        count = rows * shape.heads
        delta = self.scratch("attention delta", (count + rows,))
        tensors = {"out": out, "grad_out": grad_out, "delta": delta, "starts": starts}
        kernel, constants = "lm/10_attention_delta.wgsl", {"HEAD_QUADS": shape.head_dim // 4}
        sizes = dims(count, 0, rows)
        self.dispatch(kernel, workgroups(count), constants, **tensors, dims=sizes)
        return delta


def attention_params(
    shape: AttentionShape, seq: int, workgroups: int, places: Sequence[int] = ()
) -> NDArray[np.void]:
    """Return the contents of the kernels' uniform.

    seq: T, or the number of rows of the cache. places: the values of fields from `queries` on.

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
    values = (seq, shape.heads, shape.kv_heads, workgroups, *scales, starts, *places)
    return np.array([(*values, *[0] * (len(PARAMS.names or ()) - len(values)))], PARAMS)


def _as_one_binding(numbers: int, *tensors: Tensor) -> tuple[Tensor, list[int]]:
    """Return the memory of tensors of `side_by_side`, and the place where each tensor starts.

    A place is the index of a vector of `numbers` numbers in this memory.
    """
    memory = spanning(tensors)
    assert memory is not None, "the tensors come from `side_by_side`"
    return memory[0], [start // numbers for start in memory[1]]


def _by_head(shape: AttentionShape, group: int, batch: slice, *tensors: Tensor) -> list[FloatArray]:
    """Return a view (b, K, group, T, D) of the sequences `batch` of each tensor.

    group: H / K for queries, 1 for keys and values. tensors: (N, K * group * D), where D is 1 for
    a number per head.
    """
    sizes = shape.batch, shape.seq, shape.kv_heads, group, -1
    return [x.array.reshape(sizes).transpose(0, 2, 3, 1, 4)[batch] for x in tensors]


def _blocks(shape: AttentionShape) -> Iterator[slice]:
    """Yield slices of queries: as many queries as have BLOCK_SCORES scores, but at least one."""
    return row_blocks(shape.seq, shape.batch * shape.heads * shape.seq, BLOCK_SCORES)


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
