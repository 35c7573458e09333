"""Measuring training steps of a language model: tokens a second, and the time of each kernel.

Times are given only after losses were compared. Where torch is installed, it takes the same steps
from the same weights, in turns with the engine. Steps that would take NumPy minutes are compared
with it on a cut model, of the same width and vocabulary, and with torch as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.limits import measure_limits
from llmgpu.bench.models.training_steps import OwnSteps, StepJob, choose_job
from llmgpu.bench.peers.torch import Torch, TorchSteps, first_line, missing_torch
from llmgpu.bench.results import TRAIN, Result, Times
from llmgpu.bench.timing import PartOptions, kernel_times, runs_within
from llmgpu.errors import LlmgpuError
from llmgpu.lm.options import Precision
from llmgpu.progress import Progress

TOLERANCE = 1e-3  # of a loss, relative
VARIANTS: dict[Precision, str] = {"f32": "float32", "f16": "half-precision weights"}
RUN_SECONDS = 0.5  # that a run takes about, if a step is shorter
RUN_STEPS = 10  # in the longest run
ENGINE_SECONDS, QUICK_ENGINE_SECONDS = 15.0, 2.0  # after which no further run starts


@dataclass
class TrainBench:
    """Engines that take the steps of their jobs, in turns with torch.

    numpy_losses, numpy_seconds: what NumPy found, by the job. reported: which results of torch,
    by its name and the job, there are already.
    """

    options: PartOptions
    progress: Progress
    numpy_losses: dict[str, list[float]] = field(default_factory=dict)
    numpy_seconds: dict[str, float] = field(default_factory=dict)
    reported: set[tuple[str, str]] = field(default_factory=set)

    def measure_engine(self, engine: Engine, precision: Precision) -> Iterator[Result]:
        """Yield an engine's result, and that of torch on the same job if there is none yet."""
        job = choose_job(engine, quick=self.options.quick)
        result = Result(TRAIN, engine.name, job=str(job), variant=VARIANTS[precision])
        self.progress(f"{TRAIN}: {engine.name}, comparing", 0, 1)
        torch_result, theirs = _open_torch(engine, job) if self.options.peers else (None, None)
        seconds: list[list[float]] = []
        try:
            own = OwnSteps(engine, job, precision)
            compared = self._compare(own, theirs)
            if compared["correct"]:
                seconds = self._take_turns(engine.name, [own] if theirs is None else [own, theirs])
                compared |= self._measured(own, seconds)
            result = replace(result, losses=tuple(own.first_losses), **compared)
        except LlmgpuError as error:
            result = replace(result, note=str(error))
        yield result
        if torch_result is None or (torch_result.engine, str(job)) in self.reported:
            return
        self.reported.add((torch_result.engine, str(job)))
        if len(seconds) > 1:
            times = _times(job, seconds[1]) | {"answer": f"the losses of {engine.name}"}
            torch_result = replace(torch_result, correct=True, **times)
        yield torch_result

    def _compare(self, own: OwnSteps, torch: TorchSteps | None) -> dict[str, Any]:
        """Compare an engine's losses with NumPy's and torch's; return what a result says of it."""
        compared: list[tuple[str, Sequence[float], Sequence[float]]] = []
        if own.engine.backend is not NUMPY:
            steps, name, cut = own, "NumPy", own.job.cut()
            if cut != own.job:
                steps, name = OwnSteps(own.engine, cut, own.precision), f"NumPy ({cut})"
            compared.append((name, steps.first_losses, self._numpy_losses(cut)))
        if torch is not None:
            compared.append(("torch", own.first_losses, torch.first_losses))
        wrong = [name for name, found, wanted in compared if not losses_agree(found, wanted)]
        if wrong:
            return {"correct": False, "answer": f"NOT the losses of {' and '.join(wrong)}"}
        names = " and ".join(name for name, _, _ in compared)
        answer = f"the losses of {names}, within {TOLERANCE:g}" if compared else "the reference"
        return {"correct": bool(np.isfinite(own.first_losses).all()), "answer": answer}

    def _numpy_losses(self, job: StepJob) -> list[float]:
        if str(job) not in self.numpy_losses:
            self.numpy_losses[str(job)] = OwnSteps(Engine(NUMPY, 0.0), job, "f32").first_losses
        return self.numpy_losses[str(job)]

    def _measured(self, own: OwnSteps, seconds: list[list[float]]) -> dict[str, Any]:
        """Return what a result says of an engine's times, with torch's after them if it has any."""
        engine, job = own.engine, own.job
        times = _times(job, seconds[0])
        median = times["seconds"].median
        if engine.backend is NUMPY:
            self.numpy_seconds[str(job)] = median
        elif str(job) in self.numpy_seconds:
            times["speed_up"] = self.numpy_seconds[str(job)] / median
        if len(seconds) > 1:
            times["speed_up_over_torch"] = Times.of(seconds[1]).median / median
        limit = measure_limits(engine).operations_per_second
        times["share_of_floor"] = job.operations / median / limit
        times["kernels"] = kernel_times(engine.backend.device, lambda: own.time(1))
        return times

    def _take_turns(self, name: str, both: Sequence[OwnSteps | TorchSteps]) -> list[list[float]]:
        """Return the seconds a step of several runs, which alternate."""
        # Short steps are repeated in a run, since a single one says little.
        counts = [max(1, min(RUN_STEPS, int(RUN_SECONDS / steps.time(1)))) for steps in both]
        seconds: list[list[float]] = [[] for _ in both]
        budget = QUICK_ENGINE_SECONDS if self.options.quick else ENGINE_SECONDS
        for run in runs_within(self.options.runs, budget):
            self.progress(f"{TRAIN}: {name}", run, self.options.runs)
            for steps, count, times in zip(both, counts, seconds, strict=True):
                times.append(steps.time(count))
        return seconds


def _open_torch(engine: Engine, job: StepJob) -> tuple[Result, TorchSteps | None]:
    """Let torch take the first steps of a job; its result says why if it can't."""
    try:
        torch = Torch.beside(engine)
    except ImportError:
        return missing_torch(TRAIN, str(job)), None
    torch.free_memory()
    result = Result(TRAIN, torch.name, peer=True, job=str(job), variant="float32")
    if not torch.is_cuda and not job.is_small:
        return replace(result, note="left out: no cuda here, and a CPU takes too long"), None
    try:
        return result, TorchSteps(job, torch)
    except RuntimeError as error:
        return replace(result, note=first_line(error)), None


def measure_train(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine, in single and where it has it in half precision."""
    bench = TrainBench(options, progress)
    for engine in engines:
        for precision in VARIANTS:
            device = engine.backend.device
            if precision == "f32" or (device is not None and "shader-f16" in device.features):
                yield from bench.measure_engine(engine, precision)


def losses_agree(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Whether losses are the same within TOLERANCE; what is not finite agrees with nothing."""
    return bool(np.isfinite(found).all()) and np.allclose(found, wanted, rtol=TOLERANCE, atol=0)


def _times(job: StepJob, seconds: list[float]) -> dict[str, Any]:
    """Return what a result says of the seconds for a step."""
    times = Times.of(seconds)
    done = {"tokens": job.tokens, "operations": job.operations}
    rates = {f"{name}_per_second": count / times.median for name, count in done.items()}
    return {"clock": "host", "seconds": times, **done, **rates}
