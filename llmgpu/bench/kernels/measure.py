"""Measuring kernels: the time of each, and how near it is to what memory and arithmetic allow.

Each operation of a language model runs alone, at the sizes of a training step of GPT-2 small on a
GPU and of a tiny model where a CPU computes. What it gives is compared with NumPy's on the same
inputs before a time is given. Between the runs of a GPU its caches are filled with other numbers.
Speed-ups are over NumPy's median at the same sizes, or where NumPy is not measured at these, over
the one run that was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.cases import Arrays, KernelCase, Sizes, Tensors
from llmgpu.bench.kernels.limits import measured_bandwidth, measured_rate, raise_clocks
from llmgpu.bench.kernels.operations import LAYERS
from llmgpu.bench.kernels.tokenizers import measure_tokenizer_kernels
from llmgpu.bench.kernels.updates import UPDATES
from llmgpu.bench.peers.torch import Torch, first_line
from llmgpu.bench.results import KERNELS, Result, Times
from llmgpu.bench.timing import PartOptions, ProgramTimes, host_times, time_program, timed
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import preset
from llmgpu.lm.gradients import logits_block_rows
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.recording import LARGEST_HALF
from llmgpu.progress import Progress

FAMILIES = (*LAYERS, *UPDATES)
CASE_SECONDS, QUICK_CASE_SECONDS = 0.5, 0.05  # after which no further run of a case begins
CACHE_BYTES = 256 << 20  # more than any cache holds
NO_HALF_PRECISION = "no half precision (shader-f16)"
BLOCK_ELEMENTS = 1 << 22  # compared at a time


@dataclass(frozen=True)
class Prepared:
    """An operation recorded on tensors of an engine; separate: as its case has it."""

    operations: Operations
    tensors: Tensors
    program: Program
    separate: Program | None

    def run(self) -> None:
        """Run it once, to the end."""
        self.operations.run(self.program)
        self.operations.wait_for_runs(0)

    def read(self, name: str) -> NDArray[Any]:
        """Return what a tensor holds."""
        return self.operations.read(self.tensors[name])


class CaseBench:
    """Cases that engines and torch carry out one after the other."""

    def __init__(
        self,
        what: str,
        options: PartOptions,
        progress: Progress,
        budget: float,
        *,
        cold: bool = False,
    ) -> None:
        """Begin without times.

        what: the part. budget: seconds after which no further run of a case begins.
        cold: whether to fill a GPU's caches with other numbers before each run.
        """
        self._what = what
        self._options = options
        self._progress = progress
        self._budget = budget
        self._cold = cold
        # Seconds of the first case of a kind, by kind and sizes; torch's by device before.
        self._numpy_seconds: dict[tuple[str, str], float] = {}
        self._torch_seconds: dict[tuple[str, str, str], float] = {}
        self._inputs: tuple[tuple[str, str, object], Arrays, Prepared, float] | None = None

    def measure_cases(
        self, engine: Engine, cases: Iterable[KernelCase], torch: Torch | None = None
    ) -> Iterator[Result]:
        """Yield a result for each operation, and torch's after those that it has."""
        self._inputs = None  # engines may take tables in other parts
        listed = list(cases)
        for index, case in enumerate(listed):
            self._progress(f"{self._what}: {engine.name}, {case.variant}", index, len(listed))
            yield self.measure_case(engine, case)
            if torch is not None and case.torch is not None:
                yield self.measure_torch(torch, case, engine)

    def measure_case(self, engine: Engine, case: KernelCase) -> Result:
        """Compare a case's answer on an engine with NumPy's; where it is the same, time it."""
        begun = self._begin(engine.name, case)
        if case.why_not is not None:
            return replace(begun, note=case.why_not)
        operations = open_operations(engine.backend.device)
        if case.needs_half and not operations.has_half_precision:
            return replace(begun, note=NO_HALF_PRECISION)
        try:
            arrays, expected, one_run = self._reference(case)
            prepared, result = expected, replace(begun, correct=True, answer="the reference")
            if engine.backend is not NUMPY or case.reference is not None:
                prepared = prepare(operations, case, arrays)
                result = self._compare(begun, case, arrays, prepared, expected)
                if not result.correct:
                    return result
            result = self._time(result, engine, case, prepared)
            result = self._add_rates(result, engine, case, arrays)
            return self._add_speed_ups(result, engine, case, one_run)
        except LlmgpuError as error:
            return replace(begun, note=str(error))

    def measure_torch(self, torch: Torch, case: KernelCase, engine: Engine | None = None) -> Result:
        """Measure the same in torch; engine: whose limits its rates are shares of."""
        begun = replace(self._begin(torch.name, case), peer=True)
        assert case.torch is not None
        self._progress(f"{self._what}: {torch.name}, {case.variant}", 0, 1)
        arrays, expected, _ = self._reference(case)
        try:
            tensors = {name: torch.tensor(array.copy()) for name, array in arrays.items()}
            compute = partial(case.torch, torch.module, tensors)
            found = compute().detach().cpu().numpy()
            # Before it runs again: some ways add to their output, which `found` may share.
            (output,) = case.outputs
            if not same_values(found, expected.read(output), case.tolerance):
                return replace(begun, correct=False, answer=_wrong_answer(case, [output]))
            times = torch.times(compute, self._options.runs, self._budget, cold=self._cold)
        except RuntimeError as error:
            return replace(begun, note=first_line(error))
        result = replace(begun, correct=True, answer=_right_answer(case), **times.fields())
        result = self._add_rates(result, engine, case, arrays)
        key = (case.kind or case.variant, case.sizes)
        self._torch_seconds.setdefault((torch.device, *key), result.median)
        if engine is None and key in self._numpy_seconds:
            return replace(result, speed_up=self._numpy_seconds[key] / result.median)
        return result

    def _begin(self, engine: str, case: KernelCase) -> Result:
        return Result(self._what, engine, job=case.sizes, variant=case.variant, note=case.note)

    def _reference(self, case: KernelCase) -> tuple[Arrays, Prepared, float]:
        """Return a case's arrays, NumPy's answer, and its seconds; of one kind only once."""
        key = (case.kind or case.variant, case.sizes, case.reference)
        if self._inputs is None or self._inputs[0] != key or not case.kind:
            self._inputs = None  # its memory is free before more is asked for
            arrays = case.make()
            own = replace(case, record=case.reference) if case.reference is not None else case
            expected = prepare(open_operations(None), own, arrays)
            self._inputs = (key, arrays, expected, timed(expected.run)[0])
        return self._inputs[1:]

    def _compare(
        self,
        begun: Result,
        case: KernelCase,
        arrays: Arrays,
        prepared: Prepared,
        expected: Prepared,
    ) -> Result:
        prepared.run()
        wrong = wrong_outputs(case, prepared, expected)
        if prepared.separate is not None and not wrong:
            wrong = _differences(case, arrays, prepared)
        if wrong:
            return replace(begun, correct=False, answer=_wrong_answer(case, wrong))
        return replace(begun, correct=True, answer=_right_answer(case))

    def _time(self, result: Result, engine: Engine, case: KernelCase, prepared: Prepared) -> Result:
        times = self._time_program(engine, prepared, prepared.program)
        result = replace(result, **times.fields())
        if prepared.separate is None:
            return result
        # The separate way, and both as the host sees them.
        spent = Times.of(self._time_program(engine, prepared, prepared.separate).seconds)
        separately = replace(prepared, program=prepared.separate)
        fused, separate = (
            Times.of(host_times(way.run, self._options.runs, self._budget))
            for way in (prepared, separately)
        )
        return replace(
            result,
            separate_seconds=spent,
            speed_up_over_separate=spent.median / result.median,
            host_seconds=fused,
            separate_host_seconds=separate,
        )

    def _time_program(self, engine: Engine, prepared: Prepared, program: Program) -> ProgramTimes:
        operations, before = prepared.operations, None
        if self._cold:
            raise_clocks(engine)
            before = _fill_caches(engine, operations)
        return time_program(operations, program, self._options.runs, self._budget, before)

    def _add_rates(
        self, result: Result, engine: Engine | None, case: KernelCase, arrays: Arrays
    ) -> Result:
        """Add what had to be moved and computed, and how near the time is to the limits."""
        nbytes, operations, median = case.moved_bytes(arrays), case.operations, result.median
        written, tokens = case.output_bytes, case.tokens
        result = replace(
            result,
            table_bytes=case.table_bytes,
            output_bytes=written,
            bytes=nbytes,
            bytes_per_second=nbytes / median,
            output_bytes_per_second=None if written is None else written / median,
            tokens_per_second=None if tokens is None else tokens / median,
        )
        if engine is None:
            return result
        bandwidth = measured_bandwidth(engine)
        result = replace(result, share_of_copy=nbytes / median / bandwidth)
        if operations is None:
            return result
        floor = max(nbytes / bandwidth, operations / measured_rate(engine))
        return replace(
            result,
            operations=operations,
            operations_per_second=operations / median,
            share_of_floor=floor / median,
        )

    def _add_speed_ups(
        self, result: Result, engine: Engine, case: KernelCase, one_run: float
    ) -> Result:
        """Add how much faster than NumPy and torch it is, by their first way of the kind."""
        key, median = (case.kind or case.variant, case.sizes), result.median
        if engine.backend is NUMPY:
            self._numpy_seconds.setdefault(key, median)
        # Without a kind every case is run by NumPy, if only to be compared.
        numpy = self._numpy_seconds.get(key, None if case.kind else one_run)
        if numpy is not None and (case.kind or engine.backend is not NUMPY):
            result = replace(result, speed_up=numpy / median)
        if not case.kind:
            return result
        cuda, cpu = (self._torch_seconds.get((device, *key)) for device in ("cuda", "cpu"))
        torch = cuda if "NVIDIA" in engine.name and cuda is not None else cpu
        return result if torch is None else replace(result, speed_up_over_torch=torch / median)


def measure_kernels(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine: language models, then tokenizers."""
    budget = QUICK_CASE_SECONDS if options.quick else CASE_SECONDS
    bench = CaseBench(KERNELS, options, progress, budget, cold=True)
    for engine in engines:
        sizes, note = choose_sizes(engine, quick=options.quick)
        cases = [replace(case, note=note) for family in FAMILIES for case in family(sizes)]
        torch = Torch.on_gpu(engine) if options.peers else None
        yield from bench.measure_cases(engine, cases, torch)
    yield from measure_tokenizer_kernels(engines, options, progress)


def choose_sizes(engine: Engine, *, quick: bool) -> tuple[Sizes, str | None]:
    """Return the sizes for an engine, and a line where they are not those of GPT-2 small."""
    narrow = preset("tiny", 512, layers=12, dim=64, ffn_dim=192)
    if engine.backend.is_software:
        config = preset("tiny", 512, seq_len=32 if quick else 128)
        return Sizes(config, 1 if quick else 4, narrow), "sizes for a CPU, within its caches"
    if quick:
        return Sizes(preset("gpt2", 8192), 1, narrow), "fewer rows and ids"
    config, sequences = preset("gpt2", 50_257), 8
    rows = sequences * config.seq_len
    bindable = logits_block_rows(open_operations(engine.backend.device), config, rows)
    if bindable < rows:
        fewer = preset("gpt2", 50_257, seq_len=max(64, bindable // sequences // 64 * 64))
        return Sizes(fewer, sequences), "fewer rows: the logits of all are more than a binding"
    return Sizes(config, sequences), None


def prepare(operations: Operations, case: KernelCase, arrays: Arrays) -> Prepared:
    """Put a case's arrays into tensors and record its operation.

    Raises:
        DeviceError: there is no memory for them.
    """
    tensors = {}
    for name, array in arrays.items():
        make = operations.parameters if name in case.uniforms else operations.tensor
        tensors[name] = make(name, array.shape, array.dtype)
        operations.write(tensors[name], array)
    program: Program
    with operations.record(case.variant) as program:
        case.record_on(operations, tensors)
    if case.separate is None:
        return Prepared(operations, tensors, program, None)
    separate: Program
    with operations.record(f"{case.variant}, separately") as separate:
        case.separate(operations, tensors)
    return Prepared(operations, tensors, program, separate)


def wrong_outputs(case: KernelCase, found: Prepared, expected: Prepared) -> list[str]:
    """Return the outputs that differ from the expected ones, and copies that are not copies."""
    wrong = []
    for name in case.outputs:
        total = name in case.total
        values = (found.read(name), expected.read(name))
        if not same_values(*values, case.tolerance, only_total=total):
            wrong.append(name)
    for name, original in case.copies.items():
        halves = np.clip(found.read(original), -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
        if not np.array_equal(found.read(name), halves):
            wrong.append(name)
    return wrong


def _differences(case: KernelCase, arrays: Arrays, prepared: Prepared) -> list[str]:
    """Return the outputs of which the separate way gives other bytes."""
    outputs = [*case.outputs, *case.copies]
    found = {name: prepared.read(name) for name in outputs}
    for name, array in arrays.items():
        prepared.operations.write(prepared.tensors[name], array)
    assert prepared.separate is not None
    prepared.operations.run(prepared.separate)
    return [name for name in outputs if not np.array_equal(found[name], prepared.read(name))]


def _fill_caches(engine: Engine, operations: Operations) -> Callable[[], None] | None:
    """Return what reads more than a GPU's caches hold: lines written would cost later ones."""
    if engine.backend.is_software:
        return None
    size = min(CACHE_BYTES, operations.max_tensor_bytes) // 4
    numbers = operations.tensor("more than a cache", (size,))
    partials = operations.tensor("sums", (1, NORM_PARTIALS))
    with operations.record("fill caches") as program:
        operations.reduce_norm_sq(numbers, partials, 0)
    return lambda: operations.run(program)


def _right_answer(case: KernelCase) -> str:
    within = f", within {case.tolerance:g}" if case.tolerance else ""
    both = ", and the same in both ways" if case.separate is not None else ""
    return f"the {case.answer} of NumPy{within}{both}"


def _wrong_answer(case: KernelCase, wrong: list[str]) -> str:
    return f"NOT the {case.answer if case.kind else ' and '.join(wrong)} of NumPy"


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
