"""The operations of a model's layers, forward and backward: cases of them, one at a time.

Kernels that only the embedding's lab compares are operations here, but not cases:
those are left to the embedding's own comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from llmgpu.bench.kernels.cases import Array, KernelCase, Sizes, Tensors, by
from llmgpu.bench.kernels.generating import SCORE_OPERATIONS, generating_cases
from llmgpu.lm.loss_scaling import FIRST_SCALE
from llmgpu.lm.model import scaled_frequencies
from llmgpu.lm.ops.activations import GELU, SWIGLU
from llmgpu.lm.ops.embedding import copy_rows, group_tokens
from llmgpu.lm.ops.layers import rotary_tables
from llmgpu.lm.ops.operations import GpuOperations, Operations
from llmgpu.lm.ops.recording import dims, workgroups
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    Groups,
    Losses,
    Norm,
    Rotation,
    Tensor,
)

# Of a case whose outputs are rounded, for matrix units: NumPy and a GPU may round to neighbours.
HALVES: dict[str, Any] = {"where": "to half precision", "needs_half": True, "tolerance": 2e-3}
TILE_COLUMNS, TILE_TOKENS = 32, 8  # of a workgroup of embed_lookup_2d


@dataclass(frozen=True)
class LabKernel:
    """A kernel as an operation of a device: a lookup, or with `adds` its gradient; float32.

    A lookup takes tokens (N,), table (V, C) and out (N, C), the rows of the tokens. A gradient
    takes tokens, grad_out (N, C) and grad_table (V, C), to which it adds with atomics, so that the
    order of additions is not fixed.

    groups: returns the workgroups for rows (N, C).
    """

    file: str
    groups: Callable[[int, int], int]
    adds: bool = False

    def __call__(self, operations: Operations, tokens: Tensor, *others: Tensor) -> None:
        """Append the kernel to the program being recorded."""
        assert isinstance(operations, GpuOperations)
        names = ("grad_out", "grad_table") if self.adds else ("table", "out")
        rows, table = others if self.adds else reversed(others)
        bound = {"tokens": tokens, **dict(zip(names, others, strict=True))}
        sizes = dims(*rows.shape, table.shape[0])
        operations.dispatch(self.file, self.groups(*rows.shape), **bound, dims=sizes)


embed_lookup_2d = LabKernel(
    "bench/embed_lookup_2d.wgsl", lambda n, c: -(-c // TILE_COLUMNS) * -(-n // TILE_TOKENS)
)
embed_lookup_token = LabKernel("bench/embed_lookup_token.wgsl", lambda n, _: workgroups(n))
embed_lookup_rows_scalar = LabKernel("bench/embed_lookup_rows_scalar.wgsl", lambda n, _: n)
embed_backward = LabKernel("lm/01_embed_backward.wgsl", lambda n, c: workgroups(n * c), adds=True)
embed_backward_rows = LabKernel("lm/01_embed_backward_rows.wgsl", lambda n, _: n, adds=True)


def embed_backward_grouped(operations: Operations, t: Tensors) -> None:
    """Add gradients to the table's rows, groups of equal tokens at a time."""
    groups = Groups(t["order"], t["starts"], t["rows"])
    operations.embed_backward_grouped(groups, t["grad_out"], t["grad_table"])


def embed_gradient_rows(operations: Operations, t: Tensors) -> None:
    """Sum gradients of equal tokens, into a row for each."""
    groups = Groups(t["order"], t["starts"], t["rows"])
    operations.embed_gradient_rows(groups, t["grad_out"], t["out"])


def embed_lookup_positions(
    operations: Operations,
    tokens: Tensor,
    table: Tensor,
    positions: Tensor,
    position_table: Tensor,
    out: Tensor,
) -> None:
    """Out = table[tokens] + position_table[positions], each 0 beyond its table.

    (N,), (V, C), (N,), (P, C), (N, C); float32, on every backend.
    """
    if not isinstance(operations, GpuOperations):

        def add_rows() -> None:
            rows = np.empty_like(out.array)
            copy_rows(position_table.array, positions.array, rows)
            copy_rows(table.array, tokens.array, out.array)
            out.array[...] += rows

        operations.append(add_rows)
        return
    bound = {"tokens": tokens, "table": table, "out": out, "positions": positions}
    bound |= {"position_table": position_table}
    sizes = dims(*out.shape, table.shape[0], position_table.shape[0])
    operations.dispatch(
        "lm/01_embed_lookup_positions.wgsl", workgroups(out.size), **bound, dims=sizes
    )


def embedding_cases(s: Sizes) -> Iterator[KernelCase]:
    """Lookup, its gradient, and zeros."""
    rows, width, tokens = s.rows, s.config.dim, s.tokens()
    distinct = len(np.unique(tokens))
    sizes = f"table {by(*s.table_shape)}, {rows:,} ids, {distinct:,} of them different"
    ids_and_out = 4 * rows + 4 * rows * width
    given = {"tokens": tokens, "positions": s.positions()}
    given |= zip(("order", "starts", "rows"), group_tokens(tokens), strict=True)

    def case(name: str, operands: str, operations: int, nbytes: int, **more: object) -> KernelCase:
        return s.case(name, operands, operations, lambda: given, sizes=sizes, bytes=nbytes, **more)

    half = {"where": "half-precision table", "needs_half": True}
    for table, row, more in (("table:VC", 4 * width, {}), ("table:VC:h", 2 * width, half)):
        nbytes = ids_and_out + distinct * row
        yield case("embed_lookup", f"tokens {table} +out:NC", 0, nbytes, tolerance=0, **more)
    yield case(
        "embed_lookup_positions",
        "tokens table:VC positions position_table:TC +out:NC",
        rows * width,
        ids_and_out + 4 * rows + 4 * width * (distinct + s.config.seq_len),
        record=lambda ops, t: embed_lookup_positions(ops, *t.values()),
    )
    for kernel, output, written in (
        (embed_backward_grouped, "*grad_table:VC", 2 * distinct),
        (embed_gradient_rows, "+out:NC", rows),
    ):
        operands = f"order starts rows grad_out:NC {output}"
        nbytes = 4 * rows + 8 * distinct + 4 * width * (rows + written)
        yield case(kernel.__name__, operands, rows * width, nbytes, record=kernel)
    yield s.case("fill_zero", "+x:VC", 0, tolerance=0)


def norm_cases(s: Sizes) -> Iterator[KernelCase]:
    """RMS norm and its gradients."""
    rows, width = s.rows, s.config.dim

    def norm(ops: Operations, t: Mapping[str, Tensor]) -> None:
        ops.rms_norm(Norm(**t), 1e-5)

    operands, operations = "x:NC weight:C +out:NC{} +inverse_rms:N", rows * (4 * width + 3)
    yield s.case("rms_norm", operands.format(""), operations, record=norm)
    yield s.case("rms_norm", operands.format(":h"), operations, record=norm, **HALVES)

    def given() -> dict[str, Array]:
        x = s.normal(rows, width)
        return {"x": x, "inverse_rms": 1 / np.sqrt(np.square(x).mean(axis=1) + np.float32(1e-5))}

    yield s.case(
        "rms_norm_backward",
        "x:NC weight:C inverse_rms grad_out:NC *grad_x:NC *grad_weight:C",
        9 * rows * width,
        given,
        record=lambda ops, t: ops.rms_norm_backward(
            Norm(t["x"], t["weight"], t["grad_out"], t["inverse_rms"]),  # it reads no output
            *(t[name] for name in ("grad_out", "grad_x", "grad_weight")),
        ),
    )


def linear_cases(s: Sizes) -> Iterator[KernelCase]:
    """Biases; matrix products of the feed-forward network, of the output layer, and of one row."""
    size = s.rows * s.config.dim
    yield s.case("add_bias", "*x:NC bias:C", size)
    yield s.case("bias_backward", "grad_out:NC *grad_bias:C", size)
    yield from _products(s, "F", "feed-forward")
    yield from _products(s, "V", "output layer")
    yield from _products(s, "F", "feed-forward", halves=True)
    half = "half-precision weights"
    yield _product(s, "N", f"feed-forward, {half}", half=True)
    yield _product(s, "1", "one row")
    yield _product(s, "1", f"one row, {half}", half=True)


def _product(s: Sizes, rows: str, where: str, *, half: bool = False) -> KernelCase:
    n, m, k = s.shape(f"{rows}FC")
    return s.case(
        "linear",
        f"x:{rows}C weight:FC{':h' if half else ''} +out:{rows}F",
        2 * n * m * k,
        sizes=f"{by(n, k)} to {by(n, m)}",
        where=where,
        needs_half=half,
        torch=None if half else lambda torch, t: torch.matmul(t["x"], t["weight"].T),
    )


def _products(s: Sizes, outputs: str, where: str, *, halves: bool = False) -> Iterator[KernelCase]:
    """Yield a linear layer and its gradients; halves: of factors in half precision."""
    rows, width, (m,) = s.rows, s.config.dim, s.shape(outputs)
    operations, half = 2 * rows * width * m, ":h" if halves else ""
    more: dict[str, Any] = {"where": where}
    if halves:  # torch rounds the products, too
        more = HALVES | {"where": f"{where}, half-precision factors", "halves": True}

    def add_product(torch: Any, t: Mapping[str, Any]) -> Any:
        return t["grad_weight"].add_(torch.matmul(t["grad_out"].T, t["x"]))

    def add_in_one(torch: Any, t: Mapping[str, Any]) -> Any:
        return t["grad_weight"].addmm_(t["grad_out"].T, t["x"])

    yield s.case(
        "linear",
        f"x:NC{half} weight:{outputs}C{half} +out:N{outputs}",
        operations,
        sizes=f"{by(rows, width)} to {by(rows, m)}",
        torch=lambda torch, t: torch.matmul(t["x"], t["weight"].T),
        **more,
    )
    yield s.case(
        "linear_backward_input",
        f"grad_out:N{outputs}{half} weight:{outputs}C{half} +grad_x:NC",
        operations,
        sizes=f"{by(rows, m)} to {by(rows, width)}",
        record=lambda ops, t: ops.linear_backward_input(*t.values(), accumulate=False),
        torch=lambda torch, t: torch.matmul(t["grad_out"], t["weight"]),
        **more,
    )
    yield s.case(
        "linear_backward_weight",
        f"grad_out:N{outputs}{half} x:NC{half} *grad_weight:{outputs}C",
        operations,
        sizes=f"{by(m, rows)} times {by(rows, width)}",
        torch=add_product if halves else add_in_one,
        **more,
    )


def attention_cases(s: Sizes) -> Iterator[KernelCase]:
    """Rotation and attention, forward and backward."""
    config = s.config
    sizes = f"{config.heads} heads of {config.head_dim}, {by(s.sequences, config.seq_len)} tokens"
    yield from _rotation_cases(s, sizes)
    heads = (config.heads, config.kv_heads, config.head_dim)
    shape = AttentionShape(s.sequences, config.seq_len, *heads)
    # How many keys all queries of all heads see together: a query sees those up to its own.
    pairs = shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2

    def starts() -> dict[str, Array]:
        return {"starts": np.zeros(s.rows, np.uint32)}

    # `out` and `log_sum_exp` are what the backward pass was given: any numbers make the same work,
    # if probabilities stay below one.
    def sums() -> dict[str, Array]:
        return {"log_sum_exp": np.full(s.shape("NH"), 7, np.float32), **starts()}

    def backward(ops: Operations, t: Mapping[str, Tensor]) -> None:
        ops.attention_backward(
            AttentionTensors(t["q"], t["k"], t["v"], t["out"], t["log_sum_exp"]),
            AttentionGradients(t["grad_q"], t["grad_k"], t["grad_v"], t["grad_out"]),
            t["starts"],
            shape,
        )

    halves = HALVES | {"where": "in half precision", "halves": True}
    for half, more in (("", {}), (":h", halves)):
        more |= {"sizes": sizes}
        inputs = f"q:NC{half} k:NK{half} v:NK{half}"
        yield s.case(
            "attention",
            f"{inputs} +out:NC{half} +log_sum_exp:NH starts",
            pairs * (2 * 2 * config.head_dim + SCORE_OPERATIONS),  # two products
            starts,
            record=lambda ops, t: ops.attention(
                AttentionTensors(t["q"], t["k"], t["v"], t["out"], t["log_sum_exp"]),
                t["starts"],
                shape,
            ),
            **more,
        )
        yield s.case(
            "attention_backward",
            f"{inputs} out:NC{half} log_sum_exp grad_out:NC{half}"
            " +grad_q:NC +grad_k:NK +grad_v:NK starts",
            pairs * (5 * 2 * config.head_dim + SCORE_OPERATIONS),  # five products
            sums,
            record=backward,
            **more,
        )


def _rotation_cases(s: Sizes, sizes: str) -> Iterator[KernelCase]:
    config = s.config

    def angles() -> dict[str, Array]:
        cosines, sines = rotary_tables(config.seq_len, scaled_frequencies(config))
        return {"cosines": cosines, "sines": sines, "positions": s.positions()}

    def rotation(t: Mapping[str, Tensor]) -> Rotation:
        return Rotation(t["cosines"], t["sines"], t["positions"], config.head_dim)

    def rotate(ops: Operations, t: Mapping[str, Tensor]) -> None:
        ops.rotary(t["x"], rotation(t), t.get("out"))

    columns = (0, config.dim, config.dim + config.kv_dim)

    def split(ops: Operations, t: Mapping[str, Tensor]) -> None:
        heads = AttentionTensors(t["q"], t["k"], t["v"], t["q"], t["q"])  # it writes no others
        ops.split_heads(t["x"], columns, rotation(t), heads)

    def join(ops: Operations, t: Mapping[str, Tensor]) -> None:
        grad = AttentionGradients(t["q"], t["k"], t["v"], t["q"])
        ops.join_heads(grad, rotation(t), t["grad_x"], columns)

    operations, tables = 3 * s.rows * config.dim, "cosines sines positions"
    yield s.case("rotary", f"*x:NC {tables}", operations, angles, sizes=sizes, record=rotate)
    if config.head_dim % 8 == 0:
        operands = f"x:NC {tables} +out:NC:h"
        more: dict[str, Any] = {"sizes": sizes, **HALVES}
        yield s.case("rotary", operands, operations, angles, record=rotate, **more)
        operands = f"x:NP:h {tables} +q:NC:h +k:NK:h +v:NK:h"
        yield s.case("split_heads", operands, operations, angles, record=split, **more)
        operands = f"q:NC k:NK v:NK {tables} +grad_x:NP:h"
        yield s.case("join_heads", operands, operations, angles, record=join, **more)


def _activate(ops: Operations, t: Tensors) -> None:
    *inner, out = t.values()
    ops.activate(GELU if "x" in t else SWIGLU, inner, out)


def _activate_backward(ops: Operations, t: Tensors) -> None:
    count = len(t) // 2
    inner, (grad_out, *gradients) = [*t.values()][:count], [*t.values()][count:]
    ops.activate_backward(GELU if "x" in t else SWIGLU, inner, grad_out, gradients)


def elementwise_cases(s: Sizes) -> Iterator[KernelCase]:
    """Activations, cross-entropy with the sum of the losses, and conversions of precision."""
    size = s.rows * s.config.ffn_dim
    yield s.case("swiglu", "gate:NF up:NF +out:NF", 5 * size, record=_activate)
    halves = HALVES | {"where": "in half precision", "sizes": by(s.rows, s.config.ffn_dim)}
    yield s.case(
        "swiglu",
        "gate:NG:h +out:NF:h",
        5 * size,
        record=_activate,
        **halves,
    )
    operands = "gate:NF up:NF grad_out:NF +grad_gate:NF +grad_up:NF"
    yield s.case("swiglu_backward", operands, 11 * size, record=_activate_backward)
    yield s.case(
        "swiglu_backward",
        "gate:NG:h grad_out:NF:h +grad_gate:NG:h",
        11 * size,
        record=_activate_backward,
        **halves,
    )
    yield s.case("gelu", "x:NF +out:NF", 9 * size, record=_activate)
    operands = "x:NF grad_out:NF +grad_x:NF"
    yield s.case("gelu_backward", operands, 19 * size, record=_activate_backward)
    rows, width = s.rows, s.vocabulary

    def find_losses(ops: Operations, t: Mapping[str, Tensor]) -> None:
        losses = Losses(t["losses"], t["smoothing"], t["z_losses"])
        inputs, gradient = (t["logits"], t["targets"], losses, t["params"]), t.get("gradient")
        ops.cross_entropy(*inputs, gradient=gradient)

    def given(scale: float) -> Mapping[str, Array]:
        params = np.array([scale / rows, 0.1, 1e-4, 1 / width], np.float32)
        return {"targets": s.tokens(), "params": params}

    shared: dict[str, Any] = {"uniforms": ("params",), "record": find_losses}
    # Gradients take the place of the logits, or go elsewhere, scaled as in training.
    parts = "targets +losses:N +smoothing:N +z_losses:N params"
    for operands, scale, more in (
        (f"*logits:NV {parts}", 1, shared),
        (f"logits:NV {parts} +gradient:NV:h", FIRST_SCALE, shared | HALVES),
    ):
        content = partial(given, scale)
        yield s.case("cross_entropy", operands, 7 * rows * width, content, **more)
    yield s.case(
        "argmax",
        "logits:NV *out",
        rows * width,
        lambda: {"out": np.zeros(rows, np.uint32)},
        record=lambda ops, t: ops.argmax(*t.values(), width),
        tolerance=0,
    )
    losses, sizes = np.abs(s.normal(rows)), f"{rows:,} losses"
    yield s.case("sum_losses", "losses +sum:1", rows, lambda: {"losses": losses}, sizes=sizes)
    yield s.case("scale", "x:VC +out:VC", s.vocabulary * s.config.dim, more=(2.0,))
    yield s.case("cast_f32_to_f16", "x:VC +out:VC:h", 0, needs_half=True, tolerance=0)
    yield s.case("round_to_half", "x:VC +out:VC:h", 0, needs_half=True, tolerance=0)
    yield s.case("cast_f16_to_f32", "x:VC:h +out:VC", 0, needs_half=True, tolerance=0)


LAYERS = (
    embedding_cases,
    norm_cases,
    linear_cases,
    attention_cases,
    generating_cases,
    elementwise_cases,
)
