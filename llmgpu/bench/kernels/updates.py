"""The operations of an optimizer: on a tensor of the embedding table's size, and on all weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from llmgpu.bench.kernels.cases import Array, Arrays, KernelCase, Sizes, Tensors, by, empty
from llmgpu.lm.ops.block_codes import BLOCK, BlockCodes
from llmgpu.lm.ops.hyper import AdamW, hyper_parameters
from llmgpu.lm.ops.optimizer import NORM_PARTIALS

TENSORS = 110  # of a model with 12 layers
LEARNING_RATE = 0.1  # large, so that an update changes what is compared
STEP = 10
ADAMW_OPERATIONS = 15  # for each number: clipping 1, moments 7, denominator 3, decay 1, step 3
CODING_OPERATIONS = 20  # for each number: two codes to numbers and back, and the largest of a block
STATE = ("parameter", "gradient", "first", "second")
ALL_WEIGHTS = "all weights"


def step_parameters() -> Arrays:
    """Return `stats` of a step that is not bad and clips gradients to a half, and its `hyper`."""
    return {"stats": np.array([0.5, 2.0, 0.0, 1.0], np.float32), "hyper": _hyper()}


def gradient_cases(s: Sizes) -> Iterator[KernelCase]:
    """Norm of a gradient, and what is made of all of them."""
    size = s.vocabulary * s.config.dim
    yield KernelCase(
        "reduce_norm_sq",
        by(*s.table_shape),
        2 * size,
        lambda: {"grad": s.normal(*s.table_shape), "partials": empty(1, NORM_PARTIALS)},
        ("partials",),
        more=(0,),
        total=("partials",),
    )
    yield KernelCase(
        "finalize_grad_stats",
        f"{TENSORS} tensors",
        TENSORS * NORM_PARTIALS + 1,
        lambda: {
            "partials": np.abs(s.normal(TENSORS, NORM_PARTIALS)),
            "loss_sums": np.ones(1, np.float32),
            "stats": np.zeros(4, np.float32),
            "history": empty(1, 4),
            "hyper": _hyper(),
        },
        ("stats", "history"),
        uniforms=("hyper",),
    )


def adamw_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates in single precision, and with a half-precision copy of the parameter."""
    size = s.vocabulary * s.config.dim
    case = KernelCase(
        "adamw_update",
        by(*s.table_shape),
        ADAMW_OPERATIONS * size,
        lambda: _float_state(s, *s.table_shape) | step_parameters(),
        ("parameter", "first", "second"),
        record=_record_adamw,
        uniforms=("hyper",),
    )
    return _with_and_without_copy(s, case)


def adamw_8bit_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates whose moments are 8-bit codes."""
    size = s.vocabulary * s.config.dim
    case = KernelCase(
        "adamw_8bit_update",
        by(*s.table_shape),
        (ADAMW_OPERATIONS + CODING_OPERATIONS) * size,
        lambda: _coded_state(s) | step_parameters(),
        ("parameter", "first_scales", "second_scales"),
        # Codes of numbers half way between two may differ by one.
        uncompared=("first_codes", "second_codes"),
        record=_record_8bit,
        uniforms=("hyper",),
    )
    return _with_and_without_copy(s, case)


def row_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updates and zeros of the rows that a batch has touched."""
    rows = np.unique(s.tokens())
    sizes = f"{len(rows):,} rows of {by(*s.table_shape)}"
    touched = len(rows) * s.config.dim
    names = (*STATE, "rows", "stats", "hyper")
    case = KernelCase(
        "adamw_update_rows",
        sizes,
        ADAMW_OPERATIONS * touched,
        lambda: _float_state(s, *s.table_shape) | {"rows": rows} | step_parameters(),
        ("parameter", "first", "second"),
        record=lambda ops, t: ops.adamw_update_rows(
            *(t[name] for name in names), decay=True, mirror=t.get("mirror")
        ),
        uniforms=("hyper",),
        bytes=28 * touched + 4 * len(rows),
    )
    yield from _with_and_without_copy(s, case, copied_bytes=2 * touched)
    yield KernelCase(
        "fill_zero_rows",
        sizes,
        0,
        lambda: {"table": s.normal(*s.table_shape), "rows": rows},
        ("table",),
        tolerance=0,
        bytes=4 * touched + 4 * len(rows),
    )


def all_weights_cases(s: Sizes) -> Iterator[KernelCase]:
    """Updating all weights of a model and their half-precision copies, in two ways.

    In one kernel a tensor, which writes the copy of a number that it has just computed; or in two,
    where another dispatch for each of the 110 tensors of 12 layers reads it again.
    """
    config = s.updated or s.config
    weights = list(config.weights())
    numbers = range(len(weights))

    def make() -> Arrays:
        arrays: Arrays = {}
        for k, weight in enumerate(weights):
            state = _float_state(s, *weight.shape)
            state["mirror"] = empty(*weight.shape, dtype=np.float16)
            arrays |= {f"{name} {k}": array for name, array in state.items()}
        return arrays | step_parameters()

    def record(ops: Any, t: Tensors, *, fused: bool) -> None:
        for k, weight in enumerate(weights):
            state = (t[f"{name} {k}"] for name in STATE)
            copy = t[f"mirror {k}"]
            mirror = copy if fused else None
            ops.adamw_update(*state, t["stats"], t["hyper"], decay=weight.decays, mirror=mirror)
            if not fused:
                ops.cast_f32_to_f16(t[f"parameter {k}"], copy)

    millions = f"{config.parameters / 1e6:,.1f} M parameters"
    yield KernelCase(
        "adamw_update_f16",
        f"{config.layers} layers, {len(weights)} tensors, {millions}",
        ADAMW_OPERATIONS * config.parameters,
        make,
        tuple(f"parameter {k}" for k in numbers),
        uncompared=tuple(f"{name} {k}" for name in ("first", "second") for k in numbers),
        copies={f"mirror {k}": f"parameter {k}" for k in numbers},
        record=lambda ops, t: record(ops, t, fused=True),
        separate=lambda ops, t: record(ops, t, fused=False),
        where=ALL_WEIGHTS,
        uniforms=("hyper",),
        needs_half=True,
    )


def _with_and_without_copy(
    s: Sizes, case: KernelCase, copied_bytes: int = 0
) -> Iterator[KernelCase]:
    """Yield an update without a half-precision copy of the parameter, then with one.

    copied_bytes: of the copy, where a case says what it has to move.
    """
    yield case
    yield replace(
        case,
        name=f"{case.name}_f16",
        make=lambda: case.make() | {"mirror": empty(*s.table_shape, dtype=np.float16)},
        copies={"mirror": "parameter"} if not case.bytes else {},
        needs_half=True,
        bytes=None if case.bytes is None else case.bytes + copied_bytes,
    )


def _hyper() -> Array:
    return hyper_parameters(AdamW(), STEP, LEARNING_RATE, 1.0, 0)


def _float_state(s: Sizes, *shape: int) -> Arrays:
    state: Arrays = {name: s.normal(*shape, skip=skip) for skip, name in enumerate(STATE)}
    return state | {"second": np.abs(state["second"])}


def _coded_state(s: Sizes) -> Arrays:
    blocks = -(-s.vocabulary * s.config.dim // BLOCK)
    codes = np.resize(np.arange(1, 128, dtype=np.uint8), blocks * BLOCK)
    return {
        "parameter": s.normal(*s.table_shape),
        "gradient": s.normal(*s.table_shape, skip=1),
        "first_codes": codes,
        "first_scales": np.ones(blocks, np.float32),
        "second_codes": codes + np.uint8(128),
        "second_scales": np.ones(blocks, np.float32),
    }


def _record_adamw(ops: Any, t: Tensors) -> None:
    arguments = (t[name] for name in (*STATE, "stats", "hyper"))
    ops.adamw_update(*arguments, decay=True, mirror=t.get("mirror"))


def _record_8bit(ops: Any, t: Tensors) -> None:
    moments = (BlockCodes(t[f"{name}_codes"], t[f"{name}_scales"]) for name in ("first", "second"))
    ops.adamw_8bit_update(
        t["parameter"],
        t["gradient"],
        *moments,
        t["stats"],
        t["hyper"],
        decay=True,
        mirror=t.get("mirror"),
    )
