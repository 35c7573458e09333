"""The operations of a model's layers that are not products: cases of them, one at a time.

Kernels that only the embedding's comparison uses are left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmgpu.bench.kernels.cases import Array, Arrays, KernelCase, Sizes, by, empty
from llmgpu.lm.ops.embedding import group_tokens


def embedding_cases(s: Sizes) -> Iterator[KernelCase]:
    """Lookup, its gradient, and zeros."""
    rows, width, tokens = s.rows, s.config.dim, s.tokens()
    distinct = len(np.unique(tokens))
    sizes = f"table {by(*s.table_shape)}, {rows:,} ids, {distinct:,} of them different"
    yield _lookup(s, sizes, distinct, np.float32)
    yield _lookup(s, sizes, distinct, np.float16)
    yield KernelCase(
        "embed_lookup_positions",
        sizes,
        rows * width,
        lambda: {
            "tokens": tokens,
            "table": s.normal(*s.table_shape),
            "positions": s.positions(),
            "position_table": s.normal(s.config.seq_len, width),
            "out": empty(rows, width),
        },
        ("out",),
        bytes=8 * rows + 4 * width * (distinct + s.config.seq_len + rows),
    )

    def make(name: str, target: Array) -> Arrays:
        groups = zip(("order", "starts", "rows"), group_tokens(tokens), strict=True)
        return {**dict(groups), "grad_out": s.normal(rows, width), name: target}

    yield KernelCase(
        "embed_backward_grouped",
        sizes,
        rows * width,
        lambda: make("table", s.normal(*s.table_shape)),
        ("table",),
        bytes=4 * rows + 8 * distinct + 4 * width * (rows + 2 * distinct),
    )
    yield KernelCase(
        "embed_gradient_rows",
        sizes,
        rows * width,
        lambda: make("out", empty(distinct, width)),
        ("out",),
        bytes=4 * rows + 8 * distinct + 4 * width * (rows + distinct),
    )
    yield KernelCase(
        "fill_zero",
        by(*s.table_shape),
        0,
        lambda: {"x": empty(*s.table_shape)},
        ("x",),
        tolerance=0,
    )


def _lookup(s: Sizes, sizes: str, distinct: int, dtype: Any) -> KernelCase:
    rows, width = s.rows, s.config.dim
    half = dtype is np.float16
    return KernelCase(
        "embed_lookup",
        sizes,
        0,
        lambda: {
            "tokens": s.tokens(),
            "table": s.normal(*s.table_shape).astype(dtype),
            "out": empty(rows, width),
        },
        ("out",),
        where="half-precision table" if half else "",
        needs_half=half,
        tolerance=0,
        bytes=4 * rows + distinct * width * np.dtype(dtype).itemsize + 4 * rows * width,
    )


def norm_cases(s: Sizes) -> Iterator[KernelCase]:
    """RMS norm and its gradients."""
    rows, width = s.rows, s.config.dim
    yield KernelCase(
        "rms_norm",
        by(rows, width),
        rows * (4 * width + 3),
        lambda: {
            "x": s.normal(rows, width),
            "weight": s.normal(width),
            "out": empty(rows, width),
            "inverse_rms": empty(rows),
        },
        ("out", "inverse_rms"),
        more=(1e-5,),
    )

    def make_backward() -> Arrays:
        x = s.normal(rows, width)
        return {
            "x": x,
            "weight": s.normal(width),
            "inverse_rms": 1 / np.sqrt(np.square(x).mean(axis=1) + np.float32(1e-5)),
            "grad_out": s.normal(rows, width, skip=1),
            "grad_x": s.normal(rows, width, skip=2),
            "grad_weight": s.normal(width),
        }

    outputs = ("grad_x", "grad_weight")
    operations = 9 * rows * width
    yield KernelCase("rms_norm_backward", by(rows, width), operations, make_backward, outputs)


def activation_cases(s: Sizes) -> Iterator[KernelCase]:
    """The functions inside the feed-forward network."""
    shape = (s.rows, s.config.ffn_dim)
    size = s.rows * s.config.ffn_dim

    def case(name: str, operations: int, inputs: str, outputs: str) -> KernelCase:
        """`inputs` and `outputs` are names of the operation's arguments, in order."""
        read, written = inputs.split(), tuple(outputs.split())

        def make() -> Arrays:
            arrays: Arrays = {key: s.normal(*shape, skip=k) for k, key in enumerate(read)}
            return arrays | {key: empty(*shape) for key in written}

        return KernelCase(name, by(*shape), operations, make, written)

    yield case("swiglu", 5 * size, "gate up", "out")
    yield case("swiglu_backward", 11 * size, "gate up grad_out", "grad_gate grad_up")
    yield case("gelu", 9 * size, "x", "out")
    yield case("gelu_backward", 19 * size, "x grad_out", "grad_x")


def loss_cases(s: Sizes) -> Iterator[KernelCase]:
    """Cross-entropy and the sum of the losses."""
    rows, width = s.rows, s.vocabulary
    yield KernelCase(
        "cross_entropy",
        by(rows, width),
        7 * rows * width,
        lambda: {
            "logits": s.normal(rows, width),
            "targets": s.tokens(),
            "losses": empty(rows),
            "params": np.array([1 / rows, 0.1, 1e-4, 1 / width], np.float32),
        },
        ("logits", "losses"),  # gradients take the place of the logits
        uniforms=("params",),
    )
    yield KernelCase(
        "sum_losses",
        f"{rows:,} losses",
        rows,
        lambda: {"losses": np.abs(s.normal(rows)), "sum": empty(1)},
        ("sum",),
    )


def cast_cases(s: Sizes) -> Iterator[KernelCase]:
    """Conversions between single and half precision."""
    shape = s.table_shape
    for name, source, target in (
        ("cast_f32_to_f16", np.float32, np.float16),
        ("cast_f16_to_f32", np.float16, np.float32),
    ):

        def make(source: Any = source, target: Any = target) -> Arrays:
            return {"x": s.normal(*shape).astype(source), "out": empty(*shape, dtype=target)}

        yield KernelCase(name, by(*shape), 0, make, ("out",), needs_half=True, tolerance=0)
