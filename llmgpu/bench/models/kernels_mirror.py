"""Updating all weights of a model and their half-precision copies: in one kernel a tensor, or two.

The fused kernel writes the copy of a number that it has just computed; otherwise another dispatch
for each of the 110 tensors of 12 layers reads it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.measuring.clocks import raise_clocks
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import host_times, time_program
from llmgpu.bench.measuring.times import summarize
from llmgpu.bench.models.kernel_cases import TOLERANCE, Array, Sizes, Tensors
from llmgpu.bench.models.kernel_cases_updates import good_stats, hyper
from llmgpu.bench.models.kernel_costs import Cost, adamw_update
from llmgpu.bench.models.kernel_results import (
    NO_HALF_PRECISION,
    WHAT,
    Result,
    add_cost,
    add_times,
    same_values,
)
from llmgpu.bench.part import PartOptions, begin_part_result
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import ModelConfig, Weight, preset
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.ops.cast import LARGEST_HALF
from llmgpu.lm.ops.operations import Program
from llmgpu.lm.ops.weight_state import WeightUpdate
from llmgpu.lm.optimizers.adamw import Moments
from llmgpu.progress import Progress

VARIANT = "adamw_update_f16, all weights"
SECONDS, QUICK_SECONDS = 1.0, 0.1  # after which no further run of a way begins
STATE = ("parameter", "gradient", "first", "second")


class ModelUpdate:
    """An update of all weights of a model on an engine, recorded in both ways."""

    def __init__(self, engine: Engine, sizes: Sizes) -> None:
        """Make the tensors.

        Raises:
            DeviceError: there is no memory for them.
        """
        self.operations: Any = open_operations(engine.backend.device)
        self.weights = list(sizes.config.weights())
        self._sizes = sizes
        self._stats = self.operations.tensor("stats", (4,))
        self._hyper = self.operations.parameters("hyper", (), hyper().dtype)
        self.tensors = [self._make(weight) for weight in self.weights]
        self.fused = self._record(fused=True)
        self.separate = self._record(fused=False)

    def _make(self, weight: Weight) -> Tensors:
        tensors = {name: self.operations.tensor(name, weight.shape) for name in STATE}
        return tensors | {"mirror": self.operations.tensor("mirror", weight.shape, np.float16)}

    def _record(self, *, fused: bool) -> Program:
        with self.operations.record(VARIANT) as program:
            for weight, t in zip(self.weights, self.tensors, strict=True):
                fixed = (t["parameter"], t["gradient"], self._stats, self._hyper)
                half_copy = t["mirror"] if fused else None
                self.operations.update_weight(
                    Moments(t["first"], t["second"]),
                    WeightUpdate(*fixed, weight.decays, half_copy),
                )
                if not fused:
                    self.operations.cast_f32_to_f16(t["parameter"], t["mirror"])
        return program  # type: ignore[no-any-return]

    def load(self) -> None:
        """Write what all tensors are to hold before an update."""
        self.operations.write(self._stats, good_stats())
        self.operations.write(self._hyper, hyper())
        for weight, tensors in zip(self.weights, self.tensors, strict=True):
            for name, values in first_state(self._sizes, weight).items():
                self.operations.write(tensors[name], values)

    def updated(self, program: Program) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Update once from what `load` writes; yield each parameter with its mirror."""
        self.load()
        self.operations.run(program)
        for tensors in self.tensors:
            parameter, mirror = (
                self.operations.read(tensors[name]) for name in ("parameter", "mirror")
            )
            yield parameter, mirror


def measure_mirror_update(
    engine: Engine, options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield one result with the times of both ways."""
    config = model_config(engine, quick=options.quick)
    progress(f"{WHAT}: {engine.name}, {VARIANT}", 0, 1)
    count = sum(1 for _ in config.weights())
    job = f"{config.layers} layers, {count} tensors, {config.parameters / 1e6:,.1f} M parameters"
    result = begin_part_result(WHAT, engine.name, job) | {"variant": VARIANT}
    if not open_operations(engine.backend.device).has_half_precision:
        yield result | {"note": NO_HALF_PRECISION}
        return
    try:
        sizes = Sizes(config, 1)
        update = ModelUpdate(engine, sizes)
        if _compare(result, update, sizes):
            _measure(result, update, engine, options)
    except LlmgpuError as error:
        result["note"] = str(error)
    yield result


def model_config(engine: Engine, *, quick: bool) -> ModelConfig:
    """Return a model of 12 layers: GPT-2 small on a GPU, a narrow one where a CPU computes."""
    if not engine.backend.is_software and not quick:
        return preset("gpt2", 50_257)
    return preset("tiny", 512, layers=12, dim=64, ffn_dim=192)


def first_state(sizes: Sizes, weight: Weight) -> dict[str, Array]:
    """Return parameter, gradient and moments of a weight before an update."""
    values = sizes.normal(len(STATE) * weight.size).reshape(len(STATE), *weight.shape)
    state: dict[str, Array] = dict(zip(STATE, values, strict=True))
    return state | {"second": np.abs(state["second"])}


def _compare(result: Result, update: ModelUpdate, sizes: Sizes) -> bool:
    """Compare both ways' answers, weight by weight, with NumPy's and with each other."""
    fused = list(update.updated(update.fused))
    correct = True
    for weight, (parameter, mirror) in zip(update.weights, fused, strict=True):
        wanted = _numpy_update(first_state(sizes, weight), decay=weight.decays)
        halves = np.clip(parameter, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
        correct &= same_values(parameter, wanted, TOLERANCE) and np.array_equal(mirror, halves)
    for one, other in zip(fused, update.updated(update.separate), strict=True):
        correct &= all(map(np.array_equal, one, other))
    result["correct"] = bool(correct)
    same = f"the numbers of NumPy, within {TOLERANCE:g}, and the same in both ways"
    result["answer"] = same if correct else "NOT the numbers of NumPy in both ways"
    return bool(correct)


def _numpy_update(state: dict[str, Array], *, decay: bool) -> NDArray[np.float32]:
    operations = open_operations(None)
    tensors = {}
    for name, array in (state | {"stats": good_stats(), "hyper": hyper()}).items():
        tensors[name] = operations.tensor(name, array.shape, array.dtype)
        operations.write(tensors[name], array)
    with operations.record(VARIANT) as program:
        moments = Moments(tensors["first"], tensors["second"])
        fixed = {name: tensors[name] for name in ("parameter", "gradient", "stats", "hyper")}
        operations.update_weight(moments, WeightUpdate(**fixed, decays=decay))
    operations.run(program)
    updated: NDArray[np.float32] = tensors["parameter"].array
    return updated


def _measure(result: Result, update: ModelUpdate, engine: Engine, options: PartOptions) -> None:
    """Add the times of both ways: of the kernels, and from start to end as the host sees them."""
    budget = QUICK_SECONDS if options.quick else SECONDS
    operations = update.operations
    for prefix, program in (("", update.fused), ("separate_", update.separate)):

        def run(program: Program = program) -> None:
            operations.run(program)
            operations.wait_for_runs(0)

        raise_clocks(engine)
        times = time_program(operations, program, options.runs, budget)
        if prefix:
            result["separate_seconds"] = summarize([float(spent) for spent in times.seconds])
        else:
            add_times(result, times)
        result[f"{prefix}host_seconds"] = summarize(host_times(run, options.runs, budget))
    fused, separate = (result[key]["median"] for key in ("seconds", "separate_seconds"))
    result["speed_up_over_separate"] = separate / fused
    costs = [adamw_update(weight.size, mirror=True) for weight in update.weights]
    total = Cost(sum(cost.bytes for cost in costs), sum(cost.operations for cost in costs))
    add_cost(result, total, engine)
