"""The operations of a language model one at a time: inputs, and what is to be compared and paid.

Kernels that only the embedding's own comparison uses are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench import kernel_costs as costs
from llmgpu.bench.kernel_costs import Cost
from llmgpu.bench.training_steps import uneven_ids
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.ops.attention import AttentionShape
from llmgpu.lm.ops.embedding import group_tokens
from llmgpu.lm.ops.rotary import rotary_tables
from llmgpu.lm.ops.tensor import Tensor

Array = NDArray[Any]
Tensors = dict[str, Tensor]
TOLERANCE = 3e-5  # NumPy and a GPU round differently, and add up in other orders
_PERIOD = 1_000_003  # random numbers that an array repeats


@dataclass(frozen=True)
class KernelCase:
    """An operation on given inputs.

    name: of the operation. sizes: for people. make: gives all tensors' first content by name, NaN
    for those that are written only. outputs: names of those to compare. record: records the
    operation. where: tells cases of one operation apart. uniforms: names of those that a kernel
    takes as a uniform. needs_half: whether it takes half precision. total: names of those outputs
    of which only the sum is the same everywhere. torch: the same in torch, in place or returned.
    """

    name: str
    sizes: str
    cost: Cost
    make: Callable[[], dict[str, Array]]
    outputs: tuple[str, ...]
    record: Callable[[Any, Tensors], None]
    where: str = ""
    uniforms: tuple[str, ...] = ()
    needs_half: bool = False
    tolerance: float = TOLERANCE
    total: tuple[str, ...] = ()
    torch: Callable[[Any, dict[str, Any]], Any] | None = None

    @property
    def variant(self) -> str:
        """What tables call it."""
        return f"{self.name}, {self.where}" if self.where else self.name


@dataclass(frozen=True)
class Sizes:
    """A model and the sequences of a batch, from which all cases take their shapes."""

    config: ModelConfig
    sequences: int
    _block: list[NDArray[np.float32]] = field(default_factory=list, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Tokens of a batch (N)."""
        return self.sequences * self.config.seq_len

    @property
    def vocabulary(self) -> int:
        """Rows of the table (V)."""
        return self.config.padded_vocab_size

    @property
    def attention_shape(self) -> AttentionShape:
        """Sizes of attention."""
        config = self.config
        heads = (config.heads, config.kv_heads, config.head_dim)
        return AttentionShape(self.sequences, config.seq_len, *heads)

    def tokens(self) -> NDArray[np.uint32]:
        """Return ids (N,), as uneven as in a text."""
        generator = np.random.default_rng(1)
        return uneven_ids(generator, self.config.vocab_size, (self.rows,))

    def positions(self) -> NDArray[np.uint32]:
        """Return where in its sequence each row is, (N,)."""
        return np.tile(np.arange(self.config.seq_len, dtype=np.uint32), self.sequences)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """Return normal random numbers; what is large repeats them."""
        if not self._block:
            self._block.append(np.random.default_rng(2).standard_normal(_PERIOD, np.float32))
        return np.resize(self._block[0], shape)


def empty(*shape: int) -> NDArray[np.float32]:
    """Return an array for outputs, which shows what is left unwritten."""
    return np.full(shape, np.nan, np.float32)


def by(*sizes: int) -> str:
    """Spell a shape."""
    return " x ".join(f"{size:,}" for size in sizes)


def embedding_cases(s: Sizes) -> Iterator[KernelCase]:
    """Lookup, its gradient, and zeros."""
    rows, width = s.rows, s.config.dim
    distinct = len(np.unique(s.tokens()))
    sizes = f"table {by(s.vocabulary, width)}, {rows:,} ids, {distinct:,} of them different"
    for dtype, where in ((np.float32, ""), (np.float16, "half-precision table")):

        def make(dtype: Any = dtype) -> dict[str, Array]:
            table = s.normal(s.vocabulary, width).astype(dtype)
            return {"tokens": s.tokens(), "table": table, "out": empty(rows, width)}

        yield KernelCase(
            "embed_lookup",
            sizes,
            costs.embed_lookup(rows, distinct, width, np.dtype(dtype).itemsize),
            make,
            ("out",),
            lambda ops, t: ops.embed_lookup(t["tokens"], t["table"], t["out"]),
            where=where,
            needs_half=dtype is np.float16,
            tolerance=0,
        )
    yield KernelCase(
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
        lambda ops, t: ops.embed_lookup_positions(
            t["tokens"], t["table"], t["positions"], t["position_table"], t["out"]
        ),
    )
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
