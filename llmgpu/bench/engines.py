"""The engines to measure (the CPU and opened adapters), their limits, timing, and the machine.

Times come from the GPU's timestamps or, without timestamps, from the host's clock. While the host
works between runs, a GPU is idle and lowers its clocks: kernels were seen to take three times as
long. So a kernel of multiply-adds keeps the GPU busy before a measurement.

The limits are the fastest of several copies and of several runs of multiply-adds. Limits are
measured once for an engine.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY, Backend, list_adapters, list_all_adapters, select_backend
from llmgpu.bench import ALL
from llmgpu.bench.results import (
    C_ENGINE,
    NUMPY_ENGINE,
    Adapter,
    KernelTimes,
    Limits,
    Machine,
    Result,
    times_by_name,
)
from llmgpu.cpu.library import library
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.forking import cached_property
from llmgpu.gpu.adapters import AdapterInfo, OpenedAdapter, chosen_driver
from llmgpu.gpu.device import Device
from llmgpu.lm.ops.matrix_units import MatrixUnits, matrix_units
from llmgpu.lm.ops.operations import GpuOperations, Operations, open_operations
from llmgpu.lm.ops.recording import Program, dims
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.machine import usable_processors
from llmgpu.version import __version__

_PACKAGES = ("numpy", "wgpu", "tokenizers", "rustbpe", "gigatoken", "tiktoken", "torch")
Answer = TypeVar("Answer")
Runs = list[KernelTimes]
Work = Callable[[], NDArray[Any]]  # does a job, and returns the answer
# A result without measurements, and a function that opens the way: it returns a device, and the
# work there.
TimedWay = tuple[Result, Callable[[], tuple[Device, Work]]]
WARM_UP_SECONDS = 0.05  # seconds in which clocks rise and the driver compiles all kernels
COPY, MULTIPLY_ADD = "bench/copy.wgsl", "bench/multiply_add.wgsl"
WORKGROUP_SIZE = 256
VECTORS_A_THREAD = 8
HARDWARE_COPY_BYTES = 1 << 30  # much larger than caches
CPU_COPY_BYTES = 128 << 20
SMALLEST_COPY_BYTES = 1 << 20
HARDWARE_THREADS, HARDWARE_ROUNDS = 1 << 20, 1024
SOFTWARE_THREADS, SOFTWARE_ROUNDS = 1 << 14, 128
OPERATIONS_A_ROUND = 128  # a thread computes 64 multiply-adds in a round
MATRICES = 16  # matrices that a subgroup adds up, as in the largest tile of products
MATRIX_SUBGROUPS, MATRIX_GROUPS, MATRIX_ROUNDS = 4, 1056, 2048
FACTORS = (0.999, 0.001)  # with these factors, values stay between 0 and their first values
PRODUCT_SIZE = 1024  # rows of the square matrices that NumPy multiplies
LIMIT_RUNS, LIMIT_BUDGET = 10, 1.0
BUSY_SECONDS = 0.3
QUEUED_RUNS = 4  # runs in flight, so that the GPU never waits for the host


@dataclass(frozen=True)
class Engine:
    """A backend, and the seconds that opening its device took, including the import of wgpu.

    again: whether an earlier engine uses the same adapter through another driver.
    """

    backend: Backend
    open_seconds: float
    again: bool = False

    @property
    def name(self) -> str:
        """The engine's name in tables of kernel times, in which the CPU is called NumPy."""
        device = self.backend.device
        if device is None:
            return NUMPY_ENGINE
        return f"{device.name} with Dawn" if device.webgpu.name == "dawn" else device.name

    @property
    def host_name(self) -> str:
        """Name of the adapter or of the CPU engine. Tables of kernels have `name` instead."""
        return cpu_engine() if self.backend.device is None else self.name

    @property
    def is_software_adapter(self) -> bool:
        """Whether a driver computes on the CPU instead of a GPU."""
        return self.backend.device is not None and self.backend.is_software

    @cached_property
    def limits(self) -> Limits:
        """Rates of a copy (bytes read and written), of float32 operations and of matrix units.

        A multiply-add counts as two operations. NumPy's rate of operations is measured with a
        matrix product, because NumPy has no other multiply-adds.

        Raises:
            DeviceError: the device has no memory even for a small copy.
        """
        operations = open_operations(self.backend.device)
        rates: list[float] = []
        for record in (_record_copy, _record_arithmetic, _record_matrices):
            raise_clocks(self.backend)
            with operations.record("limit") as program:
                count = record(operations)
            run = partial(run_program, operations, program)
            times = time_runs(run, LIMIT_RUNS, LIMIT_BUDGET) if count else []
            rates.append(count / min((each.total for each in times), default=1.0))
        return Limits(rates[0], rates[1], rates[2] or None)


Engines = Sequence[Engine]


def cpu_engine() -> str:
    """Return the name of the CPU engine: the engine in C, or NumPy if there is none."""
    return NUMPY_ENGINE if library() is None else C_ENGINE


def open_engines(devices: Sequence[str]) -> tuple[list[Engine], dict[str, str]]:
    """Open the engines for values of ``--device``; ``all`` opens the CPU and every adapter.

    With ``all``, an adapter that Dawn lists, too, is opened a second time as an engine with
    `again`, unless LLMGPU_DRIVER is set.

    Returns the engines without duplicates, and by name the reasons why adapters of ``all`` could
    not be opened.

    Raises:
        DeviceError: no adapter matches a name, or an adapter that `devices` names can't be opened.
    """
    # Collect functions that open a backend, by the name of the engine or the value of --device.
    named = [device for device in devices if device != ALL]
    others = ["cpu", *(adapter.name for adapter in list_adapters())] if ALL in devices else []
    openers = {name: partial(select_backend, name) for name in [*others, *named]}
    dawn = list_all_adapters() if ALL in devices and chosen_driver() is None else []
    again = {f"{info.name} with Dawn": info for info in dawn if info.webgpu.name == "dawn"}
    openers |= {name: partial(_open, info) for name, info in again.items() if name not in openers}
    engines: dict[str, Engine] = {}
    failures: dict[str, str] = {}
    for name, opener in openers.items():
        try:
            seconds, backend = timed(opener)
        except DeviceError as error:
            if name in named:
                raise
            failures[name] = str(error)
        else:
            seconds = 0.0 if backend is NUMPY else seconds
            engine = Engine(backend, seconds, name in again and again[name].name in engines)
            engines.setdefault(engine.name, engine)
    return list(engines.values()), failures


def _open(info: AdapterInfo) -> Backend:
    return Backend(Device(OpenedAdapter(info)), str(info))


def describe_machine(engines: Sequence[Engine]) -> Machine:
    """Return the description of this machine, with the adapters among `engines`."""
    opened = [(e.name, e.backend.device) for e in engines if e.backend.device is not None]
    adapters = ((name, device.adapter, device.subgroup_size) for name, device in opened)
    return Machine(
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_name(),
        cpus=usable_processors(),
        adapters=tuple(Adapter(name, a.kind, a.driver, a.backend, n) for name, a, n in adapters),
        python=platform.python_version(),
        llmgpu=__version__,
        commit=git_commit(Path(__file__).resolve().parents[2]),
        **{name: package_version(name) for name in _PACKAGES},
    )


def package_version(name: str) -> str | None:
    """Return the version of a package, None if the package is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """Return the commit of a checkout, followed by "+changes" if files differ; None elsewhere."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*"]
    command.append("--dirty=+changes")
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10)
        return found.strip()
    return None


def _cpu_name() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Timing


def time_runs(
    time_once: Callable[[], KernelTimes],
    runs: int,
    budget: float,
    before: Callable[[], object] = lambda: None,
) -> Runs:
    """Return the times of up to `runs` runs, after a warm-up.

    time_once: does a run, and returns its times. before: called before each run; its time is not
        counted. budget: seconds after which no further run starts; the first run always starts.
    """
    for _ in runs_within(sys.maxsize, WARM_UP_SECONDS):
        time_once()
    times = []
    for _ in runs_within(runs, budget):
        before()
        times.append(time_once())
    return times


def with_times(
    begun: Result,
    runs: Runs,
    counted: Mapping[str, int] | None = None,
    clock: str = "",
    **more: Any,
) -> Result:
    """Add the seconds of runs, and the median of each kernel, to a result, see `Result.timed`.

    clock: by default the GPU's, if the runs have times of kernels.
    """
    medians = {name: t.median for name, t in times_by_name([run.seconds for run in runs]).items()}
    kernels = KernelTimes(medians, sum(medians.values())) if medians else None
    clock = clock or ("gpu" if medians else "host")
    seconds = [run.total for run in runs]
    return begun.timed(seconds, counted, clock=clock, kernels=kernels, **more)


def time_run(device: Device | None, function: Callable[[], object]) -> KernelTimes:
    """Call a function; return its seconds, by kernel if the device has timestamps."""
    return kernel_times(device, function) or KernelTimes({}, timed(function)[0])


def run_program(operations: Operations, program: Program) -> KernelTimes:
    """Run a program that `operations` recorded to its end; return the times of the run."""

    def run() -> None:
        operations.run(program)
        operations.wait_for_runs(0)

    return time_run(operations.device if isinstance(operations, GpuOperations) else None, run)


def kernel_times(device: Device | None, function: Callable[[], object]) -> KernelTimes | None:
    """Call a function; return the seconds in each kernel that ran, in descending order.

    Without timestamps the function is not called, and the result is None.
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


def time_in_turns(
    engine: Engine, ways: Iterable[TimedWay], expected: NDArray[Any], answer: str, count: int
) -> list[tuple[Result, Runs]]:
    """Compare the answers of several ways with the expected answer; time the right ways in turns.

    answer: the name of the answer. count: number of runs, which follow a first run.

    Returns the results, with the times of their runs; a way that fails has a note and no times.
    """
    found: list[tuple[Result, Runs]] = []
    right: list[tuple[Device, Work, Runs]] = []
    for begun, open_way in ways:
        times: Runs = []
        try:
            device, work = open_way()
            result = begun.compared(np.array_equal(work(), expected), f"{answer} of {cpu_engine()}")
        except LlmgpuError as error:
            result = replace(begun, note=str(error))
        if result.correct:
            right.append((device, work, times))
        found.append((result, times))
    for _ in range(count):
        raise_clocks(engine.backend)
        for device, work, times in right:
            times.append(time_run(device, work))
    return found


def has_timestamps(device: Device | None) -> bool:
    """Whether there is a device that can time kernels."""
    return device is not None and "timestamp-query" in device.features


def timed(function: Callable[[], Answer]) -> tuple[float, Answer]:
    """Call a function; return the seconds of the call and the result."""
    start = time.perf_counter()
    answer = function()
    return time.perf_counter() - start, answer


def runs_within(runs: int, budget: float) -> Iterator[int]:
    """Return the numbers from 0 to runs - 1; they end early when `budget` seconds have passed.

    The first number is always there.
    """
    end = time.perf_counter() + budget
    return takewhile(lambda run: run == 0 or time.perf_counter() <= end, range(runs))


def copy_kernel(operations: GpuOperations, source: Tensor, target: Tensor) -> None:
    """Copy `source` to `target`. Their size is a multiple of 16 bytes."""
    vectors = source.nbytes // 16
    groups = -(-vectors // (WORKGROUP_SIZE * VECTORS_A_THREAD))
    operations.dispatch(COPY, groups, source=source, target_vectors=target, copy_dims=dims(vectors))


def multiply_add_kernel(operations: GpuOperations, values: Tensor, rounds: int) -> None:
    """Change values, float32 (N,), by the formula in the head of the kernel."""
    groups, factors = -(-values.size // WORKGROUP_SIZE), np.array([*FACTORS, 0, 0], np.float32)
    operations.dispatch(MULTIPLY_ADD, groups, {"ROUNDS": rounds}, values=values, factors=factors)


def raise_clocks(backend: Backend) -> None:
    """Keep a GPU busy for BUSY_SECONDS, so that its clocks rise; do nothing on a CPU."""
    device = backend.device
    if device is None or backend.is_software:
        return
    operations = GpuOperations(device)
    with operations.record("keep busy") as program:
        _record_arithmetic(operations)
    for _ in runs_within(sys.maxsize, BUSY_SECONDS):
        operations.run(program)
        operations.wait_for_runs(QUEUED_RUNS)
    operations.wait_for_runs(0)


def _record_copy(operations: Operations) -> int:
    """Record a copy of as much as fits into memory; return the bytes read and written."""
    is_hardware = isinstance(operations, GpuOperations) and not operations.device.is_software
    wanted = HARDWARE_COPY_BYTES if is_hardware else CPU_COPY_BYTES
    nbytes = min(wanted, operations.max_tensor_bytes // 256 * 256)
    while True:
        try:
            source, target = (operations.tensor(f"copy {i}", (nbytes // 4,)) for i in range(2))
            break
        except DeviceError:
            if nbytes <= SMALLEST_COPY_BYTES:
                raise
            nbytes //= 2
    if isinstance(operations, GpuOperations):
        copy_kernel(operations, source, target)
    else:
        # Write both arrays first: pages that were never written would all map to one page, which
        # stays in the cache.
        source.array[...] = target.array[...] = 1.0
        operations.append(lambda: np.copyto(target.array, source.array))
    return 2 * nbytes


def _record_arithmetic(operations: Operations) -> int:
    """Record multiply-adds, or a matrix product by NumPy; return the number of operations."""
    if isinstance(operations, GpuOperations):
        threads, rounds = HARDWARE_THREADS, HARDWARE_ROUNDS
        if operations.device.is_software:
            threads, rounds = SOFTWARE_THREADS, SOFTWARE_ROUNDS
        values = operations.tensor("multiply-add values", (threads,))
        multiply_add_kernel(operations, values, rounds)
        return threads * rounds * OPERATIONS_A_ROUND
    left = np.full((PRODUCT_SIZE, PRODUCT_SIZE), 0.5, np.float32)
    operations.append(partial(np.matmul, left, left, np.empty_like(left)))
    return 2 * PRODUCT_SIZE**3


def multiply_matrices_kernel(
    operations: GpuOperations, units: MatrixUnits, left: Tensor, right: Tensor, product: Tensor
) -> int:
    """Run the kernel, whose head has the formula; return the number of multiplications.

    left, right: float16, in the shapes that the matrix units take. product: receives the sums. It
    has room for the sums of whole workgroups; elements after these sums are not written.
    """
    rows, columns, inner = units.unit
    groups = product.size // (rows * columns * MATRICES * MATRIX_SUBGROUPS)
    settings = {"unit_rows": rows, "unit_columns": columns, "unit_inner": inner}
    settings |= {"lanes": units.lanes, "subgroups": MATRIX_SUBGROUPS, "sums": MATRICES}
    settings["rounds"] = MATRIX_ROUNDS
    bindings = {"left": left, "right": right, "product": product}
    operations.dispatch("bench/multiply_matrices.wgsl", groups, settings, **bindings)
    return groups * MATRICES * MATRIX_SUBGROUPS * MATRIX_ROUNDS


def _record_matrices(operations: Operations) -> int:
    """Record products of matrix units; return the number of operations, 0 without such units."""
    if not isinstance(operations, GpuOperations) or not (units := matrix_units(operations.device)):
        return 0
    rows, columns, inner = units.unit
    numbers = np.random.default_rng(0).standard_normal(max(rows, columns) * inner)
    left = operations.tensor("left matrix", (rows * inner,), np.float16)
    right = operations.tensor("right matrix", (inner * columns,), np.float16)
    for factor in (left, right):
        operations.write(factor, numbers[: factor.size])
    sums = MATRIX_GROUPS * MATRIX_SUBGROUPS * MATRICES
    product = operations.tensor("sums of matrices", (sums * rows * columns,))
    count = multiply_matrices_kernel(operations, units, left, right, product)
    return 2 * count * rows * columns * inner
