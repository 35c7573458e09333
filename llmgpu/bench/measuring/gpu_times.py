"""Timing recorded programs: by the GPU's timestamps where it has them, else by the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from llmgpu.bench.measuring.times import timed
from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.operations import Operations, Program

if TYPE_CHECKING:
    from llmgpu.gpu import Device

Clock = Literal["gpu", "host"]
WARM_UP_SECONDS = 0.05  # until clocks are up and the driver has compiled what it uses


@dataclass
class ProgramTimes:
    """What several runs of a program took.

    clock: whose. seconds: of each run. by_label: of each run, the time in the kernels of a label;
    empty by the host's clock.
    """

    clock: Clock
    seconds: list[float] = field(default_factory=list)
    by_label: dict[str, list[float]] = field(default_factory=dict)

    def add_run(self, kernels: dict[str, float]) -> None:
        """Add a run with the seconds of its kernels by label."""
        self.seconds.append(sum(kernels.values()))
        for label, seconds in kernels.items():
            self.by_label.setdefault(label, []).append(seconds)


def time_program(
    operations: Operations,
    program: Program,
    runs: int,
    budget: float,
    before: Callable[[], object] | None = None,
) -> ProgramTimes:
    """Run a program recorded by `operations` several times, after a warm-up.

    runs: timed runs at most. budget: seconds after which no further run begins; one always does.
    before: what to do before each run of a GPU that has timestamps, in no time that counts.
    """

    def run() -> None:
        operations.run(program)
        operations.wait_for_runs(0)

    warm_up(run)
    if isinstance(operations, GpuOperations) and has_timestamps(operations.device):
        return _gpu_times(operations.device, run, runs, budget, before)
    return ProgramTimes("host", host_times(run, runs, budget))


def host_times(function: Callable[[], object], runs: int, budget: float) -> list[float]:
    """Return the seconds of up to `runs` calls; none but the first begins after the budget."""
    return [timed(function)[0] for _ in runs_within(runs, budget)]


def warm_up(function: Callable[[], object]) -> None:
    """Call a function once, and again until the warm-up's time is over."""
    end = time.perf_counter() + WARM_UP_SECONDS
    function()
    while time.perf_counter() < end:
        function()


def runs_within(runs: int, budget: float) -> Iterator[int]:
    """Yield 0 to runs - 1, but after the first none once `budget` seconds are over."""
    end = time.perf_counter() + budget
    for run in range(runs):
        if run and time.perf_counter() > end:
            return
        yield run


def has_timestamps(device: Device) -> bool:
    """Whether a device's kernels are timed by the device itself."""
    return "timestamp-query" in device.features


def _gpu_times(
    device: Device,
    run: Callable[[], object],
    runs: int,
    budget: float,
    before: Callable[[], object] | None,
) -> ProgramTimes:
    times = ProgramTimes("gpu")
    device.timing = True
    try:
        for _ in runs_within(runs, budget):
            if before is not None:
                before()
            device.gpu_seconds.clear()
            run()
            times.add_run(dict(device.gpu_seconds))
    finally:
        device.timing = False
    return times
