"""Measuring kernels: the time of each, and how near it is to what memory and arithmetic allow.

Each operation of a language model runs by itself, at the sizes of a training step of GPT-2 small on
a GPU and of a tiny model where a CPU computes. What it gives is compared with NumPy's on the same
inputs before a time is given. Between the runs of a GPU its caches are filled with other numbers.
Speed-ups are over NumPy's median at the same sizes, or where NumPy is not measured at these, over
the one run that was compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llmgpu.backend import NUMPY
from llmgpu.bench.measuring.clocks import raise_clocks
from llmgpu.bench.measuring.engines import Engine
from llmgpu.bench.measuring.gpu_times import time_program
from llmgpu.bench.measuring.times import summarize, timed
from llmgpu.bench.models.kernel_cases import Array, KernelCase, Sizes, Tensors
from llmgpu.bench.models.kernel_cases_layers import (
    activation_cases,
    cast_cases,
    embedding_cases,
    loss_cases,
    norm_cases,
)
from llmgpu.bench.models.kernel_cases_products import attention_cases, cache_cases, linear_cases
from llmgpu.bench.models.kernel_cases_updates import (
    adamw_8bit_cases,
    adamw_cases,
    gradient_cases,
    row_cases,
)
from llmgpu.bench.models.kernel_results import (
    NO_HALF_PRECISION,
    WHAT,
    Result,
    add_cost,
    add_times,
    same_values,
)
from llmgpu.bench.models.kernels_bpe import measure_bpe_kernels
from llmgpu.bench.models.kernels_mirror import measure_mirror_update
from llmgpu.bench.models.kernels_torch import TorchProducts
from llmgpu.bench.part import PartOptions, begin_part_result
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import preset
from llmgpu.lm.gradients import logits_block_rows
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.ops.operations import Operations, Program
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.progress import Progress

FAMILIES: tuple[Callable[[Sizes], Iterator[KernelCase]], ...] = (
    embedding_cases,
    norm_cases,
    linear_cases,
    attention_cases,
    cache_cases,
    activation_cases,
    loss_cases,
    cast_cases,
    gradient_cases,
    adamw_cases,
    adamw_8bit_cases,
    row_cases,
)
CASE_SECONDS, QUICK_CASE_SECONDS = 0.5, 0.05  # after which no further run of a case begins
CACHE_BYTES = 256 << 20  # more than any cache holds


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


class KernelBench:
    """An engine that carries out one case after the other."""

    def __init__(
        self,
        engine: Engine,
        options: PartOptions,
        progress: Progress,
        numpy_seconds: dict[tuple[str, str], float],
    ) -> None:
        """Choose sizes.

        numpy_seconds: what NumPy took, by variant and sizes, if it was measured; filled if it is.
        """
        self._engine = engine
        self._numpy_seconds = numpy_seconds
        self._options = options
        self._progress = progress
        self._sizes, self._note = choose_sizes(engine, quick=options.quick)
        self._torch = TorchProducts.open(engine) if options.peers else None

    def measure(self) -> Iterator[Result]:
        """Yield a result for each operation, and torch's behind those that it has."""
        cases = [case for family in FAMILIES for case in family(self._sizes)]
        for index, case in enumerate(cases):
            self._progress(f"{WHAT}: {self._engine.name}, {case.variant}", index, len(cases))
            yield from self._measure_case(case)

    def _measure_case(self, case: KernelCase) -> Iterator[Result]:
        result = self._begin(self._engine.name, case)
        operations = open_operations(self._engine.backend.device)
        if case.needs_half and not operations.has_half_precision:
            yield result | {"note": NO_HALF_PRECISION}
            return
        arrays = case.make()
        on_numpy = prepare(open_operations(None), case, arrays)
        one_run, _ = timed(on_numpy.run)
        key = (case.variant, case.sizes)
        try:
            if self._engine.backend is NUMPY:
                result |= {"correct": True, "answer": "the reference"}
                self._time(result, case, on_numpy)
                self._numpy_seconds[key] = result["seconds"]["median"]
            elif self._measure_device(result, case, arrays, on_numpy):
                numpy_seconds = self._numpy_seconds.get(key, one_run)
                result["speed_up"] = numpy_seconds / result["seconds"]["median"]
        except LlmgpuError as error:
            result["note"] = str(error)
        yield result
        if self._torch is not None and case.torch is not None:
            yield self._measure_torch(self._torch, case, arrays, on_numpy)

    def _begin(self, engine: str, case: KernelCase) -> Result:
        result = begin_part_result(WHAT, engine, case.sizes) | {"variant": case.variant}
        return result | ({"note": self._note} if self._note else {})

    def _measure_device(
        self, result: Result, case: KernelCase, arrays: dict[str, Array], expected: Prepared
    ) -> bool:
        """Compare an answer with NumPy's; where it is the same, time it and return True."""
        prepared = prepare(open_operations(self._engine.backend.device), case, arrays)
        prepared.run()
        wrong = [name for name in case.outputs if not _same(case, name, prepared, expected)]
        result["correct"] = not wrong
        if wrong:
            result["answer"] = f"NOT the {' and '.join(wrong)} of NumPy"
            return False
        within = f", within {case.tolerance:g}" if case.tolerance else ""
        result["answer"] = f"the numbers of NumPy{within}"
        self._time(result, case, prepared)
        return True

    def _time(self, result: Result, case: KernelCase, prepared: Prepared) -> None:
        raise_clocks(self._engine)
        times = time_program(
            prepared.operations,
            prepared.program,
            self._options.runs,
            QUICK_CASE_SECONDS if self._options.quick else CASE_SECONDS,
            before=self._fill_caches(prepared.operations),
        )
        add_times(result, times)
        add_cost(result, case.cost, self._engine)

    def _fill_caches(self, operations: Operations) -> Callable[[], None] | None:
        """Return what reads more than a GPU's caches hold: lines written would cost later ones."""
        if self._engine.backend.is_software:
            return None
        size = min(CACHE_BYTES, operations.max_tensor_bytes) // 4
        numbers = operations.tensor("more than a cache", (size,))
        partials = operations.tensor("what is read", (1, NORM_PARTIALS))
        with operations.record("fill caches") as program:
            operations.reduce_norm_sq(numbers, partials, 0)
        return lambda: operations.run(program)

    def _measure_torch(
        self, torch: TorchProducts, case: KernelCase, arrays: dict[str, Array], expected: Prepared
    ) -> Result:
        result = self._begin(torch.name, case) | {"peer": True}
        try:
            found = torch.answer(case, arrays)
            seconds = torch.seconds(case, arrays, self._options.runs)
        except RuntimeError as error:  # no memory
            return result | {"note": str(error).partition("\n")[0]}
        wanted = expected.operations.read(expected.tensors[case.outputs[0]])
        result["correct"] = same_values(found, wanted, case.tolerance)
        if not result["correct"]:
            return result | {"answer": f"NOT the {case.outputs[0]} of NumPy"}
        result["answer"] = f"the numbers of NumPy, within {case.tolerance:g}"
        result["clock"] = "gpu"
        result["seconds"] = summarize(seconds)
        add_cost(result, case.cost, self._engine)
        return result


def measure_kernels(
    engines: Sequence[Engine], options: PartOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine: language models, then tokenizers."""
    numpy_seconds: dict[tuple[str, str], float] = {}
    for engine in engines:
        yield from KernelBench(engine, options, progress, numpy_seconds).measure()
        yield from measure_mirror_update(engine, options, progress)
    yield from measure_bpe_kernels(engines, options, progress)


def choose_sizes(engine: Engine, *, quick: bool) -> tuple[Sizes, str]:
    """Return the sizes for an engine, and a line where they are not those of GPT-2 small."""
    if engine.backend.is_software:
        seq_len = 32 if quick else 128
        return Sizes(
            preset("tiny", 512, seq_len=seq_len), 1 if quick else 4
        ), "sizes for a CPU, within its caches"
    if quick:
        return Sizes(preset("gpt2", 8192), 1), "fewer rows and ids"
    config, sequences = preset("gpt2", 50_257), 8
    rows = sequences * config.seq_len
    bindable = logits_block_rows(open_operations(engine.backend.device), config, rows)
    if bindable < rows:
        fewer = preset("gpt2", 50_257, seq_len=max(64, bindable // sequences // 64 * 64))
        return Sizes(fewer, sequences), "fewer rows: the logits of all are more than a binding"
    return Sizes(config, sequences), ""


def prepare(operations: Operations, case: KernelCase, arrays: dict[str, Array]) -> Prepared:
    """Put a case's arrays into tensors and record its operation.

    Raises:
        DeviceError: there is no memory for them.
    """
    tensors = {}
    for name, array in arrays.items():
        make = operations.parameters if name in case.uniforms else operations.tensor
        tensors[name] = make(name, array.shape, array.dtype)
        operations.write(tensors[name], array)
    with operations.record(case.variant) as program:
        case.record(operations, tensors)
    return Prepared(operations, tensors, program)


def _same(case: KernelCase, name: str, one: Prepared, other: Prepared) -> bool:
    found, wanted = (side.operations.read(side.tensors[name]) for side in (one, other))
    return same_values(found, wanted, case.tolerance, only_total=name in case.total)
