"""What results about kernels consist of: comparison with NumPy, times, and shares of the floor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.measuring.bandwidth import measured_bandwidth, measured_rate
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import ProgramTimes
from llmgpu.bench.measuring.times import summarize
from llmgpu.bench.models.kernel_costs import Cost

WHAT = "kernels"
NO_HALF_PRECISION = "no half precision (shader-f16)"
BLOCK_ELEMENTS = 1 << 22  # compared at a time

Result = dict[str, Any]


def same_values(
    found: NDArray[Any], wanted: NDArray[Any], tolerance: float, *, only_total: bool = False
) -> bool:
    """Whether |difference| <= tolerance * (|wanted| + RMS of wanted's row) for all numbers.

    only_total: of the sums alone.
    """
    if found.shape != wanted.shape:
        return False
    if only_total:
        totals = [array.sum(dtype=np.float64).reshape(1) for array in (found, wanted)]
        return same_values(totals[0], totals[1], tolerance)
    width = wanted.shape[-1] if wanted.ndim > 1 else wanted.size
    step = max(1, BLOCK_ELEMENTS // max(1, width))
    found, wanted = (array.reshape(-1, width) for array in (found, wanted))
    blocks = [slice(start, start + step) for start in range(0, len(wanted), step)]
    return all(_same_rows(found[block], wanted[block], tolerance) for block in blocks)


def _same_rows(found: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> bool:
    if not tolerance:
        return np.array_equal(found, wanted)
    reference = wanted.astype(np.float64)
    rms = np.sqrt(np.square(reference).mean(axis=-1, keepdims=True))
    # Not "any larger": a NaN is not larger than anything.
    allowed = tolerance * (np.abs(reference) + rms)
    return bool((np.abs(found - reference) <= allowed).all())


def add_times(result: Result, times: ProgramTimes) -> None:
    """Add times to a result, and those of each of its kernels where they are known."""
    result["clock"] = times.clock
    result["seconds"] = summarize([float(seconds) for seconds in times.seconds])
    if times.by_label:
        medians = {label: float(np.median(spent)) for label, spent in times.by_label.items()}
        result["kernels"] = {"seconds": medians, "total": sum(medians.values())}


def add_cost(result: Result, cost: Cost, engine: Engine) -> None:
    """Add what had to be moved and computed, and how near the time is to the floor."""
    median = result["seconds"]["median"]
    bandwidth, rate = float(measured_bandwidth(engine)), float(measured_rate(engine))
    result["bytes"], result["operations"] = cost.bytes, cost.operations
    result["bytes_per_second"] = cost.bytes / median
    result["operations_per_second"] = cost.operations / median
    result["share_of_copy"] = cost.bytes / median / bandwidth
    result["share_of_floor"] = max(cost.bytes / bandwidth, cost.operations / rate) / median
