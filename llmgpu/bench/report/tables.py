"""Results as tables of text: which numbers there are, and how people read them.

The terminal and the page show the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmgpu.bench.results import (
    BPE_TRAIN,
    EMBEDDING,
    GENERATE,
    HOST_ENGINES,
    KERNELS,
    TOKENIZE,
    TRAIN,
    Record,
    Result,
    ResultTable,
)
from llmgpu.bench.units import quantity, seconds_text, spread_text, three_digits
from llmgpu.charts.page import NOTHING, Column


@dataclass(frozen=True)
class Measure:
    """A number of a result.

    key: the field of a result. title: of a column. unit: after a number with a prefix; "%" is a
    share, "x" a ratio; without one the title says it. scale: what the number is multiplied by
    before it has that unit.
    """

    key: str
    title: str
    unit: str
    scale: float = 1.0

    def of(self, result: Result) -> float | None:
        """Return the result's number, None if it has none."""
        number: float | None = getattr(result, self.key)
        return number

    def full_text(self, result: Result) -> str:
        """Return the result's number with its unit, whether or not the title says it."""
        return self.text(result) if self.unit else f"{self.text(result)} {self.title}"

    def text(self, result: Result) -> str:
        """Return the result's number for people, "-" if it has none."""
        number = self.of(result)
        if number is None:
            return NOTHING
        if self.unit == "%":
            return f"{three_digits(100 * number)} %"
        if self.unit == "x":
            return f"{three_digits(number)}x"
        return quantity(number * self.scale, self.unit)


MEASURES = (
    TEXT_RATE := Measure("mb_per_second", "text", "B/s", 1e6),
    Measure("merges_per_second", "merges/s", ""),
    TOKEN_RATE := Measure("tokens_per_second", "tokens/s", ""),
    BYTE_RATE := Measure("bytes_per_second", "memory", "B/s"),
    Measure("output_bytes_per_second", "output", "B/s"),
    OPERATION_RATE := Measure("operations_per_second", "arithmetic", "FLOP/s"),
    SHARE_OF_COPY := Measure("share_of_copy", "of copy", "%"),
    SHARE_OF_FLOOR := Measure("share_of_floor", "of limit", "%"),
    SPEED_UP := Measure("speed_up", "vs NumPy", "x"),
    SPEED_UP_OVER_TORCH := Measure("speed_up_over_torch", "vs torch", "x"),
)
_LEAST_SECONDS = 1e-9  # of a ratio: no clock is finer
HEADLINED = (BPE_TRAIN, TOKENIZE, TRAIN)
RATES = (TEXT_RATE, BYTE_RATE, TOKEN_RATE)  # what results are best told apart by
# Of parts with more numbers than fit a terminal: those that it shows.
NARROW = {
    EMBEDDING: (BYTE_RATE, SHARE_OF_COPY, SPEED_UP, SPEED_UP_OVER_TORCH),
    KERNELS: (BYTE_RATE, OPERATION_RATE, SHARE_OF_FLOOR, SPEED_UP),
    TRAIN: (TOKEN_RATE, SHARE_OF_FLOOR, SPEED_UP, SPEED_UP_OVER_TORCH),
    GENERATE: (TOKEN_RATE, SHARE_OF_FLOOR, SPEED_UP),
}


def columns_of(table: ResultTable, *, narrow: bool = False) -> list[Column]:
    """Return results with times, measures and answers; narrow: as far as a terminal has room."""
    results, times = table.results, [result.seconds for result in table.results]
    spreads = [spread_text(t.median, t.min, t.max) if t else NOTHING for t in times]
    shown = NARROW.get(table.what, MEASURES) if narrow else MEASURES
    measures = [m for m in shown if any(m.of(result) is not None for result in results)]
    columns = [
        Column(
            "kernel" if table.what == KERNELS else "engine", "name", [*map(table.row_name, results)]
        ),
        Column("median", "number", [seconds_text(t.median) if t else NOTHING for t in times]),
        *([] if narrow and table.what in NARROW else [Column("min-max", "number", spreads)]),
        *(Column(m.title, "number", [m.text(result) for result in results]) for m in measures),
    ]
    if table.what == TOKENIZE:
        tokens = [f"{result.tokens:,}" if result.tokens else NOTHING for result in results]
        columns += [] if narrow else [Column("tokens", "number", tokens)]
        rates = [result.mb_per_second or 0 for result in results]
        fastest = max((r.mb_per_second or 0 for r in results if r.peer), default=0)
        ratios = [f"{rate / fastest:.2f}x" if rate and fastest else NOTHING for rate in rates]
        columns.append(Column("vs peers", "number", ratios))
    # What answers were compared with is said once, below the table.
    return [*columns, Column("answer", "", [result.verdict for result in results])]


def headlines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield, for each part, how many times as fast llmgpu is as the fastest other program, or it.

    It is that of the last job that another program did, too, which is the largest; without one,
    that of an adapter against the CPU. Greedy matching, which no other program does, is left out.
    """
    told: dict[str, tuple[bool, str]] = {}
    for table in record.tables():
        timed = [r for r in table.results if r.seconds and r.correct is not False]
        timed = [r for r in timed if "greedy" not in r.variant]
        own = [r for r in timed if not record.is_peer(r)]
        peers = [r for r in timed if record.is_peer(r)]
        others = peers or [r for r in own if r.engine in HOST_ENGINES]
        if table.what not in HEADLINED or not (own and others):
            continue
        best, other = (min(each, key=lambda r: r.median) for each in (own, others))
        if best is other or (told.get(table.what, (False, ""))[0] and not peers):
            continue
        role = ", the fastest other program" if peers else ""
        names = [best.engine, f"{other.engine}{role}"]
        fast, slow = sorted((best.median, other.median))
        if other.median < best.median:
            names = [f"{other.engine}{role and role + ','}", best.engine]
        ratio = three_digits(slow / max(fast, _LEAST_SECONDS))
        told[table.what] = bool(peers), f"{names[0]} is {ratio} times as fast as {names[1]}"
    yield from ((what, line) for what, (_, line) in told.items())


def common_rate(results: Sequence[Result]) -> Measure | None:
    """Return the rate that all results with times have; None if they have none in common.

    Where not memory but arithmetic is the limit of one of them, that is their rate.
    """
    timed = [result for result in results if result.seconds is not None]
    bound = any(map(_is_bound_by_arithmetic, timed))
    for rate in (OPERATION_RATE, *RATES) if bound else RATES:
        if timed and all(rate.of(result) is not None for result in timed):
            return rate
    return None


def facts_of(record: Record) -> Iterator[tuple[str, str]]:
    """Yield names and values of what was measured on, and of what could not be."""
    machine = record.machine
    yield "machine", f"{machine.cpu}, {machine.cpus} CPUs; {machine.platform}"
    for adapter in machine.adapters:
        yield "adapter", f"{adapter.name} ({adapter.kind}), {adapter.driver}"
    for name, reason in record.not_opened.items():
        yield "not opened", f"{name}: {reason}"
    commit = f" ({machine.commit[:12]})" if machine.commit else ""
    software = [f"llmgpu {machine.llmgpu}{commit}", f"Python {machine.python}"]
    packages = {"numpy": machine.numpy, "wgpu": machine.wgpu}
    software += [f"{name} {version}" for name, version in packages.items() if version]
    yield "software", ", ".join(software)
    if record.text is not None:
        text = record.text
        yield "text", f"{text.source}, {text.bytes:,} bytes, SHA-256 {text.sha256[:12]}"
    if record.vocabulary is not None:
        given = record.vocabulary
        yield "vocabulary", f"{given.source}, fingerprint {given.fingerprint[:12]}"


def time_lines(result: Result) -> Iterator[tuple[str, str]]:
    """Yield "start-up" and "phases" with their times, as far as there are any."""
    phases = {name: times.median for name, times in result.phases.items()}
    for name, spent in (("start-up", result.start_up), ("phases", phases)):
        text = ", ".join(f"{part} {seconds_text(s)}" for part, s in spent.items() if s)
        if text:
            yield name, text


def _is_bound_by_arithmetic(result: Result) -> bool:
    """Tell whether a kernel is nearer to what arithmetic allows than to what memory does."""
    of_copy, of_limit = result.share_of_copy, result.share_of_floor
    # Where memory is the limit the two differ by rounding.
    return of_copy is not None and of_limit is not None and of_limit > 1.01 * of_copy
