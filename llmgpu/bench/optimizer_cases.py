"""The operations of optimizers, on a tensor of the embedding table's size and on all weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from llmgpu.bench.cases import Arrays, KernelCase, Sizes, Tensors, by, empty
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import (
    LOSS_PARTS,
    NORM_PARTIALS,
    WeightState,
    WeightUpdate,
)
from llmgpu.lm.optimizers.adamw import BLOCK, BlockCodes, CodedMoments, Moments, RowMoments
from llmgpu.lm.optimizers.muon import ITERATIONS, MUON, Momentum
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters

TENSORS = 110  # tensors of a model with 12 layers
LEARNING_RATE = 0.1  # so large that updates of weights exceed rounding errors
STEP = 10
# Clipping takes 1 operation per number, moments 7, the denominator 3, decay 1, the step 3.
ADAMW_OPERATIONS = 15
# Operations per number for decoding and coding two moments, and for the maximum of a block.
CODING_OPERATIONS = 20
STATE = ("parameter", "gradient", "first", "second")
ALL_WEIGHTS = "all weights"
_STATE_OPERANDS = "*parameter:VC gradient:VC *first:VC *second:VC"


def gradient_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield norms of gradients, and the statistics of a step, which follow from all norms."""
    # The gradient of the embedding table. partials: (gradients, NORM_PARTIALS), sums of squares.
    size = s.vocabulary * s.config.dim
    total: dict[str, Any] = {"total": ("partials",)}
    one = {"partials": empty(1, NORM_PARTIALS)}
    yield s.case("reduce_norm_sq", "grad:VC +partials", 2 * size, lambda: one, index=0, **total)
    # The gradients of a layer, in one operation.
    shapes = ("CC", "KC", "KC", "CC", "FC", "FC", "CF", "C", "C")
    operands = " ".join(f"grads_{k}:{letters}" for k, letters in enumerate(shapes))
    shared = {"partials": empty(len(shapes), NORM_PARTIALS)}
    size, sizes = (
        sum(int(np.prod(s.shape(k))) for k in shapes),
        f"{len(shapes)} gradients of a layer",
    )
    yield s.case(
        "reduce_norms", f"{operands} +partials", 2 * size, lambda: shared, sizes=sizes, **total
    )
    # The statistics of a step, of which history has a row for each step.
    yield s.case(
        "finalize_grad_stats",
        "partials loss_sums *stats +history hyper",
        TENSORS * NORM_PARTIALS + 1,
        lambda: {
            **step_parameters(),
            "partials": np.abs(s.normal(TENSORS, NORM_PARTIALS)),
            "loss_sums": np.ones(LOSS_PARTS, np.float32),
            "stats": np.zeros(4, np.float32),
            "history": empty(1, 8),
        },
        sizes=f"{TENSORS} tensors",
    )


def adamw_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield AdamW without and with a half-precision copy of the parameter."""
    return _with_and_without_copy(
        s,
        "adamw_update",
        _STATE_OPERANDS,
        ADAMW_OPERATIONS * s.vocabulary * s.config.dim,
        lambda: _state(s),
        lambda t: Moments(t["first"], t["second"]),
    )


def adamw_8bit_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield AdamW with moments in 8-bit codes, without and with a half-precision copy."""
    blocks = -(-s.vocabulary * s.config.dim // BLOCK)
    codes = np.resize(np.arange(1, 128, dtype=np.uint8), blocks * BLOCK)
    scales = np.ones(blocks, np.float32)
    moments: Arrays = {"first_codes": codes, "second_codes": codes + np.uint8(128)}
    moments |= {"first_scales": scales, "second_scales": scales}
    return _with_and_without_copy(
        s,
        "adamw_8bit_update",
        "*parameter:VC gradient:VC first_codes *first_scales second_codes *second_scales",
        (ADAMW_OPERATIONS + CODING_OPERATIONS) * s.vocabulary * s.config.dim,
        lambda: step_parameters() | moments,
        lambda t: CodedMoments(
            BlockCodes(t["first_codes"], t["first_scales"]),
            BlockCodes(t["second_codes"], t["second_scales"]),
        ),
        # The codes are not compared: a number half way between two codes may get either code.
        uncompared=("first_codes", "second_codes"),
    )


def row_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield AdamW on the rows of a batch's tokens, without and with a half-precision copy."""
    rows = np.unique(s.tokens())
    sizes = f"{len(rows):,} rows of {by(*s.shape('VC'))}"
    touched = len(rows) * s.config.dim
    plain, with_copy = _with_and_without_copy(
        s,
        "adamw_update_rows",
        "*parameter:VC gradient *first:VC *second:VC rows",
        ADAMW_OPERATIONS * touched,
        lambda: _state(s) | {"rows": rows, "gradient": s.normal(len(rows), s.config.dim, skip=1)},
        lambda t: RowMoments(t["first"], t["second"], t["rows"]),
        sizes=sizes,
        bytes=28 * touched + 4 * len(rows),
    )
    yield plain
    # Rows that are not updated have no copy, so the copies are not compared.
    yield replace(with_copy, copies={}, bytes=30 * touched + 4 * len(rows))


def muon_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield Muon on a matrix of the feed-forward network, without and with a copy."""
    height, width = s.shape("FC")
    products = 2 * ITERATIONS * (2 * height * width**2 + width**3)

    def record(ops: Operations, t: Tensors) -> None:
        MUON.record(ops, [(Momentum(t["momentum"]), _weight_update(t))])

    case = s.case(
        "muon_update",
        "*parameter:FC gradient:FC *momentum:FC stats hyper",
        products + ADAMW_OPERATIONS * height * width,
        step_parameters,
        record=record,
    )
    yield case
    # With a copy, the factors of Muon's products are in half precision.
    yield replace(_with_copy(case, s.shape("FC")), tolerance=2e-3)


def all_weights_cases(s: Sizes) -> Iterator[KernelCase]:
    """Yield two ways to update all weights of a model and their half-precision copies.

    In the first way, one kernel writes a weight and its copy. In the second way, another kernel
    reads each weight again and writes its copy: 110 more dispatches for a model of 12 layers.
    """
    # Tensors of weight k: "parameter k", "gradient k", "first k", "second k" and "mirror k".
    config = s.updated or s.config
    weights = list(config.weights())
    numbers = range(len(weights))

    def make() -> Arrays:
        arrays: Arrays = {}
        for k, weight in enumerate(weights):
            for skip, name in enumerate(STATE):
                arrays[f"{name} {k}"] = s.normal(*weight.shape, skip=skip)
            arrays[f"second {k}"] = np.abs(arrays[f"second {k}"])
            arrays[f"mirror {k}"] = empty(*weight.shape, dtype=np.float16)
        return arrays | step_parameters()

    def record_in(ops: Operations, t: Tensors, *, fused: bool) -> None:
        for k, weight in enumerate(weights):
            copy = t[f"mirror {k}"]
            update = _weight_update(t, f" {k}", decays=weight.decays, half_copy=fused)
            ops.update_weight(Moments(t[f"first {k}"], t[f"second {k}"]), update)
            if not fused:
                ops.cast_f32_to_f16(t[f"parameter {k}"], copy)

    # In the first case one kernel writes a weight and its copy, in the second case two kernels do.
    case = KernelCase(
        "adamw_update_f16",
        f"{config.layers} layers, {len(weights)} tensors, {config.parameters / 1e6:,.1f} M "
        "parameters",
        ADAMW_OPERATIONS * config.parameters,
        make,
        tuple(f"parameter {k}" for k in numbers),
        uncompared=tuple(f"{name} {k}" for name in ("first", "second") for k in numbers),
        copies={f"mirror {k}": f"parameter {k}" for k in numbers},
        record=lambda ops, t: record_in(ops, t, fused=True),
        where=ALL_WEIGHTS,
        needs_half=True,
    )
    yield case
    yield replace(
        case,
        name="adamw_update",
        where=f"{ALL_WEIGHTS}, then cast",
        record=lambda ops, t: record_in(ops, t, fused=False),
    )


def step_parameters() -> Arrays:
    """Return `hyper` and `stats` for a step with finite gradients, which clipping halves."""
    hyper = hyper_parameters(TrainOptions(), STEP, LEARNING_RATE, 1.0, 0)
    return {"stats": np.array([0.5, 2.0, 0.0, 1.0], np.float32), "hyper": hyper}


def _state(s: Sizes) -> Arrays:
    return step_parameters() | {"second": np.abs(s.normal(*s.shape("VC"), skip=3))}


def _with_and_without_copy(
    s: Sizes,
    name: str,
    operands: str,
    operations: int,
    given: Callable[[], Arrays],
    state: Callable[[Tensors], WeightState],
    **more: Any,
) -> Iterator[KernelCase]:
    """Yield an update without a half-precision copy of the parameter, then with a copy.

    state: makes the optimizer's state of a weight from the tensors of a case.
    """

    def record(ops: Operations, t: Tensors) -> None:
        ops.update_weight(state(t), _weight_update(t))

    case = s.case(name, f"{operands} stats hyper", operations, given, record=record, **more)
    yield case
    yield _with_copy(case, s.shape("VC"))


def _with_copy(case: KernelCase, shape: tuple[int, ...]) -> KernelCase:
    return replace(
        case,
        name=f"{case.name}_f16",
        make=lambda: case.make() | {"mirror": empty(*shape, dtype=np.float16)},
        copies={"mirror": "parameter"},
        needs_half=True,
    )


def _weight_update(
    t: Tensors, suffix: str = "", *, decays: bool = True, half_copy: bool = True
) -> WeightUpdate:
    weight, gradient = t[f"parameter{suffix}"], t[f"gradient{suffix}"]
    copy = t.get(f"mirror{suffix}") if half_copy else None
    return WeightUpdate(weight, gradient, t["stats"], t["hyper"], decays, copy)


UPDATES = (gradient_cases, adamw_cases, adamw_8bit_cases, row_cases, muon_cases, all_weights_cases)
