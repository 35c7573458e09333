"""PyTorch on one of its devices: tensors and times."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.engines import Engine, package_version
from llmgpu.bench.results import Result
from llmgpu.bench.timing import ProgramTimes, host_times, runs_within, warm_up

NOT_INSTALLED = "not installed: pip install torch"
CACHE_BYTES = 256 << 20  # more than any cache holds


@dataclass(frozen=True)
class Torch:
    """The module, a device of it ("cpu" or "cuda"), and what tables call it there."""

    module: Any
    device: str
    name: str

    @classmethod
    def beside(cls, engine: Engine) -> Torch:
        """Return torch as an engine is compared with it; float32 products without tf32.

        That is on cuda where torch has it and the engine is an NVIDIA GPU, otherwise on the CPU.

        Raises:
            ImportError: torch is not installed.
        """
        module = importlib.import_module("torch")
        module.set_float32_matmul_precision("highest")
        module.backends.cudnn.allow_tf32 = False
        version = package_version("torch")
        if "NVIDIA" in engine.name and module.cuda.is_available():
            return cls(module, "cuda", f"torch {version} ({module.cuda.get_device_name()})")
        return cls(module, "cpu", f"torch {version} (cpu)")

    @classmethod
    def on_gpu(cls, engine: Engine) -> Torch | None:
        """Return torch on the NVIDIA GPU that an engine is, None where that is not possible."""
        with suppress(ImportError):
            if "NVIDIA" in engine.name and (torch := cls.beside(engine)).is_cuda:
                return torch
        return None

    @property
    def is_cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device == "cuda"

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return an array on the device; ids, which torch wants to be signed, as int64.

        On a CPU a tensor shares the memory of an array of another type than uint32.
        """
        if array.dtype == np.uint32:
            array = array.astype(np.int64)
        return self.module.from_numpy(array).to(self.device)

    def times(
        self, function: Callable[[], Any], runs: int, budget: float, *, cold: bool = False
    ) -> ProgramTimes:
        """Time a function after a warm-up, as `time_program` does.

        cold: whether to fill a GPU's caches with other numbers before each run.
        """
        warm_up(lambda: self.finish(function))
        if not self.is_cuda:
            return ProgramTimes("host", host_times(function, runs, budget))
        other = self.module.zeros(CACHE_BYTES // 4, device=self.device) if cold else None
        times = ProgramTimes("gpu")
        for _ in runs_within(runs, budget):
            if other is not None:
                other.sum()
            start, end = (self.module.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            end.synchronize()
            times.seconds.append(float(start.elapsed_time(end)) / 1e3)
        return times

    def free_memory(self) -> None:
        """Release the memory of a GPU that torch keeps for later."""
        if self.is_cuda:
            self.module.cuda.empty_cache()

    def finish(self, function: Callable[[], Any]) -> None:
        """Call a function, and wait for a GPU to do what it asks for."""
        function()
        if self.is_cuda:
            self.module.cuda.synchronize()


def missing_torch(what: str, job: str) -> Result:
    """Return the result of a part in which torch would have been compared."""
    return Result(what, "torch", peer=True, job=job, note=NOT_INSTALLED)


def first_line(error: RuntimeError) -> str:
    """Return why torch could not do something, such as missing memory, in a line."""
    return str(error).partition("\n")[0]
