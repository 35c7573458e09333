"""The operations of an optimizer one at a time, on a tensor of the embedding table's size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from llmgpu.bench.models import kernel_costs as costs
from llmgpu.bench.models.kernel_cases import Array, KernelCase, Sizes, Tensors, by, empty
from llmgpu.lm.ops.hyper import AdamW, hyper_parameters
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.weight_state import WeightUpdate
from llmgpu.lm.optimizers.adamw import Moments, RowMoments
from llmgpu.lm.optimizers.adamw_8bit import BLOCK, BlockCodes, CodedMoments

TENSORS = 110  # of a model with 12 layers
LEARNING_RATE = 0.1  # large, so that an update changes what is compared
STEP = 10


def hyper() -> Array:
    """Return what a step's `hyper` holds."""
    return hyper_parameters(AdamW(), STEP, LEARNING_RATE, 1.0, 0)


def good_stats() -> Array:
    """Return the `stats` of a step that is not bad, in which gradients are clipped to a half."""
    return np.array([0.5, 2.0, 0.0, 1.0], np.float32)


def gradient_cases(s: Sizes) -> Iterator[KernelCase]:
    """Norm of a gradient, and what is made of all of them."""
    shape = (s.vocabulary, s.config.dim)
    yield KernelCase(
        "reduce_norm_sq",
        by(*shape),
        costs.reduce_norm_sq(s.vocabulary * s.config.dim),
        lambda: {"grad": s.normal(*shape), "partials": empty(1, NORM_PARTIALS)},
        ("partials",),
        lambda ops, t: ops.reduce_norm_sq(t["grad"], t["partials"], 0),
        total=("partials",),
    )
    names = ("partials", "loss_sums", "stats", "history", "hyper")
    yield KernelCase(
        "finalize_grad_stats",
        f"{TENSORS} tensors",
        costs.finalize_grad_stats(TENSORS, 1),
        lambda: {
            "partials": np.abs(s.normal(TENSORS, NORM_PARTIALS)),
            "loss_sums": np.ones(1, np.float32),
            "stats": np.zeros(4, np.float32),
            "history": empty(1, 4),
            "hyper": hyper(),
        },
        ("stats", "history"),
        lambda ops, t: ops.finalize_grad_stats(*(t[name] for name in names)),
        uniforms=("hyper",),
    )


def adamw_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates in single precision, and with a half-precision mirror."""
    size = s.vocabulary * s.config.dim
    return _with_and_without_mirror(
        s,
        "adamw_update",
        by(s.vocabulary, s.config.dim),
        lambda mirror: costs.adamw_update(size, mirror=mirror),
        lambda: _float_state(s),
        ("parameter", "first", "second"),
        lambda ops, t: ops.update_weight(Moments(t["first"], t["second"]), _update(t)),
    )


def adamw_8bit_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates whose moments are 8-bit codes."""
    size = s.vocabulary * s.config.dim
    return _with_and_without_mirror(
        s,
        "adamw_8bit_update",
        by(s.vocabulary, s.config.dim),
        lambda mirror: costs.adamw_8bit_update(size, mirror=mirror),
        lambda: _coded_state(s),
        # Codes of numbers half way between two may differ by one.
        ("parameter", "first_scales", "second_scales"),
        _record_8bit,
    )


def row_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates and zeros of the rows that a batch has touched."""
    rows = np.unique(s.tokens())
    sizes = f"{len(rows):,} rows of {by(s.vocabulary, s.config.dim)}"
    yield from _with_and_without_mirror(
        s,
        "adamw_update_rows",
        sizes,
        lambda mirror: costs.adamw_update_rows(len(rows), s.config.dim, mirror=mirror),
        lambda: _float_state(s) | {"rows": rows},
        ("parameter", "first", "second"),
        lambda ops, t: ops.update_weight(
            RowMoments(t["first"], t["second"], t["rows"]), _update(t)
        ),
    )
    yield KernelCase(
        "fill_zero_rows",
        sizes,
        costs.fill_zero_rows(len(rows), s.config.dim),
        lambda: {"table": s.normal(s.vocabulary, s.config.dim), "rows": rows},
        ("table",),
        lambda ops, t: ops.fill_zero_rows(t["table"], t["rows"]),
        tolerance=0,
    )


def _with_and_without_mirror(
    s: Sizes,
    name: str,
    sizes: str,
    cost: Callable[[bool], costs.Cost],
    make: Callable[[], dict[str, Array]],
    outputs: tuple[str, ...],
    record: Callable[[Any, Tensors], None],
) -> Iterator[KernelCase]:
    """Yield an update without a half-precision mirror of the parameter, then with one."""
    shape = (s.vocabulary, s.config.dim)
    yield KernelCase(name, sizes, cost(False), make, outputs, record, uniforms=("hyper",))
    yield KernelCase(
        f"{name}_f16",
        sizes,
        cost(True),
        lambda: make() | {"mirror": np.zeros(shape, np.float16)},
        outputs,
        record,
        uniforms=("hyper",),
        needs_half=True,
    )


def _float_state(s: Sizes) -> dict[str, Array]:
    height, width = s.vocabulary, s.config.dim
    return {
        "parameter": s.normal(height, width),
        "gradient": s.normal(height + 1, width)[1:],
        "first": s.normal(height + 2, width)[2:],
        "second": np.abs(s.normal(height + 3, width)[3:]),
        "stats": good_stats(),
        "hyper": hyper(),
    }


def _coded_state(s: Sizes) -> dict[str, Array]:
    blocks = -(-s.vocabulary * s.config.dim // BLOCK)
    codes = np.resize(np.arange(1, 128, dtype=np.uint8), blocks * BLOCK)
    return {
        "parameter": s.normal(s.vocabulary, s.config.dim),
        "gradient": s.normal(s.vocabulary + 1, s.config.dim)[1:],
        "first_codes": codes,
        "first_scales": np.ones(blocks, np.float32),
        "second_codes": codes + np.uint8(128),
        "second_scales": np.ones(blocks, np.float32),
        "stats": good_stats(),
        "hyper": hyper(),
    }


def _record_8bit(ops: Any, t: Tensors) -> None:
    moments = (BlockCodes(t[f"{name}_codes"], t[f"{name}_scales"]) for name in ("first", "second"))
    ops.update_weight(CodedMoments(*moments), _update(t))


def _update(t: Tensors) -> WeightUpdate:
    fixed = (t["parameter"], t["gradient"], t["stats"], t["hyper"])
    return WeightUpdate(*fixed, decays=True, half_copy=t.get("mirror"))
