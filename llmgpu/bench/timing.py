"""Timing functions and recorded programs: by the GPU's timestamps where it has them, else by the
host's clock.

What is timed one by one, with the host's work between, leaves a GPU idle most of the time, so it
clocks down: its kernels were then seen to take three times as long. `llmgpu.bench.kernels.limits`
keeps it busy before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from llmgpu.bench.results import KernelTimes, Times
from llmgpu.lm.ops.backends import GpuOperations
from llmgpu.lm.ops.operations import Operations, Program

if TYPE_CHECKING:
    from llmgpu.gpu import Device

Answer = TypeVar("Answer")
WARM_UP_SECONDS = 0.05  # until clocks are up and the driver has compiled what it uses


@dataclass(frozen=True)
class PartOptions:
    """How thoroughly a part measures.

    runs: measurements of each variant, fewer where time runs out. peers: whether to measure other
    programs. quick: smaller sizes and less time for each variant.
    """

    runs: int = 5
    peers: bool = True
    quick: bool = False


@dataclass
class ProgramTimes:
    """What several runs of a program took.

    clock: "gpu" or "host". seconds: of each run. by_kernel: of each run, the time in each kernel;
    empty by the host's clock.
    """

    clock: str
    seconds: list[float] = field(default_factory=list)
    by_kernel: dict[str, list[float]] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a result that these times fill."""
        filled: dict[str, Any] = {"clock": self.clock, "seconds": Times.of(self.seconds)}
        if self.by_kernel:
            medians = {name: Times.of(spent).median for name, spent in self.by_kernel.items()}
            filled["kernels"] = KernelTimes(medians, sum(medians.values()))
        return filled


def time_program(
    operations: Operations,
    program: Program,
    runs: int,
    budget: float,
    before: Callable[[], object] | None = None,
) -> ProgramTimes:
    """Run a program recorded by `operations` up to `runs` times, after a warm-up.

    budget: seconds after which no further run starts; one always does.
    before: what to do before each run of a GPU that has timestamps; its time does not count.
    """

    def run() -> None:
        operations.run(program)
        operations.wait_for_runs(0)

    warm_up(run)
    device = operations.device if isinstance(operations, GpuOperations) else None
    if not has_timestamps(device):
        return ProgramTimes("host", host_times(run, runs, budget))
    times = ProgramTimes("gpu")
    for _ in runs_within(runs, budget):
        if before is not None:
            before()
        kernels = kernel_times(device, run)
        assert kernels is not None
        times.seconds.append(kernels.total)
        for name, seconds in kernels.seconds.items():
            times.by_kernel.setdefault(name, []).append(seconds)
    return times


def kernel_times(device: Device | None, function: Callable[[], object]) -> KernelTimes | None:
    """Call a function; return the seconds of each kernel that it ran, the longest first.

    On a device without timestamps do nothing, and return None.
    """
    if device is None or not has_timestamps(device):
        return None
    device.gpu_seconds.clear()
    device.timing = True
    try:
        function()
    finally:
        device.timing = False
    longest_first = sorted(device.gpu_seconds.items(), key=lambda item: -item[1])
    seconds = {name: float(spent) for name, spent in longest_first}
    return KernelTimes(seconds, sum(seconds.values()))


def has_timestamps(device: Device | None) -> bool:
    """Whether there is a device, and it times its kernels itself."""
    return device is not None and "timestamp-query" in device.features


def timed(function: Callable[[], Answer]) -> tuple[float, Answer]:
    """Call a function; return the seconds it took and what it returned."""
    start = time.perf_counter()
    answer = function()
    return time.perf_counter() - start, answer


def host_times(function: Callable[[], object], runs: int, budget: float) -> list[float]:
    """Return the seconds of up to `runs` calls; none but the first starts after the budget."""
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
