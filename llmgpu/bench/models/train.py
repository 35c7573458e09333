"""Measuring training steps of a language model: tokens a second, and the time of each kernel.

Times are given only after losses were compared. Where torch is installed, it takes the same steps
from the same weights, in turns with the engine. Steps that would take NumPy minutes are compared
with it on a cut model, of the same width and vocabulary, and with torch as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.limits import measured_rate
from llmgpu.bench.models.training_steps import OwnSteps, StepJob, Steps, choose_job
from llmgpu.bench.peers.torch import Torch, first_line, missing_torch
from llmgpu.bench.peers.torch_model import TorchSteps
from llmgpu.bench.results import TRAIN, KernelTimes, Result, Times
from llmgpu.bench.timing import PartOptions, has_timestamps, time_kernels
from llmgpu.errors import LlmgpuError
from llmgpu.lm.options import Precision
from llmgpu.progress import Progress

TOLERANCE = 1e-3  # of a loss, relative
VARIANTS: dict[Precision, str] = {"f32": "float32", "f16": "half-precision weights"}
RUN_SECONDS = 0.5  # that a run takes about, if a step is shorter
RUN_STEPS = 10  # in the longest run
ENGINE_SECONDS, QUICK_ENGINE_SECONDS = 15.0, 2.0  # after which no further run begins


@dataclass
class TorchSide:
    """torch on an engine's job: its result, and its steps unless the result says why not.

    losses: of the first steps.
    """

    result: Result
    torch: Torch | None = None
    steps: TorchSteps | None = None
    losses: list[float] = field(default_factory=list)

    @classmethod
    def open(cls, engine: Engine, job: StepJob) -> TorchSide:
        """Let torch take the first steps of a job; its result says why if it can't."""
        try:
            torch = Torch.beside(engine)
        except ImportError:
            return cls(missing_torch(TRAIN, str(job)))
        result = Result(TRAIN, torch.name, peer=True, job=str(job), variant="float32")
        if not torch.is_cuda and not job.is_small:
            return cls(replace(result, note="left out: no cuda here, and a CPU takes too long"))
        try:
            steps = TorchSteps(job, torch)
            return cls(result, torch, steps, steps.losses())
        except RuntimeError as error:
            return cls(replace(result, note=first_line(error)))

    def close(self) -> None:
        """Give the model's memory back."""
        self.steps = None
        if self.torch is not None:
            self.torch.free_memory()


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
        begun = Result(TRAIN, engine.name, job=str(job), variant=VARIANTS[precision])
        self.progress(f"{TRAIN}: {engine.name}, comparing", 0, 1)
        torch = TorchSide.open(engine, job) if self.options.peers else None
        try:
            own = OwnSteps(engine, job, precision)
            result = replace(begun, losses=tuple(own.losses()))
            result = self._compare(result, engine, precision, job, torch)
            if result.correct:
                result = self._measure(result, engine, job, own, torch)
        except LlmgpuError as error:
            result = replace(begun, note=str(error))
        yield result
        if torch is not None:
            torch.close()
            if (torch.result.engine, str(job)) not in self.reported:
                self.reported.add((torch.result.engine, str(job)))
                yield torch.result

    def _compare(
        self,
        result: Result,
        engine: Engine,
        precision: Precision,
        job: StepJob,
        torch: TorchSide | None,
    ) -> Result:
        """Compare an engine's losses with NumPy's and torch's; say in the result how it went."""
        losses = result.losses
        compared: list[tuple[str, Sequence[float], Sequence[float]]] = []
        if engine.backend is not NUMPY:
            cut = job.cut()
            found = losses if cut == job else OwnSteps(engine, cut, precision).losses()
            name = "NumPy" if cut == job else f"NumPy ({cut})"
            compared.append((name, found, self._numpy_losses(cut)))
        if torch is not None and torch.steps is not None:
            compared.append(("torch", losses, torch.losses))
        wrong = [name for name, found, wanted in compared if not losses_agree(found, wanted)]
        names = " and ".join(wrong or [name for name, _, _ in compared])
        correct = not wrong and bool(np.isfinite(losses).all())
        if wrong:
            return replace(result, correct=False, answer=f"NOT the losses of {names}")
        answer = f"the losses of {names}, within {TOLERANCE:g}" if compared else "the reference"
        return replace(result, correct=correct, answer=answer)

    def _numpy_losses(self, job: StepJob) -> list[float]:
        if str(job) not in self.numpy_losses:
            steps = OwnSteps(Engine(NUMPY, 0.0), job, "f32")
            self.numpy_losses[str(job)] = steps.losses()
        return self.numpy_losses[str(job)]

    def _measure(
        self, result: Result, engine: Engine, job: StepJob, own: OwnSteps, torch: TorchSide | None
    ) -> Result:
        theirs = None if torch is None else torch.steps
        seconds, torch_seconds = self._take_turns(engine.name, own, theirs)
        result = _add_times(result, job, seconds)
        if engine.backend is NUMPY:
            self.numpy_seconds[str(job)] = result.median
        elif str(job) in self.numpy_seconds:
            result = replace(result, speed_up=self.numpy_seconds[str(job)] / result.median)
        share = job.operations / result.median / measured_rate(engine)
        result = replace(result, share_of_floor=share, kernels=_time_kernels(engine, own))
        if torch is None or not torch_seconds:
            return result
        right = replace(torch.result, correct=True, answer=f"the losses of {engine.name}")
        torch.result = _add_times(right, job, torch_seconds)
        return replace(result, speed_up_over_torch=torch.result.median / result.median)

    def _take_turns(
        self, name: str, own: Steps, peer: Steps | None
    ) -> tuple[list[float], list[float]]:
        """Return the seconds a step of several runs, llmgpu's and torch's, which alternate."""
        both = [own] if peer is None else [own, peer]
        counts = [_steps_of_run(steps.time(1)) for steps in both]
        seconds: list[list[float]] = [[] for _ in both]
        budget = QUICK_ENGINE_SECONDS if self.options.quick else ENGINE_SECONDS
        end = time.perf_counter() + budget
        for run in range(self.options.runs):
            if run and time.perf_counter() > end:
                break
            self.progress(f"{TRAIN}: {name}", run, self.options.runs)
            for steps, count, times in zip(both, counts, seconds, strict=True):
                times.append(steps.time(count))
        return seconds[0], seconds[1] if peer is not None else []


def measure_train(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine, in single and where it has it in half precision."""
    bench = TrainBench(options, progress)
    for engine in engines:
        for precision in VARIANTS:
            if precision == "f32" or _has_half_precision(engine):
                yield from bench.measure_engine(engine, precision)


def losses_agree(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Whether losses are the same within TOLERANCE; what is not finite agrees with nothing."""
    return bool(np.isfinite(found).all()) and np.allclose(found, wanted, rtol=TOLERANCE, atol=0)


def _steps_of_run(seconds: float) -> int:
    return max(1, min(RUN_STEPS, int(RUN_SECONDS / seconds)))


def _has_half_precision(engine: Engine) -> bool:
    device = engine.backend.device
    return device is not None and "shader-f16" in device.features


def _add_times(result: Result, job: StepJob, seconds: list[float]) -> Result:
    result = replace(result, clock="host", seconds=Times.of(seconds))
    return replace(
        result,
        tokens=job.tokens,
        operations=job.operations,
        tokens_per_second=job.tokens / result.median,
        operations_per_second=job.operations / result.median,
    )


def _time_kernels(engine: Engine, own: OwnSteps) -> KernelTimes | None:
    """Return the seconds that each kernel takes of a step; None where they can't be told."""
    device = engine.backend.device
    if device is None or not has_timestamps(device):
        return None
    seconds = time_kernels(device, lambda: own.time(1))
    return KernelTimes(seconds, sum(seconds.values()))
