"""Measuring kernels: the time of each, and how near it is to what memory and arithmetic allow.

Each operation of a language model runs alone, at the sizes of a training step of GPT-2 small on a
GPU and of a tiny model where a CPU computes. What it gives is compared with NumPy's on the same
inputs before a time is given. Between the runs of a GPU its caches are filled with other numbers.
Speed-ups are over NumPy's median at the same sizes, or where NumPy is not measured at these, over
the one run that was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.backend import NUMPY
from llmgpu.bench import KERNELS, BenchOptions
from llmgpu.bench.engines import Engine
from llmgpu.bench.kernels.cases import Arrays, KernelCase, Sizes, Tensors
from llmgpu.bench.kernels.operations import LAYERS
from llmgpu.bench.kernels.updates import UPDATES
from llmgpu.bench.peers.torch import Torch, first_line
from llmgpu.bench.results import Result
from llmgpu.bench.timing import measure_limits, raise_clocks, time_program, timed
from llmgpu.bench.tokenizers.measure import measure_tokenizer_kernels
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import preset
from llmgpu.lm.gradients import LOGITS_BYTES, logits_block_rows
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.recording import LARGEST_HALF, Program
from llmgpu.progress import Progress

FAMILIES = (*LAYERS, *UPDATES)
CASE_SECONDS, QUICK_CASE_SECONDS = 0.5, 0.05  # after which no further run of a case starts
CACHE_BYTES = 256 << 20  # more than any cache holds
NO_HALF_PRECISION = "no half precision (shader-f16)"
BLOCK_ELEMENTS = 1 << 22  # compared at a time


@dataclass(frozen=True)
class Prepared:
    """An operation recorded on tensors of an engine."""

    operations: Operations
    tensors: Tensors
    program: Program

    def run(self) -> None:
        """Run it once, to the end."""
        self.operations.run(self.program)
        self.operations.wait_for_runs(0)

    def read(self, name: str) -> NDArray[Any]:
        """Return what a tensor holds."""
        return self.operations.read(self.tensors[name])


@dataclass
class CaseBench:
    """Cases that engines and torch carry out one after the other.

    what: the part. budget: seconds after which no further run of a case starts.
    cold: whether to fill a GPU's caches with other numbers before each run.
    numpy_seconds, torch_seconds: of the first case of a kind, by kind and sizes; torch's by device.
    """

    what: str
    options: BenchOptions
    progress: Progress
    budget: float
    cold: bool = False
    numpy_seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    torch_seconds: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _inputs: tuple[object, Arrays, Prepared, float] | None = None

    def measure_cases(
        self, engine: Engine, cases: Iterable[KernelCase], torch: Torch | None = None
    ) -> Iterator[Result]:
        """Yield a result for each operation, and torch's after those that it has."""
        self._inputs = None  # engines may take tables in other parts
        listed = list(cases)
        for index, case in enumerate(listed):
            self.progress(f"{self.what}: {engine.name}, {case.variant}", index, len(listed))
            yield self.measure_case(engine, case)
            if torch is not None and case.torch is not None:
                yield self.measure_torch(torch, case, engine)

    def measure_case(self, engine: Engine, case: KernelCase) -> Result:
        """Compare a case's answer on an engine with NumPy's; where it is the same, time it."""
        begun = self._begin(engine.name, case)
        if case.why_not:
            return replace(begun, note=case.why_not)
        operations = open_operations(engine.backend.device)
        if case.needs_half and not operations.has_half_precision:
            return replace(begun, note=NO_HALF_PRECISION)
        try:
            arrays, expected, one_run = self._reference(case)
            prepared, answer = expected, "the reference"
            if engine.backend is not NUMPY or case.reference is not None:
                prepared = prepare(operations, case, arrays)
                prepared.run()
                wrong = wrong_outputs(case, prepared, expected)
                answer = _answer(case, wrong)
                if wrong:
                    return replace(begun, correct=False, answer=answer)
            before = None
            if self.cold:
                raise_clocks(engine.backend)
                before = _fill_caches(engine, operations)
            runs = self.options.runs
            times = time_program(prepared.operations, prepared.program, runs, self.budget, before)
            result = replace(begun, correct=True, answer=answer, **times.fields())
            result = _add_rates(result, engine, case, arrays)
            return self._add_speed_ups(result, engine, case, one_run)
        except LlmgpuError as error:
            return replace(begun, note=str(error))

    def measure_torch(self, torch: Torch, case: KernelCase, engine: Engine | None = None) -> Result:
        """Measure the same in torch; engine: whose limits its rates are shares of."""
        begun = replace(self._begin(torch.name, case), peer=True)
        assert case.torch is not None
        self.progress(f"{self.what}: {torch.name}, {case.variant}", 0, 1)
        arrays, expected, _ = self._reference(case)
        try:
            tensors = {name: torch.tensor(array.copy()) for name, array in arrays.items()}
            compute = partial(case.torch, torch.module, tensors)
            found = compute().detach().cpu().numpy()
            # Before it runs again: some ways add to their output, which `found` may share.
            (output,) = case.outputs
            if not same_values(found, expected.read(output), case.tolerance):
                return replace(begun, correct=False, answer=_answer(case, [output]))
            times = torch.times(compute, self.options.runs, self.budget, cold=self.cold)
        except RuntimeError as error:
            return replace(begun, note=first_line(error))
        result = replace(begun, correct=True, answer=_answer(case, []), **times.fields())
        result = _add_rates(result, engine, case, arrays)
        self.torch_seconds.setdefault((torch.device, *case.key), result.median)
        if engine is None and case.key in self.numpy_seconds:
            return replace(result, speed_up=self.numpy_seconds[case.key] / result.median)
        return result

    def _begin(self, engine: str, case: KernelCase) -> Result:
        return Result(self.what, engine, job=case.sizes, variant=case.variant, note=case.note)

    def _reference(self, case: KernelCase) -> tuple[Arrays, Prepared, float]:
        """Return a case's arrays, NumPy's answer, and its seconds; of one kind only once."""
        key = (*case.key, case.reference)
        if self._inputs is None or self._inputs[0] != key or not case.kind:
            self._inputs = None  # its memory is free before more is asked for
            arrays = case.make()
            own = replace(case, record=case.reference) if case.reference is not None else case
            expected = prepare(open_operations(None), own, arrays)
            self._inputs = (key, arrays, expected, timed(expected.run)[0])
        return self._inputs[1:]

    def _add_speed_ups(
        self, result: Result, engine: Engine, case: KernelCase, one_run: float
    ) -> Result:
        """Add how much faster than NumPy and torch it is, by their first way of the kind."""
        by_torch, on_numpy = None, engine.backend is NUMPY
        if on_numpy:
            self.numpy_seconds.setdefault(case.key, result.median)
        by_numpy = self.numpy_seconds.get(case.key)
        if case.kind:
            cuda, cpu = (self.torch_seconds.get((device, *case.key)) for device in ("cuda", "cpu"))
            by_torch = cuda if "NVIDIA" in engine.name and cuda is not None else cpu
        else:
            # Every such case is run by NumPy, if only to be compared.
            by_numpy = None if on_numpy else by_numpy or one_run
        return replace(
            result,
            speed_up=by_numpy and by_numpy / result.median,
            speed_up_over_torch=by_torch and by_torch / result.median,
        )


def measure_kernels(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
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


def choose_sizes(engine: Engine, *, quick: bool) -> tuple[Sizes, str]:
    """Return the sizes for an engine, and a line where they are not those of GPT-2 small."""
    narrow = preset("tiny", 512, layers=12, dim=64, ffn_dim=192)
    if engine.backend.is_software:
        config = preset("tiny", 512, seq_len=32 if quick else 128)
        return Sizes(config, 1 if quick else 4, narrow), "sizes for a CPU, within its caches"
    if quick:
        return Sizes(preset("gpt2", 8192), 1, narrow), "fewer rows and ids"
    config, sequences = preset("gpt2", 50_257), 8
    rows = sequences * config.seq_len
    bindable = logits_block_rows(open_operations(engine.backend.device), config, rows, LOGITS_BYTES)
    if bindable < rows:
        fewer = preset("gpt2", 50_257, seq_len=max(64, bindable // sequences // 64 * 64))
        return Sizes(fewer, sequences), "fewer rows: the logits of all are more than a binding"
    return Sizes(config, sequences), ""


def prepare(operations: Operations, case: KernelCase, arrays: Arrays) -> Prepared:
    """Put a case's arrays into tensors and record its operation."""
    tensors = {}
    for name, array in arrays.items():
        make = operations.parameters if name in case.uniforms else operations.tensor
        tensors[name] = make(name, array.shape, array.dtype)
        operations.write(tensors[name], array)
    with operations.record(case.variant) as program:
        case.record_on(operations, tensors)
    return Prepared(operations, tensors, program)


def wrong_outputs(case: KernelCase, found: Prepared, expected: Prepared) -> list[str]:
    """Return the outputs that differ from the expected ones, and copies that are not copies."""
    wrong = []
    for name in case.outputs:
        total, values = name in case.total, (found.read(name), expected.read(name))
        if not same_values(*values, case.tolerance, only_total=total):
            wrong.append(name)
    for name, original in case.copies.items():
        halves = np.clip(found.read(original), -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
        if not np.array_equal(found.read(name), halves):
            wrong.append(name)
    return wrong


def _add_rates(result: Result, engine: Engine | None, case: KernelCase, arrays: Arrays) -> Result:
    """Add what had to be moved and computed, and how near the time is to the limits."""
    nbytes, operations, median = case.moved_bytes(arrays), case.operations, result.median
    rates: dict[str, Any] = {"bytes": nbytes, "bytes_per_second": nbytes / median}
    if case.looked_up:
        _, output_bytes, tokens = case.looked_up
        rates |= zip(("table_bytes", "output_bytes"), case.looked_up, strict=False)
        rates["output_bytes_per_second"] = output_bytes / median
        rates["tokens_per_second"] = tokens / median
    if engine is not None:
        limits = measure_limits(engine.backend)
        rates["share_of_copy"] = nbytes / median / limits.bytes_per_second
        if operations is not None:
            rate = limits.operations_per_second
            if case.halves:
                rate = limits.matrix_operations_per_second or rate
            floor = max(nbytes / limits.bytes_per_second, operations / rate)
            rates |= {"operations": operations, "operations_per_second": operations / median}
            rates["share_of_floor"] = floor / median
    return replace(result, **rates)


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


def _answer(case: KernelCase, wrong: list[str]) -> str:
    if wrong:
        return f"NOT the {case.answer if case.kind else ' and '.join(wrong)} of NumPy"
    within = f", within {case.tolerance:g}" if case.tolerance else ""
    return f"the {case.answer} of NumPy{within}"


def same_values(
    found: NDArray[Any], wanted: NDArray[Any], tolerance: float, *, only_total: bool = False
) -> bool:
    """Whether |difference| <= tolerance * (|wanted| + RMS of wanted's row) for all numbers.

    only_total: of the sums alone.
    """
    if found.shape != wanted.shape:
        return False
    if only_total:
        found, wanted = (array.sum(dtype=np.float64).reshape(1) for array in (found, wanted))
    if not tolerance:
        return np.array_equal(found, wanted)
    width = wanted.shape[-1] if wanted.ndim > 1 else wanted.size
    rows = max(1, BLOCK_ELEMENTS // max(1, width))
    found, wanted = (array.reshape(-1, width) for array in (found, wanted))
    for start in range(0, len(wanted), rows):
        block = slice(start, start + rows)
        reference = wanted[block].astype(np.float64)
        rms = np.sqrt(np.square(reference).mean(axis=-1, keepdims=True))
        allowed = tolerance * (np.abs(reference) + rms)
        # Not "any larger": a NaN is not larger than anything.
        if not (np.abs(found[block] - reference) <= allowed).all():
            return False
    return True
