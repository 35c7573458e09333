"""Cases of what generating takes of a layer: a new token of one sequence, and of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from llmgpu.bench.kernels.cases import Array, KernelCase, Sizes, by
from llmgpu.lm.ops.activations import SWIGLU
from llmgpu.lm.ops.layers import rotary_frequencies, rotary_tables
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.tensor import (
    AttentionShape,
    HeadTensors,
    NewRows,
    Norm,
    Packed,
    Rotation,
    Tensor,
)

SCORE_OPERATIONS = 4  # for each pair of query and key, beside products: scale, maximum, exp, sum
MANY_ROWS = 64
LARGEST = 200  # logits, as many as are kept by default
EPSILON = 1e-5
TOLERANCE = 1e-4  # of a norm and products
Tensors = Mapping[str, Tensor]


def _norm(t: Tensors) -> Norm:
    return Norm(t["x"], t["norm_weight"], t["normed"], t["inverse_rms"])


def _layer_cases(s: Sizes, rows: int, *, half: bool) -> Iterator[KernelCase]:
    """A layer's first products with what follows, and the inside of its feed-forward network."""
    config = s.config
    dim, kv_dim, ffn_dim, length = config.query_dim, config.kv_dim, config.ffn_dim, config.seq_len
    kind = np.float16 if half else np.float32
    where = f"{rows} row{'s' if rows > 1 else ''}{', half-precision weights' if half else ''}"
    more: dict[str, Any] = {"where": where, "needs_half": half, "tolerance": TOLERANCE}
    more["uncompared"] = ("normed", "inverse_rms")

    def inputs(width: int) -> dict[str, Array]:
        return {
            "x": s.normal(rows, config.dim),
            "norm_weight": s.normal(config.dim, skip=1),
            "normed": np.full((rows, config.dim), np.nan, np.float32),
            "inverse_rms": np.full(rows, np.nan, np.float32),
            "weight": (s.normal(width, config.dim, skip=2) / 16).astype(kind),
        }

    def with_cache() -> dict[str, Array]:
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta)
        cosines, sines = rotary_tables(length, frequencies)
        places = np.stack([np.full(rows, length // 2), np.arange(rows)]).astype(np.uint32)
        cache = np.zeros((length + rows, 2 * kv_dim), np.float32)
        given = {"cosines": cosines, "sines": sines, "places": places, "cache": cache}
        return inputs(dim + 2 * kv_dim) | given | {"q": np.full((rows, dim), np.nan, np.float32)}

    def to_cache(ops: Operations, t: Tensors) -> None:
        rotation = Rotation(t["cosines"], t["sines"], t["places"], config.head_dim)
        packed = Packed(t["weight"], (0, dim, dim + kv_dim))
        ops.heads_to_cache(_norm(t), EPSILON, packed, rotation, HeadTensors(t["q"], t["cache"]))

    operands = "x norm_weight weight cosines sines places +q *cache normed inverse_rms"
    products = 2 * rows * config.dim * (dim + 2 * kv_dim)
    sizes = f"{by(rows, config.dim)} to {by(rows, dim + 2 * kv_dim)}"
    read = (dim + 2 * kv_dim) * config.dim * np.dtype(kind).itemsize
    yield s.case(
        "heads_to_cache",
        operands,
        products,
        with_cache,
        sizes=sizes,
        record=to_cache,
        bytes=read,
        **more,
    )
    if config.is_gated:
        yield s.case(
            "feed_forward",
            "x norm_weight weight +out normed inverse_rms",
            4 * rows * config.dim * ffn_dim,
            lambda: inputs(2 * ffn_dim) | {"out": np.full((rows, ffn_dim), np.nan, np.float32)},
            sizes=f"{by(rows, config.dim)} to {by(rows, ffn_dim)}",
            record=lambda ops, t: ops.feed_forward(
                _norm(t), EPSILON, Packed(t["weight"], (0, ffn_dim)), SWIGLU, t["out"]
            ),
            bytes=2 * ffn_dim * config.dim * np.dtype(kind).itemsize,
            **more,
        )


def generating_cases(s: Sizes) -> Iterator[KernelCase]:
    """Passing a new token through a layer, and choosing the next one."""
    for rows, half in ((1, False), (1, True), (MANY_ROWS, False)):
        yield from _layer_cases(s, rows, half=half)
    last = np.array([[s.config.seq_len - 1], [0]], np.uint32)
    yield from _cache_cases(s, last)
    yield from _choice_cases(s, last)


def _cache_cases(s: Sizes, last: Array) -> Iterator[KernelCase]:
    """Attention of one token to those before it, and filling their cache. last: its place."""
    config = s.config
    length, shape = config.seq_len, (config.heads, config.kv_heads, config.head_dim)
    yield s.case(
        "attention_cached",
        "q cache places +out",
        length * config.heads * (2 * 2 * config.head_dim + SCORE_OPERATIONS),
        lambda: {
            "q": s.normal(1, config.query_dim),
            "cache": s.normal(length, 2 * config.kv_dim),
            "places": last,
            "out": np.full((1, config.query_dim), np.nan, np.float32),
        },
        sizes=f"one query, {config.heads} heads of {config.head_dim}, {length:,} tokens",
        record=lambda ops, t: ops.attention_cached(
            HeadTensors(t["q"], t["cache"]), t["places"], t["out"], AttentionShape(1, 1, *shape)
        ),
        bytes=8 * length * config.kv_dim + 8 * config.query_dim,
    )
    yield s.case(
        "cache_append",
        "x:TK *cache places",
        0,
        lambda: {
            "cache": np.zeros((length, 2 * config.kv_dim), np.float32),
            "places": np.stack([np.arange(length), np.zeros(length)]).astype(np.uint32),
        },
        tolerance=0,
        record=lambda ops, t: ops.cache_append(t["x"], t["cache"], t["places"], config.kv_dim),
        bytes=8 * length * config.kv_dim + 4 * length,
    )


def _choice_cases(s: Sizes, last: Array) -> Iterator[KernelCase]:
    """The choice of the next token from the logits. last: its place."""
    config = s.config
    yield s.case(
        "take_likeliest",
        "logits:1V *tokens *chosen places",
        0,
        lambda: {
            "tokens": np.zeros(1, np.uint32),
            "chosen": np.zeros((1, 1), np.uint32),
            "places": last,
        },
        tolerance=0,
        record=lambda ops, t: ops.take_likeliest(
            t["logits"], config.vocab_size, NewRows(t["tokens"], t["places"], 0), t["chosen"], 0
        ),
    )
    k = min(LARGEST, config.vocab_size)
    yield s.case(
        "find_largest",
        "logits:1V +found",
        0,
        lambda: {"found": np.zeros((1, 1 + k, 2), np.uint32)},
        sizes=f"{k} of {config.vocab_size:,}",
        # Ids are found in no order: of the pairs only the sums are the same.
        outputs=("found",),
        total=("found",),
        tolerance=0,
        record=lambda ops, t: ops.find_largest(t["logits"], config.vocab_size, k, t["found"]),
    )
    values = s.normal(k)
    pairs = np.zeros((1, 1 + k, 2), np.uint32)
    pairs[0, 0, 0], pairs[0, 1:, 0] = k, np.arange(k)
    # Positive numbers, in the order that `find_largest` writes.
    pairs[0, 1:, 1] = ~(np.abs(values).view(np.uint32) | np.uint32(1 << 31))
    yield s.case(
        "draw_largest",
        "*found draws *tokens places",
        0,
        lambda: {
            "found": pairs.copy(),
            "draws": np.array([[[0.5, 1, 1, k]]], np.float32),
            "tokens": np.zeros(1, np.uint32),
            "places": last,
        },
        sizes=f"{k} logits",
        tolerance=0,
        record=lambda ops, t: ops.draw_largest(
            t["found"], t["draws"], NewRows(t["tokens"], t["places"], 0), 0
        ),
    )
