"""Cases of single operations: inputs and sizes, the comparison of outputs, and timing.

The number of bytes to move follows from the arrays of a case: every input is read once, and every
output is written once. An array that is added to or changed in place counts twice. If the number
depends on the content of a table or a list, the case states it. Additions, multiplications,
comparisons, roots, divisions and exponentials count as one operation each.

The outputs of an engine are compared with NumPy's on the same inputs before the engine is timed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench import BenchOptions
from llmgpu.bench.engines import (
    Engine,
    has_timestamps,
    raise_clocks,
    run_program,
    time_runs,
    with_times,
)
from llmgpu.bench.peers import CACHE_BYTES, Torch
from llmgpu.bench.results import NUMPY_ENGINE, KernelTimes, Result, Results
from llmgpu.errors import DeviceError
from llmgpu.forking import cached_property
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.model import scaled_frequencies
from llmgpu.lm.ops.layers import rotary_tables
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.recording import LARGEST_HALF
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters
from llmgpu.progress import Progress

Array = NDArray[Any]
Ids = NDArray[np.uint32]
Arrays = dict[str, Array]
Tensors = dict[str, Tensor]
Given = Callable[[], Mapping[str, Array]]  # returns operands by name
Amount = int | str | None  # a number, or the text of a shape with as many elements
TOLERANCE = 3e-5  # for different rounding and orders of addition in NumPy and on a GPU
# Tensors that kernels on matrix units bind as one.
TOGETHER = ("q", "k", "v"), ("grad_q", "grad_k", "grad_v"), ("cosines", "sines")
FEW_NUMBERS = ("stats", "hyper", "params")  # inputs too small to count as moved bytes
NO_HALF_PRECISION = "no half precision (shader-f16)"
MANY_ROWS = 64  # new tokens of a batch
BLOCK_ELEMENTS = 1 << 22  # elements compared at a time
CASE_SECONDS, QUICK_CASE_SECONDS = 0.5, 0.1  # seconds after which no further run starts
PERIOD = 1_000_003  # random numbers, which arrays repeat; a prime, so that rows do not repeat
_OPERAND = re.compile(r"([+*]?)(\w+)(?::(\w+))?(?::([hua]))?")
_LENGTH = re.compile(r"\d+|[A-Z]")
STEP, LEARNING_RATE = 10, 0.1  # a rate so large that updates of weights exceed rounding errors


@dataclass(frozen=True)
class KernelCase:
    """An operation on given inputs.

    name: name of the operation. where: text that distinguishes cases of one operation.
    sizes, note: text for tables. why_not: the reason why the case can't be measured.
    make: returns the first content of all tensors by name, NaN for tensors that are only written.
    values: further arguments of the operation, by name.
    record: the name of an operation, by default `name`, or a function. The function's first
        parameter is the `Operations`; `record_on` passes the other arguments.
    operations: number of arithmetic operations; None: results do not state it.
    bytes: number of bytes to move; None: computed from the sizes of the arrays.
    outputs: names of outputs to compare. total: the outputs of which only the sums are compared.
    uncompared: outputs that are not compared.
    copies: half-precision copies by name, each with the name of the output that is copied.
    needs_half: whether half precision is needed.
    halves: whether the operation multiplies half-precision matrices, as matrix units can.
    torch: computes the output in torch, and returns it.
    kind: name shared by cases with the same inputs and the same right answer.
    reference: the operation by which NumPy computes the right answer, by default the operation of
        the case.
    answer: name of all outputs in messages.
    fields: other fields of results.
    counted: numbers by name. Results have their rates per second, too.
    """

    name: str
    sizes: str
    operations: int | None
    make: Callable[[], Arrays]
    outputs: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    record: str | Callable[..., Any] = ""
    where: str = ""
    note: str = ""
    why_not: str = ""
    needs_half: bool = False
    halves: bool = False
    tolerance: float = TOLERANCE
    total: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    copies: dict[str, str] = field(default_factory=dict)
    torch: Callable[[Any, dict[str, Any]], Any] | None = None
    bytes: int | None = None
    kind: str = ""
    reference: str | Callable[..., Any] = ""
    answer: str = "numbers"
    fields: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """A key for speed-ups: the times of cases with equal keys are compared."""
        return self.kind or self.variant, self.sizes

    @property
    def variant(self) -> str:
        """Name of the case in tables."""
        return f"{self.name}, {self.where}" if self.where else self.name

    def record_on(self, operations: Operations, tensors: Tensors) -> None:
        """Append the operation to the program being recorded.

        Each argument of the operation is the tensor or value with the parameter's name. The
        parameter NAME receives the tensors NAME_0, NAME_1, ... as a list, and "t" receives all
        tensors as a dict. A parameter whose type is a dataclass of tensors, such as `Norm`, is
        composed of the tensors named PARAMETER_FIELD or FIELD. A field without a tensor gets the
        first of all tensors, as a placeholder. All other parameters keep their defaults.
        """
        record = self.record or self.name
        function = getattr(type(operations), record) if isinstance(record, str) else record
        # `given` maps the names of parameters to tensors and values.
        given: dict[str, Any] = {**self.values}
        for key, tensor in tensors.items():
            name, _, number = key.rpartition("_")
            if number.isdigit():
                given.setdefault(name, []).append(tensor)
            else:
                given[key] = tensor
        # Choose the argument for each parameter.
        unused = next(iter(tensors.values()))
        arguments = {}
        for name, parameter in [*inspect.signature(function).parameters.items()][1:]:
            kind: Any = inspect.unwrap(function).__globals__.get(parameter.annotation)
            if name in given:
                arguments[name] = given[name]
            elif isinstance(kind, type) and is_dataclass(kind):
                names = [each.name for each in fields(kind)]
                found = (given.get(f"{name}_{k}", given.get(k, unused)) for k in names)
                arguments[name] = kind(*found)
            elif name == "t":
                arguments[name] = tensors
        function(operations, **arguments)

    def moved_bytes(self, arrays: Arrays) -> int:
        """Return the number of bytes to read and to write."""
        if self.bytes is not None:
            return self.bytes
        outputs = {*self.outputs, *self.uncompared, *self.copies}
        moved = 0
        for name, array in arrays.items():
            if name in outputs:
                # An output that begins as NaN is only written; any other output is also read.
                moved += array.nbytes * (1 if np.isnan(array.flat[0]) else 2)
            elif name not in FEW_NUMBERS:
                moved += array.nbytes
        return moved


@dataclass(frozen=True)
class Sizes:
    """A model and the number of sequences in a batch, from which the shapes of all cases follow.

    updated: the model of the case that updates all weights, by default `config`.
    """

    config: ModelConfig
    sequences: int
    updated: ModelConfig | None = None

    @property
    def rows(self) -> int:
        """Number of tokens in a batch (N)."""
        return self.sequences * self.config.seq_len

    @property
    def vocabulary(self) -> int:
        """Number of rows of the embedding table (V)."""
        return self.config.padded_vocab_size

    def tokens(self) -> Ids:
        """Return ids (N,), as unevenly frequent as the words of a text."""
        generator = np.random.default_rng(1)
        return uneven_ids(generator, self.config.vocab_size, (self.rows,))

    def normal(self, *shape: int, skip: int = 0) -> NDArray[np.float32]:
        """Return normally distributed numbers from one sequence, which repeats in large arrays.

        skip: number of rows of the sequence to skip first. Arrays of one shape have equal numbers
            unless their `skip` differs.
        """
        return np.resize(self._repeated, (shape[0] + skip, *shape[1:]))[skip:]

    @cached_property
    def _repeated(self) -> NDArray[np.float32]:
        return np.random.default_rng(2).standard_normal(PERIOD, np.float32)

    @property
    def head_starts(self) -> tuple[int, int, int]:
        """The first columns of queries, keys and values side by side."""
        return 0, self.config.dim, self.config.dim + self.config.kv_dim

    def shape(self, letters: str) -> tuple[int, ...]:
        """Return the shape that a text spells: a letter or a number for each dimension.

        N: rows. V: rows of the table. C: width. K: width of keys. F: width of the feed-forward
        network. H: heads. T: positions. P: width of queries, keys and values side by side. G: width
        of gate and up side by side. B: width of keys and values side by side. M: rows of many new
        tokens. S: partial sums of a norm. x separates two numbers: 1x8 is
        (1, 8), and 9S is (9, NORM_PARTIALS).
        """
        config = self.config
        letter = {"N": self.rows, "V": self.vocabulary, "C": config.dim, "K": config.kv_dim}
        letter |= {"F": config.ffn_dim, "H": config.heads, "T": config.seq_len}
        letter |= {"P": config.dim + 2 * config.kv_dim, "G": 2 * config.ffn_dim}
        letter |= {"B": 2 * config.kv_dim, "M": MANY_ROWS, "S": NORM_PARTIALS}
        lengths = _LENGTH.findall(letters)
        return tuple(letter[each] if each in letter else int(each) for each in lengths)

    def case(
        self, name: str, operands: str, operations: Amount = 0, given: Given = dict, **more: Any
    ) -> KernelCase:
        """Return a case of an operation, described by its operands.

        operands: ``name:SHAPE`` is an input of random numbers; after SHAPE, ``:h`` stands for half
            precision, ``:a`` for numbers that are not negative, and ``:u`` for zeros in uint32.
            ``+name:SHAPE`` is written, ``*name:SHAPE`` is read and written.
        operations: 9NC is 9 * N * C; None: unknown.
        given: returns the content of other operands, which need no shape. An operand without a
            shape that `given` does not return comes from `DEFAULT_OPERANDS`.
        more: fields of the case by name. Any other name becomes an entry of `KernelCase.values`.
            The default of the field `sizes` is the shape of the first operand; half precision is
            needed if an operand has it.
        """
        parts = _OPERAND.findall(operands)

        def make() -> Arrays:
            content = given()
            return {
                key: content[key] if key in content else self._operand(role, key, letters, kind, k)
                for k, (role, key, letters, kind) in enumerate(parts)
            }

        if isinstance(operations, str):
            operations = prod(self.shape(operations))
        values = {key: more.pop(key) for key in [*more] if key not in _CASE_FIELDS}
        more.setdefault("sizes", by(*self.shape(parts[0][2] or "1")))
        more.setdefault("needs_half", ":h" in operands)
        more.setdefault("outputs", tuple(key for role, key, *_ in parts if role))
        return KernelCase(name, make=make, operations=operations, values=values, **more)

    def _operand(self, role: str, name: str, letters: str, kind: str, skip: int) -> Array:
        """Return the initial content of an operand, see `case`."""
        if not letters:
            return DEFAULT_OPERANDS[name](self)
        shape, dtype = self.shape(letters), np.float16 if kind == "h" else np.float32
        if kind == "u":
            return np.zeros(shape, np.uint32)
        if role == "+":
            return np.full(shape, np.nan, dtype)  # elements that a kernel does not write stay NaN
        numbers = self.normal(*shape, skip=skip)
        return np.abs(numbers) if kind == "a" else numbers.astype(dtype, copy=False)


def _rotary_table(s: Sizes, which: int) -> Array:
    return rotary_tables(s.config.seq_len, scaled_frequencies(s.config))[which]


# Functions for operands without a shape, by name. places: position of a new token, and start of
# its sequence. hyper: numbers of a step. stats: finite gradients, which clipping halves.
DEFAULT_OPERANDS: dict[str, Callable[[Sizes], Array]] = {
    "tokens": Sizes.tokens,
    "targets": Sizes.tokens,
    "positions": lambda s: np.tile(np.arange(s.config.seq_len, dtype=np.uint32), s.sequences),
    "places": lambda s: np.array([[s.config.seq_len - 1], [0]], np.uint32),
    "cosines": partial(_rotary_table, which=0),
    "sines": partial(_rotary_table, which=1),
    "hyper": lambda _: hyper_parameters(TrainOptions(), STEP, LEARNING_RATE, 1.0, 0),
    "stats": lambda _: np.array([0.5, 2.0, 0.0, 1.0], np.float32),
}

_CASE_FIELDS = {each.name for each in fields(KernelCase)}


def uneven_ids(generator: np.random.Generator, vocab_size: int, shape: tuple[int, ...]) -> Ids:
    """Return random ids. The frequency of id k is about 1 / (k + 3), as with words of a text."""
    weights = 1 / (np.arange(vocab_size) + 3.0)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, generator.random(shape) * ends[-1], side="right")
    ids: Ids = np.minimum(drawn, vocab_size - 1).astype(np.uint32)
    return ids


def by(*sizes: int) -> str:
    """Return sizes as text, such as "64 x 128"."""
    return " x ".join(f"{size:,}" for size in sizes)


class Prepared(NamedTuple):
    """An operation on tensors of an engine or of torch.

    run: does the work once, and returns its times. read: returns the content of a tensor by name.
    clock: the clock of the times, see `with_times`.
    """

    run: Callable[[], KernelTimes]
    read: Callable[[str], Array]
    clock: str = ""


def prepare(operations: Operations, case: KernelCase, arrays: Arrays) -> Prepared:
    """Write the arrays of a case to tensors, and record the operation."""
    tensors: dict[str, Tensor] = {}
    for names in TOGETHER:
        if arrays.keys() >= {*names}:
            shapes = {name: arrays[name].shape for name in names}
            tensors |= operations.side_by_side(shapes, arrays[names[0]].dtype)
    for name, array in in_parts(arrays, operations.max_tensor_bytes).items():
        if name not in tensors:
            tensors[name] = operations.tensor(name, array.shape, array.dtype)
        operations.write(tensors[name], array)
    with operations.record(case.variant) as program:
        case.record_on(operations, tensors)
    run = partial(run_program, operations, program)
    return Prepared(run, lambda name: operations.read(tensors[name]))


def in_parts(arrays: Arrays, largest: int) -> Arrays:
    """Cut a table of more than `largest` bytes into whole rows, "table_0" and so on."""
    table = arrays.get("table")
    if table is None or table.nbytes <= largest:
        return arrays
    rows = max(largest // table[:1].nbytes, 1)
    parts = {f"table_{k // rows}": table[k : k + rows] for k in range(0, len(table), rows)}
    return {name: array for name, array in arrays.items() if name != "table"} | parts


def prepare_in_torch(torch: Torch, case: KernelCase, arrays: Arrays) -> Prepared:
    """Copy the arrays of a case to tensors of torch; a run may change the output of the last."""
    tensors = {name: torch.tensor(array.copy()) for name, array in arrays.items()}
    assert case.torch is not None
    clock = "gpu" if torch.is_cuda else "host"
    (output,), compute = case.outputs, partial(case.torch, torch.module, tensors)

    def run() -> KernelTimes:
        times, tensors[output] = torch.time_run(compute)
        return times

    return Prepared(run, lambda name: tensors[name].detach().cpu().numpy(), clock)


def wrong_outputs(case: KernelCase, found: Prepared, expected: Prepared) -> list[str]:
    """Return the names of outputs that differ from NumPy's, and of copies that are wrongly rounded.

    A half-precision copy is compared with the output of `found` that it copies.
    """
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


def same_values(found: Array, wanted: Array, tolerance: float, *, only_total: bool = False) -> bool:
    """Whether |difference| <= tolerance * (|wanted| + RMS of wanted's row) for all numbers.

    only_total: compare the sums of both arrays instead of their numbers.
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
        # "not all <=" instead of "any >", because no comparison with NaN is true.
        if not (np.abs(found[block] - reference) <= allowed).all():
            return False
    return True


@dataclass
class CaseBench:
    """Measures cases on engines and in torch, in turns.

    what: the part of the benchmark. cold: whether to evict a GPU's caches before each run.
    medians: median seconds by program and `KernelCase.key`. Program is an engine's name or
        torch's device. Only the first case of a key is stored.
    """

    what: str
    options: BenchOptions
    progress: Progress
    cold: bool = False
    medians: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _inputs: tuple[object, Arrays, Prepared, float] | None = None

    def measure_cases(
        self, cases: Iterable[KernelCase], engine: Engine | None, torch: Torch | None = None
    ) -> Results:
        """Yield the results of each case: the engine's, and torch's if torch can compute the case.

        Torch's results state shares of the engine's limits, if there is an engine.
        """
        listed = list(cases)
        for index, case in enumerate(listed):
            for program in (engine, torch if case.torch else None):
                if program is not None:
                    where = f"{self.what}: {program.name}, {case.variant}"
                    self.progress(where, index, len(listed))
                    begun = Result(self.what, program.name, job=case.sizes, variant=case.variant)
                    begun = replace(begun, peer=program is torch, note=case.note)
                    yield begun.or_why_not(partial(self._measure, begun, case, program, engine))

    def _measure(
        self, begun: Result, case: KernelCase, program: Engine | Torch, engine: Engine | None
    ) -> Result:
        """Compare a program's outputs with NumPy's; time the case if the outputs agree.

        engine: the engine of whose limits the result states shares, if any.
        """
        device = program.backend.device if isinstance(program, Engine) else None
        operations = open_operations(device)
        lacks_half = case.needs_half and not operations.has_half_precision
        if why_not := case.why_not or (NO_HALF_PRECISION if lacks_half else ""):
            raise DeviceError(why_not)
        # Compare the outputs.
        arrays, expected, one_run = self._reference(case)
        found, result = expected, replace(begun, correct=True, answer="the reference")
        if isinstance(program, Torch):
            found = prepare_in_torch(program, case, arrays)
        elif device is not None or case.reference:
            found = prepare(operations, case, arrays)
        if found is not expected:
            found.run()
            wrong = wrong_outputs(case, found, expected)
            named = case.answer if case.kind or not wrong else " and ".join(wrong)
            within = f", within {case.tolerance:g}" if case.tolerance and not wrong else ""
            result = begun.compared(not wrong, f"{named} of NumPy{within}")
        if not result.correct:
            return result
        # Time the case.
        if engine is not None:
            raise_clocks(engine.backend)
        evict = _cache_reader(program) if self.cold else lambda: None
        budget = QUICK_CASE_SECONDS if self.options.quick else CASE_SECONDS
        times = time_runs(found.run, self.options.runs, budget, evict)
        nbytes = case.moved_bytes(arrays)
        counted, more = {"bytes": nbytes} | case.counted, {"bytes": nbytes} | case.fields
        if case.operations is not None:
            counted["operations"] = more["operations"] = case.operations
        result = with_times(result, times, counted, clock=found.clock, **more)
        if engine is not None:
            limits, median = engine.limits, result.median
            share_of_copy = nbytes / median / limits.bytes_per_second
            result = replace(result, share_of_copy=share_of_copy)
            if case.operations is not None:
                floor = limits.floor(nbytes, case.operations, halves=case.halves)
                result = replace(result, share_of_floor=floor / median)
        return self._with_speed_ups(result, program, case, one_run)

    def _reference(self, case: KernelCase) -> tuple[Arrays, Prepared, float]:
        """Return the case's arrays, the program that NumPy has run on them, and the run's seconds.

        The last result is kept, and returned again for the next case of the same kind and sizes.
        """
        key = (*case.key, case.reference)
        if self._inputs is None or self._inputs[0] != key or not case.kind:
            self._inputs = None  # free the last arrays before `make` allocates more
            arrays = case.make()
            own = replace(case, record=case.reference or case.record)
            expected = prepare(open_operations(None), own, arrays)
            self._inputs = (key, arrays, expected, expected.run().total)
        return self._inputs[1:]

    def _with_speed_ups(
        self, result: Result, program: Engine | Torch, case: KernelCase, one_run: float
    ) -> Result:
        """Add the speed-ups over NumPy and torch, timed on the first case with this case's key.

        one_run: seconds of NumPy's single run.
        """
        name = program.device if isinstance(program, Torch) else program.name
        self.medians.setdefault((name, *case.key), result.median)
        names = (NUMPY_ENGINE, "cuda", "cpu")
        numpy, cuda, cpu = (self.medians.get((name, *case.key)) for name in names)
        torch = cuda if "NVIDIA" in name and cuda is not None else cpu
        if not case.kind:
            # Only GPUs are compared. Without a median of NumPy, use the single run of NumPy.
            numpy, torch = None if name in names else numpy or one_run, None
        if result.peer:
            torch = None
        speed_up, over_torch = (other and other / result.median for other in (numpy, torch))
        return replace(result, speed_up=speed_up, speed_up_over_torch=over_torch)


def _cache_reader(program: Engine | Torch) -> Callable[[], object]:
    """Return a function that evicts a GPU's caches by reading; on a CPU it does nothing.

    A function that writes would leave cache lines that the measured kernel has to write back.
    """
    if isinstance(program, Torch):
        more_than_a_cache = program.module.zeros(CACHE_BYTES // 4, device=program.device)
        return lambda: more_than_a_cache.sum()
    device = program.backend.device
    if program.backend.is_software or not has_timestamps(device):
        return lambda: None
    operations = open_operations(device)
    size = min(CACHE_BYTES, operations.max_tensor_bytes) // 4
    numbers = operations.tensor("more than a cache", (size,))
    partials = operations.tensor("sums", (1, NORM_PARTIALS))
    with operations.record("fill caches") as reading:
        operations.reduce_norm_sq(numbers, partials, 0)
    return lambda: operations.run(reading)
