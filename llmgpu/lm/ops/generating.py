"""Operations of generating text: few new rows at a time, and a cache of keys and values.

On a device, kernels for a few rows load each weight once. One kernel computes a norm, the products
of the norm's output and the function of these products, so that a token needs few dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.lm.ops.activations import (
    INNER,
    ActivationOperations,
    ActivationTensors,
    GpuActivations,
)
from llmgpu.lm.ops.attention import attention_params
from llmgpu.lm.ops.layers import GpuLayers, LayerOperations, turned
from llmgpu.lm.ops.linear import FEW_ROWS, LEAST_ROW_THREADS, LOADS, GpuProducts, ProductOperations
from llmgpu.lm.ops.recording import (
    FOUR,
    WORKGROUP_SIZE,
    dims,
    recorded,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import (
    AnyArray,
    AttentionShape,
    FloatArray,
    HeadTensors,
    NewRows,
    Norm,
    Packed,
    Rotation,
    Tensor,
)

PARTS = 64  # most parts into which a row of logits is divided; each workgroup searches one part
HEADS = struct_dtype("lm/head_places.wgsl", "HeadParams")
# `draw_largest` draws among at most this many logits.
MOST_LARGEST = constant("lm/13_draw_largest.wgsl", "MOST")


class GenerationOperations(ActivationOperations, LayerOperations, ProductOperations):
    """The operations of generating, computed by NumPy.

    `heads_to_cache` and `feed_forward` are composed of other operations. On a device with at most
    `FEW_ROWS` rows, each is one kernel instead.
    """

    def heads_to_cache(
        self, norm: Norm, epsilon: float, weight: Packed, rotation: Rotation, heads: HeadTensors
    ) -> None:
        """Compute queries, keys and values of a norm's output; write keys and values to the cache.

        weight: the matrices of queries, keys and values. rotation: here `positions` must be
            `NewRows.places`, (2, N).
        norm: x is the input; out and inverse_rms are undefined afterwards.
        """
        self._rotate_to_cache(self._products(norm, epsilon, weight), weight, rotation, heads)

    def feed_forward(
        self, norm: Norm, epsilon: float, weight: Packed, t: ActivationTensors
    ) -> None:
        """Compute the first half of a feed-forward network: norm, matrix products and activation.

        t: out receives the result, (N, F); inner is ignored.
        weight: the matrices of gate and up, or only of up if the activation has no gate.
        norm: x is the input; out and inverse_rms are undefined afterwards.
        """
        self.activate(replace(t, inner=[self._products(norm, epsilon, weight)]))

    def _products(self, norm: Norm, epsilon: float, weight: Packed) -> Tensor:
        self.rms_norm(norm, epsilon)
        shape = (norm.x.shape[0], weight.tensor.shape[0])
        products = self.scratch("packed products", shape)
        self.linear(norm.out, weight.tensor, products)
        return products

    @recorded
    def _rotate_to_cache(
        self, products: Tensor, weight: Packed, rotation: Rotation, heads: HeadTensors
    ) -> None:
        """Rotate queries and keys in packed products; write keys and values to the cache."""
        positions, starts = rotation.positions.array
        kv_dim = heads.cache.shape[1] // 2
        widths = (heads.q.shape[1], kv_dim, kv_dim)
        query, key, value = (
            products.array[:, start : start + width]
            for start, width in zip(weight.starts, widths, strict=True)
        )
        heads.q.array[...] = turned(query, rotation, positions)
        rows = np.concatenate([turned(key, rotation, positions), value], 1)
        heads.cache.array[starts + positions] = rows

    @recorded
    def cache_append(self, x: Tensor, cache: Tensor, places: Tensor, column: int) -> None:
        """Copy each row of x (N, K * D) to its row of the cache, from column `column` on.

        places: see `NewRows`.
        """
        cache.array[places.array.sum(0), column : column + x.shape[1]] = x.array

    @recorded
    def attention_cached(
        self, heads: HeadTensors, places: Tensor, out: Tensor, shape: AttentionShape
    ) -> None:
        """Write out (N, H * D): a query attends to its sequence's cache rows up to its own row.

        places: see `NewRows`. shape: `batch` and `seq` are ignored.

        Raises:
            DeviceError: the kernels don't support heads of this width.
        """
        kept = heads.cache.array.reshape(-1, 2, shape.kv_heads, shape.head_dim)
        grouped = (-1, shape.kv_heads, shape.group, shape.head_dim)
        queries, target = (x.array.reshape(grouped) for x in (heads.q, out))
        # Compute row by row, because rows attend to different numbers of keys.
        for row, (position, start) in enumerate(places.array.T.tolist()):
            keys, values = kept[start : start + position + 1].swapaxes(0, 1)
            scores = queries[row] @ keys.transpose(1, 2, 0) * np.float32(shape.scale)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            target[row] = p @ values.transpose(1, 0, 2)

    @recorded
    def take_likeliest(
        self, logits: Tensor, count: int, rows: NewRows, chosen: Tensor, step: int
    ) -> None:
        """Choose the likeliest of the first `count` ids as each row's token at the next position.

        Of ids with equal logits the smallest is chosen. The ids are also written to row `step` of
        chosen, uint32 (steps, N).
        """
        rows.tokens.array[...] = logits.array[:, :count].argmax(1)
        chosen.array[step] = rows.tokens.array
        rows.places.array[0] += rows.places.array[1] < rows.idle  # the next positions

    @recorded
    def find_largest(self, logits: Tensor, count: int, k: int, found: Tensor) -> None:
        """Write the ids below `count` whose logits are at least the k-th largest of their row.

        With equal logits there may be more than k. logits: (N, V), V a multiple of 4.
        found: uint32 (N, 1 + capacity, 2). The first pair of a row is the number of ids found and
        0. Up to `capacity` pairs follow, in any order: an id, and a number that is smaller for
        larger logits, see `logits_of`. All bits of unused pairs are set.
        """
        found.array[...] = 0xFFFFFFFF
        for row, target in zip(logits.array[:, :count], found.array, strict=True):
            order = _order_of(row)
            ids = np.flatnonzero(order >= np.partition(order, count - k)[count - k])
            target[0] = len(ids), 0
            ids = ids[: len(target) - 1]
            target[1 : 1 + len(ids)] = np.stack([ids, ~order[ids]], 1)

    @recorded
    def draw_largest(self, found: Tensor, draws: Tensor, rows: NewRows, step: int) -> None:
        """Draw each row's token at the next position from the ids of `find_largest`.

        draws: (steps, N, 4); row `step` is used: a random number from 0 to 1, the factor of logits,
            top_p, and k, up to `MOST_LARGEST`.
        found: as `find_largest` writes it; the drawn id replaces the 0 of the first pair. `Sampler`
            draws the same id, except for rounding.
        """
        for row, (uniform, inverse, top_p, k) in enumerate(draws.array[step].tolist()):
            count, capacity = int(found.array[row, 0, 0]), found.shape[1] - 1
            pairs = found.array[row, 1 : 1 + min(count, capacity)]
            pairs = pairs[np.lexsort(pairs.T)[: max(1, int(k))]]
            logits = logits_of(pairs[:, 1]).astype(np.float64)
            ends = np.cumsum(np.exp((logits - logits[0]) * inverse))
            ends = ends[: np.searchsorted(ends, top_p * ends[-1]) + 1]
            place = np.searchsorted(ends, uniform * ends[-1], side="right")
            rows.tokens.array[row] = pairs[min(place, len(ends) - 1), 0]
        found.array[:, 0, 1] = rows.tokens.array
        rows.places.array[0] += rows.places.array[1] < rows.idle  # the next positions


def _order_of(logits: FloatArray) -> NDArray[np.uint32]:
    """Convert float32 numbers to whole numbers in the same order, as lm/order.wgsl does."""
    bits = (logits + np.float32(0)).view(np.uint32)  # adding 0 turns -0 into 0
    order = bits ^ np.where(bits >> 31, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    return np.where(np.isnan(logits), np.uint32(0xFFFFFFFF), order)


def logits_of(inverted: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the logits, decoded from the numbers that `Operations.find_largest` writes.

    inverted: all bits of `_order_of(logits)`, inverted.
    """
    order = ~inverted
    bits = order ^ np.where(order >> 31, np.uint32(0x80000000), np.uint32(0xFFFFFFFF))
    return bits.view(np.float32)


class GpuGenerating(GpuActivations, GpuLayers, GpuProducts, GenerationOperations):
    """The operations of generating, as GPU kernels."""

    def heads_to_cache(
        self, norm: Norm, epsilon: float, weight: Packed, rotation: Rotation, heads: HeadTensors
    ) -> None:
        if not _takes_few_rows(norm):
            super().heads_to_cache(norm, epsilon, weight, rotation, heads)
            return
        bindings = _head_bindings(weight, rotation, heads, norm.x.shape[1] // FOUR, epsilon)
        self._normed_rows("13_normed_heads", norm, weight, heads.pairs_per_row, {}, **bindings)

    def feed_forward(
        self, norm: Norm, epsilon: float, weight: Packed, t: ActivationTensors
    ) -> None:
        if not _takes_few_rows(norm) or not t.function.is_gated:
            super().feed_forward(norm, epsilon, weight, t)
            return
        starts, quads = (weight.starts[1], weight.tensor.shape[0]), norm.x.shape[1] // FOUR
        params = np.array([(*t.out.shape, *starts, quads, epsilon)], INNER)
        kernel, constants, width = "13_normed_gated", t.function.constants, t.out.shape[1]
        self._normed_rows(kernel, norm, weight, width, constants, out=t.out, params=params)

    def _normed_rows(
        self,
        kernel: str,
        norm: Norm,
        weight: Packed,
        pairs: int,
        constants: Mapping[str, int],
        **bindings: Tensor | AnyArray,
    ) -> None:
        """Dispatch a kernel that multiplies each normalized row by pairs of rows of `weight`."""
        rows, width = norm.x.shape
        row_threads = thread_count(-(-width // (FOUR * LOADS)), LEAST_ROW_THREADS)
        self.dispatch(
            f"lm/{kernel}.wgsl",
            rows * workgroups(pairs * row_threads),
            {
                **constants,
                "WORKGROUP_SIZE": WORKGROUP_SIZE,
                "ROW_THREADS": row_threads,
                "half": weight.tensor.is_half,
            },
            x=norm.x,
            norm_weight=norm.weight,
            weight=weight.tensor,
            **bindings,
        )

    def _rotate_to_cache(
        self, products: Tensor, weight: Packed, rotation: Rotation, heads: HeadTensors
    ) -> None:
        rows, width = products.shape
        groups = workgroups(rows * heads.pairs_per_row)
        bindings = _head_bindings(weight, rotation, heads, width, 0)
        self.dispatch("lm/13_rotate_to_cache.wgsl", groups, x=products, **bindings)

    def cache_append(self, x: Tensor, cache: Tensor, places: Tensor, column: int) -> None:
        self.dispatch(
            "lm/05_cache_append.wgsl",
            workgroups(x.size),
            x=x,
            cache=cache,
            places=places,
            dims=dims(*x.shape, cache.shape[1], column),
        )

    def attention_cached(
        self, heads: HeadTensors, places: Tensor, out: Tensor, shape: AttentionShape
    ) -> None:
        groups = heads.q.shape[0] * shape.heads
        self.dispatch(
            "lm/05_attention_cached.wgsl",
            groups,
            {"HEAD_QUADS": shape.head_dim // FOUR},
            params=attention_params(shape, heads.cache.shape[0], groups),
            **vars(heads),
            places=places,
            out=out,
        )

    def take_likeliest(
        self, logits: Tensor, count: int, rows: NewRows, chosen: Tensor, step: int
    ) -> None:
        parts = min(PARTS, workgroups(count))
        partial = self.scratch("likeliest of parts", (logits.shape[0], 2 * parts))
        self.dispatch(
            "lm/13_likeliest_of_parts.wgsl",
            logits.shape[0] * parts,
            dims=dims(*logits.shape, count, parts),
            logits=logits,
            partial=partial,
        )
        self.dispatch(
            "lm/13_take_likeliest.wgsl",
            logits.shape[0],
            params=dims(logits.shape[0], parts, step, rows.idle),
            partial=partial,
            tokens=rows.tokens,
            places=rows.places,
            chosen=chosen,
        )

    def find_largest(self, logits: Tensor, count: int, k: int, found: Tensor) -> None:
        self.dispatch(
            "lm/13_find_largest.wgsl",
            logits.shape[0],
            params=dims(*logits.shape, count, k, found.shape[1] - 1),
            logits=logits,
            found=found,
        )

    def draw_largest(self, found: Tensor, draws: Tensor, rows: NewRows, step: int) -> None:
        self.dispatch(
            "lm/13_draw_largest.wgsl",
            found.shape[0],
            params=dims(found.shape[0], found.shape[1] - 1, step, rows.idle),
            draws=draws,
            found=found,
            tokens=rows.tokens,
            places=rows.places,
        )


def _takes_few_rows(norm: Norm) -> bool:
    """Whether the kernels for a few rows support a norm; otherwise use matrix products."""
    return norm.x.shape[0] <= FEW_ROWS and not norm.out.is_half


def _head_bindings(
    weight: Packed, rotation: Rotation, heads: HeadTensors, width: int, epsilon: float
) -> dict[str, Tensor | AnyArray]:
    """Return the bindings of kernels that rotate queries and keys, and write the cache."""
    rows, dim = heads.q.shape
    kv_heads = heads.cache.shape[1] // 2 // rotation.head_dim
    counts = (rows, dim // rotation.head_dim, kv_heads, rotation.head_dim // 2)
    params = np.array([(*counts, *weight.starts[1:], width, epsilon)], HEADS)
    tables = {"cosines": rotation.cosines, "sines": rotation.sines}
    return {**tables, "places": rotation.positions, **vars(heads), "params": params}
