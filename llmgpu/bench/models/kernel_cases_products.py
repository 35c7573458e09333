"""The products of a model, matrix products and attention: cases of them, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from llmgpu.bench.models import kernel_costs as costs
from llmgpu.bench.models.kernel_cases import Array, KernelCase, Sizes, by, empty
from llmgpu.lm.ops.operations import AttentionShape
from llmgpu.lm.ops.rotary import rotary_tables


def linear_cases(s: Sizes) -> Iterator[KernelCase]:
    """Matrix products of the feed-forward network and of the output layer, and of one row."""
    config = s.config
    yield from _products(s, config.ffn_dim, "feed-forward")
    yield from _products(s, s.vocabulary, "output layer")
    yield _product(s, s.rows, config.ffn_dim, "feed-forward, half-precision weights", np.float16)
    yield _product(s, 1, config.ffn_dim, "one row", np.float32)
    yield _product(s, 1, config.ffn_dim, "one row, half-precision weights", np.float16)


def _product(s: Sizes, rows: int, outputs: int, where: str, dtype: Any) -> KernelCase:
    width, half = s.config.dim, dtype is np.float16
    return KernelCase(
        "linear",
        f"{by(rows, width)} to {by(rows, outputs)}",
        costs.matrix_product(rows, outputs, width, weight_bytes=np.dtype(dtype).itemsize),
        lambda: {
            "x": s.normal(rows, width),
            "weight": s.normal(outputs + 1, width)[1:].astype(dtype),
            "out": empty(rows, outputs),
        },
        ("out",),
        lambda ops, t: ops.linear(t["x"], t["weight"], t["out"]),
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
        costs.matrix_product(rows, width, outputs),
        lambda: {
            "grad_out": s.normal(rows, outputs),
            "weight": s.normal(outputs + 1, width)[1:],
            "grad_x": empty(rows, width),
        },
        ("grad_x",),
        lambda ops, t: ops.linear_backward_input(
            t["grad_out"], t["weight"], t["grad_x"], accumulate=False
        ),
        where=where,
        torch=lambda torch, t: torch.matmul(t["grad_out"], t["weight"]),
    )
    yield KernelCase(
        "linear_backward_weight",
        f"{by(outputs, rows)} times {by(rows, width)}",
        costs.matrix_product(outputs, width, rows, accumulate=True),
        lambda: {
            "grad_out": s.normal(rows, outputs),
            "x": s.normal(rows + 1, width)[1:],
            "grad_weight": s.normal(outputs, width),
        },
        ("grad_weight",),
        lambda ops, t: ops.linear_backward_weight(t["grad_out"], t["x"], t["grad_weight"]),
        where=where,
        torch=lambda torch, t: t["grad_weight"].addmm_(t["grad_out"].T, t["x"]),
    )


def attention_cases(s: Sizes) -> Iterator[KernelCase]:
    """Rotation and attention, forward and backward."""
    config, rows, shape = s.config, s.rows, s.attention_shape
    sizes = f"{config.heads} heads of {config.head_dim}, {by(s.sequences, config.seq_len)} tokens"

    def make_rotary() -> dict[str, Array]:
        cosines, sines = rotary_tables(config.seq_len, config.head_dim, config.rope_theta)
        x = s.normal(rows, config.dim)
        return {"x": x, "cosines": cosines, "sines": sines, "positions": s.positions()}

    yield KernelCase(
        "rotary",
        sizes,
        costs.rotary(rows, config),
        make_rotary,
        ("x",),
        lambda ops, t: ops.rotary(
            t["x"], t["cosines"], t["sines"], t["positions"], config.head_dim
        ),
    )

    def make() -> dict[str, Array]:
        shared = {"q": s.normal(rows, config.dim)}
        for index, name in enumerate("kv", 1):
            shared[name] = s.normal(rows + index, config.kv_dim)[index:]
        outputs = {"out": empty(rows, config.dim), "log_sum_exp": empty(rows, config.heads)}
        return shared | outputs

    yield KernelCase(
        "attention",
        sizes,
        costs.attention(shape),
        make,
        ("out", "log_sum_exp"),
        lambda ops, t: ops.attention(t["q"], t["k"], t["v"], t["out"], t["log_sum_exp"], shape),
    )
    yield _attention_backward(s, sizes, make)


def _attention_backward(
    s: Sizes, sizes: str, make_forward: Callable[[], dict[str, Array]]
) -> KernelCase:
    config, rows, shape = s.config, s.rows, s.attention_shape
    names = ("q", "k", "v", "out", "log_sum_exp", "grad_out", "grad_q", "grad_k", "grad_v")

    def make() -> dict[str, Array]:
        # `out` and `log_sum_exp` are what the backward pass was given: any numbers make the same
        # work, if probabilities stay below one.
        arrays = make_forward()
        arrays["out"] = s.normal(rows + 3, config.dim)[3:]
        arrays["log_sum_exp"] = np.full((rows, config.heads), 12, np.float32)
        arrays["grad_out"] = s.normal(rows + 4, config.dim)[4:]
        arrays["grad_q"] = empty(rows, config.dim)
        return arrays | {name: empty(rows, config.kv_dim) for name in ("grad_k", "grad_v")}

    return KernelCase(
        "attention_backward",
        sizes,
        costs.attention_backward(shape),
        make,
        ("grad_q", "grad_k", "grad_v"),
        lambda ops, t: ops.attention_backward(*(t[name] for name in names), shape),
    )


def cache_cases(s: Sizes) -> Iterator[KernelCase]:
    """What generating takes of attention: a cache, and one query to all of it."""
    config, length = s.config, s.config.seq_len
    kv_width = config.kv_dim
    one = AttentionShape(1, 1, config.heads, config.kv_heads, config.head_dim)
    yield KernelCase(
        "cache_append",
        by(length, kv_width),
        costs.cache_append(length, kv_width),
        lambda: {
            "x": s.normal(length, kv_width),
            "cache": empty(length, kv_width),
            "positions": np.arange(length, dtype=np.uint32),
        },
        ("cache",),
        lambda ops, t: ops.cache_append(t["x"], t["cache"], t["positions"]),
        tolerance=0,
    )
    yield KernelCase(
        "attention_cached",
        f"one query, {config.heads} heads of {config.head_dim}, {length:,} tokens",
        costs.attention_cached(length, one),
        lambda: {
            "q": s.normal(1, config.dim),
            "keys": s.normal(length, kv_width),
            "values": s.normal(length + 1, kv_width)[1:],
            "positions": np.array([length - 1], np.uint32),
            "out": empty(1, config.dim),
        },
        ("out",),
        lambda ops, t: ops.attention_cached(
            t["q"], t["keys"], t["values"], t["positions"], t["out"], one
        ),
    )
