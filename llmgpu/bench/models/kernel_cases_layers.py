"""The operations of a model's layers that are no products: cases of them, one at a time.

Kernels that only the embedding's own comparison uses are left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.models import kernel_costs as costs
from llmgpu.bench.models.embedding_kernels import embed_lookup_positions
from llmgpu.bench.models.kernel_cases import Array, KernelCase, Sizes, Tensors, by, empty
from llmgpu.bench.models.kernel_costs import Cost
from llmgpu.lm.ops.embedding import group_tokens


def embedding_cases(s: Sizes) -> Iterator[KernelCase]:
    """Lookup, its gradient, and zeros."""
    rows, width = s.rows, s.config.dim
    distinct = len(np.unique(s.tokens()))
    sizes = f"table {by(s.vocabulary, width)}, {rows:,} ids, {distinct:,} of them different"
    yield _lookup(s, sizes, distinct, np.float32)
    yield _lookup(s, sizes, distinct, np.float16)
    yield _lookup_positions(s, sizes, distinct)
    yield KernelCase(
        "embed_backward_grouped",
        sizes,
        costs.embed_backward_grouped(rows, distinct, width),
        lambda: {
            **_groups(s.tokens()),
            "grad_out": s.normal(rows, width),
            "table": s.normal(s.vocabulary, width),
        },
        ("table",),
        lambda ops, t: ops.embed_backward_grouped(
            t["order"], t["starts"], t["rows"], t["grad_out"], t["table"]
        ),
    )
    yield KernelCase(
        "fill_zero",
        by(s.vocabulary, width),
        costs.fill_zero(s.vocabulary * width),
        lambda: {"x": s.normal(s.vocabulary, width)},
        ("x",),
        lambda ops, t: ops.fill_zero(t["x"]),
        tolerance=0,
    )


def _lookup(s: Sizes, sizes: str, distinct: int, dtype: Any) -> KernelCase:
    rows, width = s.rows, s.config.dim
    return KernelCase(
        "embed_lookup",
        sizes,
        costs.embed_lookup(rows, distinct, width, np.dtype(dtype).itemsize),
        lambda: {
            "tokens": s.tokens(),
            "table": s.normal(s.vocabulary, width).astype(dtype),
            "out": empty(rows, width),
        },
        ("out",),
        lambda ops, t: ops.embed_lookup(t["tokens"], t["table"], t["out"]),
        where="half-precision table" if dtype is np.float16 else "",
        needs_half=dtype is np.float16,
        tolerance=0,
    )


def _lookup_positions(s: Sizes, sizes: str, distinct: int) -> KernelCase:
    rows, width = s.rows, s.config.dim
    return KernelCase(
        "embed_lookup_positions",
        sizes,
        costs.embed_lookup_positions(rows, distinct, s.config.seq_len, width),
        lambda: {
            "tokens": s.tokens(),
            "table": s.normal(s.vocabulary, width),
            "positions": s.positions(),
            "position_table": s.normal(s.config.seq_len, width),
            "out": empty(rows, width),
        },
        ("out",),
        lambda ops, t: embed_lookup_positions(
            ops, t["tokens"], t["table"], t["positions"], t["position_table"], t["out"]
        ),
    )


def _groups(tokens: NDArray[np.uint32]) -> dict[str, Array]:
    return dict(zip(("order", "starts", "rows"), group_tokens(tokens), strict=True))


def norm_cases(s: Sizes) -> Iterator[KernelCase]:
    """RMS norm and its gradients."""
    rows, width = s.rows, s.config.dim
    yield KernelCase(
        "rms_norm",
        by(rows, width),
        costs.rms_norm(rows, width),
        lambda: {
            "x": s.normal(rows, width),
            "weight": s.normal(width),
            "out": empty(rows, width),
            "inverse_rms": empty(rows),
        },
        ("out", "inverse_rms"),
        lambda ops, t: ops.rms_norm(t["x"], t["weight"], t["out"], t["inverse_rms"], 1e-5),
    )

    def make_backward() -> dict[str, Array]:
        x = s.normal(rows, width)
        inverse_rms = 1 / np.sqrt(np.square(x).mean(axis=1) + np.float32(1e-5))
        return {
            "x": x,
            "weight": s.normal(width),
            "inverse_rms": inverse_rms,
            "grad_out": s.normal(rows + 1, width)[1:],
            "grad_x": s.normal(rows + 2, width)[2:],
            "grad_weight": s.normal(width),
        }

    names = ("x", "weight", "inverse_rms", "grad_out", "grad_x", "grad_weight")
    yield KernelCase(
        "rms_norm_backward",
        by(rows, width),
        costs.rms_norm_backward(rows, width),
        make_backward,
        ("grad_x", "grad_weight"),
        lambda ops, t: ops.rms_norm_backward(*(t[name] for name in names)),
    )


def activation_cases(s: Sizes) -> Iterator[KernelCase]:
    """The functions inside the feed-forward network."""
    shape = (s.rows, s.config.ffn_dim)
    size = s.rows * s.config.ffn_dim

    def case(name: str, cost: Cost, inputs: str, outputs: str) -> KernelCase:
        """`inputs` and `outputs` are names of the operation's arguments, in order."""
        read, written = inputs.split(), outputs.split()

        def make() -> dict[str, Array]:
            arrays: dict[str, Array] = {
                key: s.normal(shape[0] + index, shape[1])[index:] for index, key in enumerate(read)
            }
            return arrays | {key: empty(*shape) for key in written}

        def record(ops: Any, t: Tensors) -> None:
            getattr(ops, name)(*(t[key] for key in (*read, *written)))

        return KernelCase(name, by(*shape), cost, make, tuple(written), record)

    yield case("swiglu", costs.swiglu(size), "gate up", "out")
    backward = costs.swiglu_backward(size)
    yield case("swiglu_backward", backward, "gate up grad_out", "grad_gate grad_up")
    yield case("gelu", costs.gelu(size), "x", "out")
    yield case("gelu_backward", costs.gelu_backward(size), "x grad_out", "grad_x")


def loss_cases(s: Sizes) -> Iterator[KernelCase]:
    """Cross-entropy and the sum of the losses."""
    rows, width = s.rows, s.vocabulary
    yield KernelCase(
        "cross_entropy",
        by(rows, width),
        costs.cross_entropy(rows, width),
        lambda: {
            "logits": s.normal(rows, width),
            "targets": s.tokens(),
            "losses": empty(rows),
            "params": np.array([1 / rows, 0.1, 1e-4, 1 / width], np.float32),
        },
        ("logits", "losses"),
        lambda ops, t: ops.cross_entropy(t["logits"], t["targets"], t["losses"], t["params"]),
        uniforms=("params",),
    )
    yield KernelCase(
        "sum_losses",
        f"{rows:,} losses",
        costs.sum_losses(rows),
        lambda: {"losses": np.abs(s.normal(rows)), "sum": empty(1)},
        ("sum",),
        lambda ops, t: ops.sum_losses(t["losses"], t["sum"]),
    )


def cast_cases(s: Sizes) -> Iterator[KernelCase]:
    """Conversions between single and half precision."""
    shape = (s.vocabulary, s.config.dim)
    cost = costs.cast(shape[0] * shape[1])
    yield KernelCase(
        "cast_f32_to_f16",
        by(*shape),
        cost,
        lambda: {"x": s.normal(*shape), "out": np.full(shape, np.nan, np.float16)},
        ("out",),
        lambda ops, t: ops.cast_f32_to_f16(t["x"], t["out"]),
        needs_half=True,
        tolerance=0,
    )
    yield KernelCase(
        "cast_f16_to_f32",
        by(*shape),
        cost,
        lambda: {"x": s.normal(*shape).astype(np.float16), "out": empty(*shape)},
        ("out",),
        lambda ops, t: ops.cast_f16_to_f32(t["x"], t["out"]),
        needs_half=True,
        tolerance=0,
    )
