"""Measuring embedding lookups and their gradient, at the sizes of three models.

Transfers are left out: tables and tokens are in place before, and every way first gives an answer
that is compared with NumPy's. Bytes a second are those that have to be read and written, each row
once, over the time; caches that keep rows from one run to the next can lift them above a copy's. A
laboratory exercise that this follows counts the output alone, which is given beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmgpu.bench.measuring.bandwidth import measured_bandwidth
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import ProgramTimes, time_program
from llmgpu.bench.measuring.times import summarize
from llmgpu.bench.models.embedding_job import JOBS, KINDS, EmbeddingData, EmbeddingJob
from llmgpu.bench.models.embedding_torch import TORCH_WAYS, TorchEmbedding
from llmgpu.bench.models.embedding_variants import GPU_VARIANTS, NUMPY_VARIANTS, Place, Variant
from llmgpu.bench.models.torch_device import free_torch_memory, torch_device
from llmgpu.bench.part import PartOptions, begin_part_result
from llmgpu.errors import DeviceError
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.runs.memory import free_memory
from llmgpu.progress import Progress

WHAT = "embedding"
TABLE_COPIES = 8  # how many tables' memory the host needs at most
SOFTWARE_TABLE_BYTES = 32 << 20
QUICK_TABLE_BYTES = 64 << 20
QUICK_SOFTWARE_TABLE_BYTES = 8 << 20
BUDGET = 0.5  # seconds for a way
QUICK_BUDGET = 0.1


def measure_embedding(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the result of each engine's ways on each job, NumPy's and torch's before others'."""
    for job, own_engines in _jobs(engines, options):
        bench = EmbeddingBench(EmbeddingData(job), options, progress)
        for engine in own_engines:
            if engine.backend.device is None:
                yield from bench.measure_engine(engine, NUMPY_VARIANTS)
        if options.peers:
            yield from bench.measure_torch(own_engines)
        for engine in own_engines:
            if engine.backend.device is not None:
                yield from bench.measure_engine(engine, GPU_VARIANTS)


@dataclass
class EmbeddingBench:
    """Ways to do one job.

    numpy, torch: seconds of the first way of each kind; torch's by device first.
    """

    data: EmbeddingData
    options: PartOptions
    progress: Progress
    numpy: dict[str, float] = field(default_factory=dict)
    torch: dict[str, dict[str, float]] = field(default_factory=dict)

    def measure_engine(
        self, engine: Engine, variants: Sequence[Variant]
    ) -> Iterator[dict[str, Any]]:
        """Yield the result of each of an engine's ways; one that can't be measured says why."""
        for kind in KINDS:
            place = Place(open_operations(engine.backend.device), self.data, kind)
            for number, variant in enumerate(variants):
                if variant.kind == kind:
                    self.progress(f"{WHAT}: {engine.name}", number, len(variants))
                    yield self._measure(engine, place, variant)

    def measure_torch(self, engines: Sequence[Engine]) -> Iterator[dict[str, Any]]:
        """Yield the result of each of torch's ways on the devices that stand beside engines."""
        try:
            devices = dict(torch_device(engine) for engine in engines)
        except ImportError:
            note = "not installed: pip install torch"
            yield begin_part_result(WHAT, "torch", self.data.job.describe()) | {
                "peer": True,
                "note": note,
            }
            return
        for device, name in devices.items():
            for number, (kind, way) in enumerate(TORCH_WAYS):
                self.progress(f"{WHAT}: {name}", number, len(TORCH_WAYS))
                yield self._measure_torch(device, name, kind, way)
            free_torch_memory(device)

    def _measure(self, engine: Engine, place: Place, variant: Variant) -> dict[str, Any]:
        result = self._begin(engine.name, variant.name)
        operations, kind = place.operations, variant.kind
        try:
            reason = _why_not(place, variant)
            if reason is not None:
                return result | {"note": reason}
            program = place.record(variant.record)
            if place.is_backward:
                place.clear()
            operations.run(program)
            if self._compare(result, kind, place.answer()):
                times = time_program(operations, program, self.options.runs, self._budget)
                self._add_times(result, kind, times)
                self._add_comparisons(result, engine, kind)
        except DeviceError as error:
            result["note"] = str(error)
        return result

    def _measure_torch(self, device: str, name: str, kind: str, way: str) -> dict[str, Any]:
        result = self._begin(name, f"{kind}: {way}") | {"peer": True}
        try:
            peer = TorchEmbedding(self.data, kind, device)
            function = peer.prepare(way)
            if self._compare(result, kind, peer.answer(function)):
                times = peer.times(function, self.options.runs, self._budget)
                median = self._add_times(result, kind, times)
                self.torch.setdefault(device, {}).setdefault(kind, median)
                self._add_speed_up(result, kind)
        except RuntimeError as error:  # no memory
            result["note"] = str(error).partition("\n")[0]
        return result

    @property
    def _budget(self) -> float:
        return QUICK_BUDGET if self.options.quick else BUDGET

    def _begin(self, engine: str, variant: str) -> dict[str, Any]:
        job = self.data.job
        result = begin_part_result(WHAT, engine, job.describe()) | {"variant": variant}
        if job.scale > 1:
            result["note"] = f"scaled down: 1/{job.scale} of the model's vocabulary and tokens"
        return result

    def _compare(self, result: dict[str, Any], kind: str, answer: Any) -> bool:
        result["correct"] = right = self.data.is_right(kind, answer)
        result["answer"] = f"{'the' if right else 'NOT the'} rows of NumPy"
        return right

    def _add_times(self, result: dict[str, Any], kind: str, times: ProgramTimes) -> float:
        """Add times and rates; return the median."""
        job, moved = self.data.job, self.data.moved_bytes(kind)
        result["seconds"] = summarize(times.seconds)
        result["clock"] = times.clock
        median = float(result["seconds"]["median"])
        result["table_bytes"] = job.table_bytes
        result["output_bytes"] = job.output_bytes
        result["bytes"] = moved
        result["bytes_per_second"] = moved / median
        result["output_bytes_per_second"] = job.output_bytes / median
        result["tokens_per_second"] = job.tokens / median
        return median

    def _add_comparisons(self, result: dict[str, Any], engine: Engine, kind: str) -> None:
        """Add what the rates are beside a copy, NumPy and torch."""
        median = result["seconds"]["median"]
        result["share_of_copy"] = result["bytes_per_second"] / measured_bandwidth(engine)
        if engine.backend.device is None:
            self.numpy.setdefault(kind, median)
        self._add_speed_up(result, kind)
        device = "cuda" if "NVIDIA" in engine.name and "cuda" in self.torch else "cpu"
        beside = self.torch.get(device, {}).get(kind)
        if beside is not None:
            result["speed_up_over_torch"] = beside / median

    def _add_speed_up(self, result: dict[str, Any], kind: str) -> None:
        if kind in self.numpy:
            result["speed_up"] = self.numpy[kind] / result["seconds"]["median"]


def _jobs(
    engines: Sequence[Engine], options: PartOptions
) -> list[tuple[EmbeddingJob, list[Engine]]]:
    """Return jobs with the engines that do each; NumPy does them all."""
    free = free_memory()
    host = sys.maxsize if free is None else free // TABLE_COPIES
    jobs: dict[EmbeddingJob, list[Engine]] = {}
    for job in JOBS[:1] if options.quick else JOBS:
        for engine in engines:
            for own in _suited(job, engine, host, options.quick):
                jobs.setdefault(own, []).append(engine)
    for doing in jobs.values():
        doing += [e for e in engines if e.backend.device is None and e not in doing]
    return list(jobs.items())


def _suited(job: EmbeddingJob, engine: Engine, host: int, quick: bool) -> list[EmbeddingJob]:
    """Return a job as large as suits an engine, and one for ways that take no table in parts.

    host: bytes of a table that the host has the memory for.
    """
    largest = host
    if quick:
        software = engine.is_software_adapter
        largest = min(host, QUICK_SOFTWARE_TABLE_BYTES if software else QUICK_TABLE_BYTES)
    elif engine.is_software_adapter:
        largest = min(host, SOFTWARE_TABLE_BYTES)
    own = job.scaled_to(largest)
    device = engine.backend.device
    if device is None or own.table_bytes <= device.max_binding_bytes:
        return [own]
    return [own, job.scaled_to(device.max_binding_bytes)]


def _why_not(place: Place, variant: Variant) -> str | None:
    """Return why a way can't be measured, None if it can."""
    largest = place.operations.max_tensor_bytes
    table = place.data.job.table_bytes
    in_parts = variant.in_parts and not place.is_backward
    if not in_parts and table > largest:
        return f"takes no table in parts, and a binding has at most {largest:,} bytes"
    if place.is_half and not place.operations.has_half_precision:
        return "the device has no half precision"
    return None
