"""The products of a model, matrix products and attention: cases of them, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmgpu.bench.kernels.cases import Arrays, KernelCase, Sizes, by, empty
from llmgpu.lm.ops.attention import AttentionShape
from llmgpu.lm.ops.rotary import rotary_tables

SCORE_OPERATIONS = 4  # for each pair of query and key, beside products: scale, maximum, exp, sum


def linear_cases(s: Sizes) -> Iterator[KernelCase]:
    """Matrix products of the feed-forward network and of the output layer, and of one row."""
    inner = s.config.ffn_dim
    yield from _products(s, inner, "feed-forward")
    yield from _products(s, s.vocabulary, "output layer")
    yield _product(s, s.rows, inner, "feed-forward, half-precision weights", np.float16)
    yield _product(s, 1, inner, "one row", np.float32)
    yield _product(s, 1, inner, "one row, half-precision weights", np.float16)


def _product(s: Sizes, rows: int, outputs: int, where: str, dtype: Any) -> KernelCase:
    width, half = s.config.dim, dtype is np.float16
    return KernelCase(
        "linear",
        f"{by(rows, width)} to {by(rows, outputs)}",
        2 * rows * outputs * width,
        lambda: {
            "x": s.normal(rows, width),
            "weight": s.normal(outputs, width, skip=1).astype(dtype),
            "out": empty(rows, outputs),
        },
        ("out",),
        where=where,
        needs_half=half,
        torch=None if half else lambda torch, t: torch.matmul(t["x"], t["weight"].T),
    )


def _products(s: Sizes, outputs: int, where: str) -> Iterator[KernelCase]:
    rows, width = s.rows, s.config.dim
    yield _product(s, rows, outputs, where, np.float32)
    yield KernelCase(
        "linear_backward_input",
        f"{by(rows, outputs)} to {by(rows, width)}",
        2 * rows * width * outputs,
        lambda: {
            "grad_out": s.normal(rows, outputs),
            "weight": s.normal(outputs, width, skip=1),
            "grad_x": empty(rows, width),
        },
        ("grad_x",),
        record=lambda ops, t: ops.linear_backward_input(*t.values(), accumulate=False),
        where=where,
        torch=lambda torch, t: torch.matmul(t["grad_out"], t["weight"]),
    )
    yield KernelCase(
        "linear_backward_weight",
        f"{by(outputs, rows)} times {by(rows, width)}",
        2 * outputs * width * rows,
        lambda: {
            "grad_out": s.normal(rows, outputs),
            "x": s.normal(rows, width, skip=1),
            "grad_weight": s.normal(outputs, width),
        },
        ("grad_weight",),
        where=where,
        torch=lambda torch, t: t["grad_weight"].addmm_(t["grad_out"].T, t["x"]),
    )


def attention_cases(s: Sizes) -> Iterator[KernelCase]:
    """Rotation and attention, forward and backward."""
    config, rows, shape = s.config, s.rows, s.attention_shape
    sizes = f"{config.heads} heads of {config.head_dim}, {by(s.sequences, config.seq_len)} tokens"
    # How many keys all queries of all heads see together: a query sees those up to its own.
    pairs = shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2

    def make_rotary() -> Arrays:
        cosines, sines = rotary_tables(config.seq_len, config.head_dim, config.rope_theta)
        x = s.normal(rows, config.dim)
        return {"x": x, "cosines": cosines, "sines": sines, "positions": s.positions()}

    def make() -> Arrays:
        return {
            "q": s.normal(rows, config.dim),
            "k": s.normal(rows, config.kv_dim, skip=1),
            "v": s.normal(rows, config.kv_dim, skip=2),
            "out": empty(rows, config.dim),
            "log_sum_exp": empty(rows, config.heads),
        }

    def make_backward() -> Arrays:
        # `out` and `log_sum_exp` are what the backward pass was given: any numbers make the same
        # work, if probabilities stay below one.
        return make() | {
            "out": s.normal(rows, config.dim, skip=3),
            "log_sum_exp": np.full((rows, config.heads), 12, np.float32),
            "grad_out": s.normal(rows, config.dim, skip=4),
            "grad_q": empty(rows, config.dim),
            "grad_k": empty(rows, config.kv_dim),
            "grad_v": empty(rows, config.kv_dim),
        }

    yield KernelCase(
        "rotary", sizes, 3 * rows * config.dim, make_rotary, ("x",), more=(config.head_dim,)
    )
    yield KernelCase(
        "attention",
        sizes,
        pairs * (2 * 2 * config.head_dim + SCORE_OPERATIONS),  # two products
        make,
        ("out", "log_sum_exp"),
        more=(shape,),
    )
    yield KernelCase(
        "attention_backward",
        sizes,
        pairs * (5 * 2 * config.head_dim + SCORE_OPERATIONS),  # five products
        make_backward,
        ("grad_q", "grad_k", "grad_v"),
        more=(shape,),
    )


def cache_cases(s: Sizes) -> Iterator[KernelCase]:
    """What generating takes of attention: a cache, and one query to all of it."""
    config, length = s.config, s.config.seq_len
    yield KernelCase(
        "cache_append",
        by(length, config.kv_dim),
        0,
        lambda: {
            "x": s.normal(length, config.kv_dim),
            "cache": empty(length, config.kv_dim),
            "positions": np.arange(length, dtype=np.uint32),
        },
        ("cache",),
        tolerance=0,
    )
    yield KernelCase(
        "attention_cached",
        f"one query, {config.heads} heads of {config.head_dim}, {length:,} tokens",
        length * config.heads * (2 * 2 * config.head_dim + SCORE_OPERATIONS),
        lambda: {
            "q": s.normal(1, config.dim),
            "keys": s.normal(length, config.kv_dim),
            "values": s.normal(length, config.kv_dim, skip=1),
            "positions": np.array([length - 1], np.uint32),
            "out": empty(1, config.dim),
        },
        ("out",),
        more=(AttentionShape(1, 1, config.heads, config.kv_heads, config.head_dim),),
        bytes=8 * length * config.kv_dim + 8 * config.dim,
    )
