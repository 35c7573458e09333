"""The results of a benchmark, the record of all results, and the JSON file of a record.

Times are in seconds, rates in units per second. JSON leaves out fields without a value. The sizes
of a job are `text_bytes`, `vocab_size` and `pattern`, or a line of text (`job`). The `variant`
distinguishes ways of doing the same job.
"""

from __future__ import annotations

import json
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

from llmgpu.bench import EMBEDDING, IDEAS, KERNELS
from llmgpu.errors import InputError, LlmgpuError
from llmgpu.input_files import input_errors, number_of, printable, quote, read_whole

FORMAT = "llmgpu-bench"
VERSION = 2
NUMPY_ENGINE, C_ENGINE = "NumPy", "llmgpu in C"
HOST_ENGINES = (NUMPY_ENGINE, C_ENGINE)  # engines that compute on the CPU

_PREFIXES = ("n", "µ", "m", "", "K", "M", "G", "T", "P")  # of powers of 1000, from -3 on
_OF_SECONDS = range(-3, 1)


def three_digits(number: float) -> str:
    """Return a number with three significant digits, or from 100 on, rounded to an integer."""
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:.3g}"


def quantity(number: float, unit: str) -> str:
    """Return a number with a prefix for a power of 1000: 1.23 GB/s, without a unit 1.23 G."""
    scale, prefix = _prefix(number, range(6))
    return f"{three_digits(number / scale)} {prefix}{unit}".rstrip()


def seconds_text(seconds: float) -> str:
    """Return a time in s, ms, µs or ns: 1.23 ms."""
    scale, prefix = _prefix(seconds, _OF_SECONDS)
    return f"{three_digits(seconds / scale)} {prefix}s"


def spread_text(median: float, fastest: float, slowest: float) -> str:
    """Return the fastest and the slowest of several runs in the unit of their median."""
    scale, prefix = _prefix(median, _OF_SECONDS)
    return f"{three_digits(fastest / scale)}-{three_digits(slowest / scale)} {prefix}s"


def runs_text(times: Times) -> str:
    """Return the number of runs, if it is known, and their spread: 5 runs, 1.2-1.3 ms."""
    spread = spread_text(times.median, times.min, times.max)
    return f"{number_of(len(times.runs), 'run')}, {spread}" if times.runs else spread


def _prefix(number: float, powers: range) -> tuple[float, str]:
    """Choose a power of 1000; return its value and its prefix."""
    # A number of at least 999.5 would round to 1000, so the next prefix is used.
    fitting = (power for power in reversed(powers) if abs(number) >= 0.9995 * 1000.0**power)
    power = next(fitting, powers[0])
    return 1000.0**power, _PREFIXES[power + 3]


@dataclass(frozen=True)
class Times:
    """Seconds of several runs: the median, the least and the most.

    runs: the seconds of each run, in order.
    """

    median: float
    min: float
    max: float
    runs: tuple[float, ...] = ()

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Summarize the seconds of one or more runs."""
        runs = tuple(map(float, seconds))
        return cls(statistics.median(runs), min(runs), max(runs), runs)


def times_by_name(runs: Sequence[Mapping[str, float]]) -> dict[str, Times]:
    """Return the times of each name over several runs, each of which has seconds by name.

    runs: one run or more. Only the names of the first run count; a run without a name counts as 0.
    """
    return {name: Times.of([run.get(name, 0.0) for run in runs]) for name in runs[0]}


@dataclass(frozen=True)
class KernelTimes:
    """Seconds in each kernel by name.

    merges: number of merges, if the kernels trained a vocabulary.
    """

    seconds: dict[str, float]
    total: float
    merges: int | None = None
    mb_per_second: float | None = None


@dataclass(frozen=True)
class Result:
    """The result of an engine or a peer for a job and a variant.

    what: the part of the benchmark, such as `KERNELS`.
    engine: one of `HOST_ENGINES`, an adapter or a peer by its name.
    peer: whether the engine is another program.
    correct: whether the answer was right; None if there was no answer to compare.
    answer: the reference of the comparison, such as "the ids of NumPy".
    note: the reason for a missing or different result.
    clock: "gpu" or "host".
    job, variant: lines of text: the sizes of the job, and the way of doing the job.
    text_bytes, vocab_size, pattern: the sizes of a job on text.
    bytes, operations: numbers of bytes moved and of operations, from which rates and shares follow.
    """

    what: str
    engine: str
    correct: bool | None = None
    peer: bool = False
    job: str = ""
    variant: str = ""
    text_bytes: int | None = None
    vocab_size: int | None = None
    pattern: str | None = None
    answer: str = ""
    note: str = ""
    clock: str = ""
    seconds: Times | None = None
    start_up: dict[str, float] = field(default_factory=dict)
    phases: dict[str, Times] = field(default_factory=dict)
    kernels: KernelTimes | None = None
    losses: tuple[float, ...] = ()
    tokens: int | None = None
    merges: int | None = None
    table_bytes: int | None = None
    output_bytes: int | None = None
    bytes: int | None = None
    operations: int | None = None
    mb_per_second: float | None = None
    merges_per_second: float | None = None
    tokens_per_second: float | None = None
    bytes_per_second: float | None = None
    output_bytes_per_second: float | None = None
    operations_per_second: float | None = None
    share_of_copy: float | None = None
    share_of_floor: float | None = None
    share_of_kernels: float | None = None
    speed_up: float | None = None
    speed_up_over_torch: float | None = None

    @property
    def median(self) -> float:
        """Median of the runs; the result must have times."""
        assert self.seconds is not None
        return self.seconds.median

    @property
    def sizes(self) -> str:
        """A line of text on the sizes of the job."""
        if self.job:
            return self.job
        line = f"{quantity(self.text_bytes or 0, 'B')} of text, {self.vocab_size:,} ids"
        return line if self.pattern is None else f"{line}, pattern {self.pattern}"

    @property
    def work(self) -> str:
        """The kernel and the sizes of its job."""
        return f"{self.variant or 'kernel'}: {self.sizes}"

    @property
    def operations_per_byte(self) -> float | None:
        """Operations per byte moved; None if either number is unknown or 0."""
        return self.operations / self.bytes if self.operations and self.bytes else None

    @property
    def name(self) -> str:
        """The engine, followed by the variant, if any."""
        return f"{self.engine}, {self.variant}" if self.variant else self.engine

    def compared(self, right: bool, answer: str) -> Result:
        """Return a copy with `correct` and `answer` set.

        answer: name of the right answer, such as "ids of NumPy".
        """
        return replace(self, correct=right, answer=f"{'the' if right else 'NOT the'} {answer}")

    def timed(
        self, seconds: Sequence[float], counted: Mapping[str, int] | None = None, **more: Any
    ) -> Result:
        """Return a copy with the times of several runs and the fields in `more`.

        counted: numbers by name, such as "tokens"; their rates per second become fields, too.
        """
        times = Times.of(seconds)
        more |= {f"{k}_per_second": count / times.median for k, count in (counted or {}).items()}
        return replace(self, seconds=times, **more)

    def or_why_not(self, measure: Callable[[], Result]) -> Result:
        """Return the result of `measure`. If it fails, return a copy of this result with a note.

        Errors of torch, a peer, are RuntimeErrors.
        """
        errors = (LlmgpuError, RuntimeError) if self.peer else LlmgpuError
        try:
            return measure()
        except errors as error:
            return replace(self, note=str(error).partition("\n")[0])

    @property
    def kind_and_way(self) -> tuple[str, str]:
        """The kind of work and the way; the kind is "" except in embedding and ideas."""
        if self.what not in (EMBEDDING, IDEAS):
            return "", self.variant
        kind, _, way = self.variant.partition(": ")
        return kind, way

    @property
    def verdict(self) -> str:
        """The word "right" or "WRONG"; if `correct` is None, the fields `answer` and `note`."""
        if self.correct is None:
            return "; ".join(filter(None, (self.answer, self.note))) or "-"
        return "right" if self.correct else "WRONG"


Results = Iterator[Result]


@dataclass(frozen=True)
class Adapter:
    """The description of an opened adapter in a record."""

    name: str
    kind: str
    driver: str
    backend: str | None = None
    subgroup_size: int | None = None


@dataclass(frozen=True)
class Machine:
    """The machine and the versions of its software; None for packages that are not installed."""

    platform: str
    cpu: str
    cpus: int
    adapters: tuple[Adapter, ...]
    python: str
    llmgpu: str
    commit: str | None = None
    numpy: str | None = None
    wgpu: str | None = None
    tokenizers: str | None = None
    rustbpe: str | None = None
    gigatoken: str | None = None
    tiktoken: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class TextFacts:
    """The text of a benchmark."""

    source: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class VocabularyFacts:
    """Facts about the vocabulary of --vocab, which the benchmark of tokenizing uses."""

    source: str
    fingerprint: str


@dataclass(frozen=True)
class Limits:
    """Measured rates of an engine's memory and arithmetic.

    matrix_operations_per_second: rate of matrix units for half-precision matrices with float32
    sums; None without matrix units.
    """

    bytes_per_second: float
    operations_per_second: float
    matrix_operations_per_second: float | None = None

    @property
    def rates(self) -> list[float]:
        """Operations per second in float32, and on matrix units if there are any."""
        rates = (self.operations_per_second, self.matrix_operations_per_second)
        return [rate for rate in rates if rate is not None]

    def floor(self, nbytes: int, operations: int, *, halves: bool = False) -> float:
        """Return the least seconds for moving bytes while doing operations at the same time."""
        matrix_rate = self.matrix_operations_per_second if halves else None
        rate = matrix_rate or self.operations_per_second
        return max(nbytes / self.bytes_per_second, operations / rate)


@dataclass
class Record:
    """All results of a benchmark. Results are added while the benchmark runs.

    measured: the time of the benchmark, in UTC.
    not_opened: reasons why adapters could not be opened, by the adapter's name.
    smoke: the size of a --quick run, which has too few times for a comparison; None for other runs.
    missing_peers: lines on packages to install, by the peer's name.
    limits: limits by the engine's name.
    complete: whether the benchmark ran to its end.
    """

    machine: Machine
    results: list[Result]
    complete: bool
    not_opened: dict[str, str]
    measured: str | None = None
    smoke: str | None = None
    text: TextFacts | None = None
    vocabulary: VocabularyFacts | None = None
    missing_peers: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)

    @property
    def is_correct(self) -> bool:
        """Whether no engine gave a wrong answer."""
        return all(result.correct is not False for result in self.results)

    def tables(self) -> list[ResultTable]:
        """Return all results as tables, in the order in which they were measured.

        Kernels that another program ran, too, have one more table each.
        """
        tables: dict[tuple[str, str], ResultTable] = {}
        by_peers = {r.work for r in self.results if r.what == KERNELS and r.peer}
        for result in self.results:
            kind, _ = result.kind_and_way
            titles = [f"{result.sizes}: {kind}" if kind else result.sizes]
            if result.what == KERNELS:
                titles = [result.engine, *{result.work} & by_peers]
            for title in titles:
                empty = ResultTable(result.what, title, [])
                tables.setdefault((result.what, title), empty).results.append(result)
        return list(tables.values())

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON's types."""
        plain = {name: value for name, value in asdict(self).items() if value is not None}
        results = [{"correct": None} | _stated(result) for result in plain["results"]]
        stated = {"results": results, "limits": _stated(plain["limits"])}
        return {"format": FORMAT, "version": VERSION} | plain | stated


@dataclass(frozen=True)
class ResultTable:
    """The results of one job, or of all kernels of one engine.

    what: the part of the benchmark. title: the job, or the engine. results: in the order of
    measuring.
    """

    what: str
    title: str
    results: list[Result]

    @property
    def is_of_engine(self) -> bool:
        """Whether the table has the kernels of one engine."""
        return self.what == KERNELS and all(r.engine == self.title for r in self.results)

    def row_name(self, result: Result) -> str:
        if self.what == KERNELS:
            return result.work if self.is_of_engine else result.engine
        _, way = result.kind_and_way
        return f"{result.engine}, {way}" if way else result.engine

    @property
    def answers(self) -> str:
        """The text below a table: the answers that results were compared with, and notes."""
        compared = [result for result in self.results if result.correct is not None]
        said = [result.answer for result in compared] + [result.note for result in compared]
        return "; ".join(dict.fromkeys(text for text in said if text))


def load_record(path: str) -> Record:
    """Read a record that ``llmgpu bench -o`` has written.

    Raises:
        InputError: the file can't be read, is not a record, is of another version, or is damaged.
    """
    try:
        with input_errors(path):
            plain = json.loads(read_whole(path, "record of measurements"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a record of llmgpu bench: it is not JSON") from error
    try:
        return read_record(plain)
    except ValueError as error:
        raise InputError(f"{path} {error}") from error


def read_record(plain: Any) -> Record:
    """Return a record from JSON's types; unknown fields are ignored.

    Raises:
        ValueError: `plain` is not a record, or is damaged; the message continues a sentence that
            begins with the file's name.
    """
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError("is not a record of llmgpu bench: make one with -o FILE")
    if plain.get("version") != VERSION:
        version = plain.get("version")
        raise ValueError(f"is a record of version {quote(version)}; this llmgpu reads {VERSION}")
    try:
        record: Record = _read(Record, plain, "it")
        _check_numbers(record)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from error
    return record


def _check_numbers(record: Record) -> None:
    """Raise ValueError for a result without sizes, and for divisors that are not above 0."""
    for name, limits in record.limits.items():
        if min(limits.bytes_per_second, *limits.rates) <= 0:
            raise ValueError(f"limits.{name} has a number that is not above 0")
    for k, result in enumerate(record.results):
        if not result.job and None in (result.text_bytes, result.vocab_size):
            raise ValueError(f"results[{k}].job is missing")
        if result.seconds and min(astuple(result.seconds)[:3]) <= 0:
            raise ValueError(f"results[{k}].seconds has a number that is not above 0")


# Messages call these types of Python by JSON's words, and other types by their names.
_CALLED = {dict: "an object", list: "a list"}


def _read(kind: Any, value: Any, place: str) -> Any:
    """Convert a JSON value to a type. The ValueError of a failure names `place` and the type."""
    origin, arguments = get_origin(kind), get_args(kind)
    # For "TYPE | None" read TYPE: a null is skipped, and the field keeps its default.
    if origin is types.UnionType:
        return _read(arguments[0], value, place)
    if kind in (int, float):
        # An integer of JSON may be too large for calculations.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) < 1e30:
            raise ValueError(f"{place} is not a number")
        return value
    is_object = is_dataclass(kind)
    wanted: Any = dict if is_object else list if origin is tuple else origin or kind
    if not isinstance(value, wanted):
        called = _CALLED.get(wanted, f"of type {wanted.__name__}")
        raise ValueError(f"{place} is not {called}")
    inside = "" if place == "it" else f"{place}."
    if is_object:
        hints, read = get_type_hints(kind), {}
        for of_kind in fields(kind):
            name = of_kind.name
            if value.get(name) is not None:
                read[name] = _read(hints[name], value[name], f"{inside}{name}")
            elif of_kind.default is MISSING and of_kind.default_factory is MISSING:
                raise ValueError(f"{inside}{name} is missing")
        return kind(**read)
    if wanted is dict:
        items = value.items()
        return {printable(k): _read(arguments[1], item, f"{inside}{k}") for k, item in items}
    if wanted is list:
        items = enumerate(value)
        return origin(_read(arguments[0], item, f"{place}[{k}]") for k, item in items)
    return printable(value) if kind is str else value


def _stated(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object without the fields that have no value, nested objects included."""
    return {
        name: _stated(value) if isinstance(value, dict) else value
        for name, value in plain.items()
        if value not in (None, {}, (), "") and (name, value) != ("peer", False)
    }
