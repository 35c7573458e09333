"""Records in readable form: cells of tables, headlines, facts, the comparison of two records.

The terminal and the page show the same cells.

Two records are compared only if they are of the same machine. Two results are compared only if
part, sizes, engine and variant are the same. Results in only one record are listed with the reason.
Times of other programs are compared, too, since they show whether the machine is as fast as before;
but only llmgpu's times can be `slower`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmgpu.bench import (
    BPE_TRAIN,
    DEFAULT_THRESHOLD,
    EMBEDDING,
    GENERATE,
    IDEAS,
    KERNELS,
    TOKENIZE,
    TRAIN,
)
from llmgpu.bench.results import (
    HOST_ENGINES,
    Record,
    Result,
    ResultTable,
    Times,
    quantity,
    runs_text,
    seconds_text,
    spread_text,
    three_digits,
)
from llmgpu.charts import NOTHING, Column
from llmgpu.input_files import number_of


@dataclass(frozen=True)
class Measure:
    """A number of a result.

    key: the field of a result. title: the title of a column. unit: the unit after the number; "%"
    for a share, "x" for a ratio, "" if the title names the unit. scale: factor from the field's
    unit to `unit`.
    """

    key: str
    title: str
    unit: str
    scale: float = 1.0

    def of(self, result: Result) -> float | None:
        """Return the number in a result; None if the result lacks it."""
        number: float | None = getattr(result, self.key)
        return number

    def full_text(self, result: Result) -> str:
        """Return the number in a result with the unit, or with a title that names the unit."""
        return self.text(result) if self.unit else f"{self.text(result)} {self.title}"

    def text(self, result: Result) -> str:
        """Return the number in a result as text; "-" if the result lacks it."""
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
    OUTPUT_RATE := Measure("output_bytes_per_second", "output", "B/s"),
    OPERATION_RATE := Measure("operations_per_second", "arithmetic", "FLOP/s"),
    SHARE_OF_COPY := Measure("share_of_copy", "of copy", "%"),
    SHARE_OF_FLOOR := Measure("share_of_floor", "of limit", "%"),
    SPEED_UP := Measure("speed_up", "vs NumPy", "x"),
    SPEED_UP_OVER_TORCH := Measure("speed_up_over_torch", "vs torch", "x"),
)
_LEAST_SECONDS = 1e-9  # least divisor of a ratio, against division by 0; no clock is finer
HALF_RANGE = "±%"  # column of `_half_range`, where a terminal has no room for "min-max"
HEADLINED = (BPE_TRAIN, TOKENIZE, TRAIN)
RATES = (TEXT_RATE, BYTE_RATE, TOKEN_RATE)  # rates for the chart of a job, preferred ones first
# The measures that a terminal shows, for parts whose measures do not all fit.
NARROW = {
    EMBEDDING: (
        BYTE_RATE,
        replace(OUTPUT_RATE, title="out B/s", unit=""),
        SPEED_UP,
        SPEED_UP_OVER_TORCH,
    ),
    KERNELS: (
        BYTE_RATE,
        replace(OPERATION_RATE, title="FLOP/s", unit=""),
        SHARE_OF_FLOOR,
        SPEED_UP,
    ),
    IDEAS: (BYTE_RATE, SHARE_OF_COPY),
    TRAIN: (TOKEN_RATE, SHARE_OF_FLOOR, SPEED_UP, SPEED_UP_OVER_TORCH),
    GENERATE: (TOKEN_RATE, SHARE_OF_FLOOR, SPEED_UP),
}


def columns_of(table: ResultTable, *, narrow: bool = False) -> list[Column]:
    """Return the columns of a table; narrow: leave out columns for which a terminal has no room."""
    results, times = table.results, [result.seconds for result in table.results]

    def numbers(title: str, cells: Sequence[str]) -> Column:
        return Column(title, "number", cells)

    first = "kernel" if table.what == KERNELS else "engine"
    columns = [
        Column(first, "name", [*map(table.row_name, results)]),
        numbers("median", [seconds_text(t.median) if t else NOTHING for t in times]),
    ]
    if narrow and table.what in NARROW:
        columns.append(numbers(HALF_RANGE, [_half_range(t) if t else NOTHING for t in times]))
    else:
        spreads = [spread_text(t.median, t.min, t.max) if t else NOTHING for t in times]
        columns.append(numbers("min-max", spreads))
    for measure in NARROW.get(table.what, MEASURES) if narrow else MEASURES:
        if any(measure.of(result) is not None for result in results):
            columns.append(numbers(measure.title, [*map(measure.text, results)]))
    # Tokenizing is also compared with the fastest peer.
    if table.what == TOKENIZE:
        if not narrow:
            tokens = [f"{result.tokens:,}" if result.tokens else NOTHING for result in results]
            columns.append(numbers("tokens", tokens))
        rates = [result.mb_per_second or 0 for result in results]
        fastest = max((r.mb_per_second or 0 for r in results if r.peer), default=0)
        ratios = [f"{rate / fastest:.2f}x" if rate and fastest else NOTHING for rate in rates]
        columns.append(numbers("vs peers", ratios))
    # The column "answer" tells whether each result is right. A line below the table names the
    # engine or program whose results are the reference.
    return [*columns, Column("answer", "", [result.verdict for result in results])]


def _half_range(times: Times) -> str:
    """Return half the difference of the slowest and the fastest run, in percent of the median."""
    return f"{50 * (times.max - times.min) / max(times.median, _LEAST_SECONDS):.0f}"


def runs_line(table: ResultTable, *, narrow: bool = False) -> str:
    """Return a line with the number of runs behind the medians of a table; "" if unknown.

    narrow: also explain the column `HALF_RANGE` of a narrow table.
    """
    counts = {len(result.seconds.runs) for result in table.results if result.seconds}
    if not counts or 0 in counts:
        return ""
    least, most = min(counts), max(counts)
    line = number_of(least, "run") if least == most else f"{least} to {most} runs"
    has_column = narrow and table.what in NARROW
    return f"{line}; {HALF_RANGE}: half of their range" if has_column else line


def headlines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield a line for each part: llmgpu's speed relative to the fastest other program's.

    Next to the ratio are the runs of both programs and their spread. A --quick run has one line
    without a ratio instead. If another program was faster, the line says so. Jobs grow from the
    first to the last, and the line is about the last job that another program did, too. Without
    another program, an adapter is compared with the CPU. Greedy matching is left out, because no
    other program supports it.
    """
    if record.smoke is not None:
        yield "smoke test", f"{record.smoke}; the times are too few for a comparison"
        return
    # For each part, `told` has its line, and whether the line compares with another program.
    told: dict[str, tuple[bool, str]] = {}
    for table in record.tables():
        timed = [
            r
            for r in table.results
            if r.seconds and r.correct is not False and "greedy" not in r.variant
        ]
        # Choose the fastest result of llmgpu, and the fastest of other programs or of the CPU.
        own = [r for r in timed if not r.peer]
        peers = [r for r in timed if r.peer]
        others = peers or [r for r in own if r.engine in HOST_ENGINES]
        if table.what not in HEADLINED or not (own and others):
            continue
        best, other = (min(each, key=lambda r: r.median) for each in (own, others))
        if best is other or (told.get(table.what, (False, ""))[0] and not peers):
            continue
        # Write the line: the faster of the two comes first.
        fast, slow = (best, other) if best.median <= other.median else (other, best)
        role = ", the fastest other program" if peers else ""
        name = f"{other.engine}{role}"
        names = (best.engine, name) if fast is best else (name + role[:1], best.engine)
        ratio = three_digits(slow.median / max(fast.median, _LEAST_SECONDS))
        runs = [runs_text(each.seconds) for each in (fast, slow) if each.seconds]
        line = f"{names[0]} is {ratio} times as fast as {names[1]} ({' against '.join(runs)})"
        told[table.what] = bool(peers), line
    yield from ((what, line) for what, (_, line) in told.items())


def common_rate(results: Sequence[Result]) -> Measure | None:
    """Return a rate that all results with times have; None if there is none.

    Returns the rate of arithmetic if one of the results is limited by arithmetic instead of memory.
    """
    timed = [result for result in results if result.seconds is not None]
    # Where memory is the limit, both shares are equal except for rounding. So a larger share of the
    # floor means that arithmetic is the limit.
    bound_by_arithmetic = any(
        None not in (r.share_of_copy, r.share_of_floor)
        and (r.share_of_floor or 0) > 1.01 * (r.share_of_copy or 0)
        for r in timed
    )
    for rate in (OPERATION_RATE, *RATES) if bound_by_arithmetic else RATES:
        if timed and all(rate.of(result) is not None for result in timed):
            return rate
    return None


def facts_of(record: Record) -> Iterator[tuple[str, str]]:
    """Yield names and values: machine, adapters, software, text and vocabulary."""
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
    """Yield the names "start-up" and "phases" with their times, if there are times."""
    phases = {name: times.median for name, times in result.phases.items()}
    for name, spent in (("start-up", result.start_up), ("phases", phases)):
        text = ", ".join(f"{part} {seconds_text(s)}" for part, s in spent.items() if s)
        if text:
            yield name, text


# Comparing two records

_VERSIONS = ("llmgpu", "commit", "python", "numpy", "wgpu")
_MACHINE = {"platform": "platform", "cpu": "CPU", "cpus": "number of CPUs"}
_Key = tuple[str, str, str, str]  # part, sizes, engine, variant


@dataclass(frozen=True)
class Change:
    """Two results of the same job, engine and variant, both with times."""

    old: Result
    new: Result

    @property
    def relative(self) -> float:
        """Slowdown relative to the old time: 0.25 if a quarter longer, negative if shorter."""
        return self.new.median / self.old.median - 1


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two records.

    changes: in the order of the new record. not_compared: lines on results that are not compared,
    with the reasons. notes: lines on other differences between the records. threshold: largest
    accepted `Change.relative`.
    """

    changes: list[Change]
    not_compared: list[str]
    notes: list[str]
    threshold: float

    def is_slower(self, change: Change) -> bool:
        """Whether a time of llmgpu has grown by more than the threshold."""
        return not change.new.peer and change.relative > self.threshold

    @property
    def slower(self) -> list[Change]:
        """The changes for which `is_slower` is true, the largest first."""
        return sorted(filter(self.is_slower, self.changes), key=lambda change: -change.relative)

    def columns(self) -> list[Column]:
        """Return the changes as a table."""
        old, new = ([getattr(c, name) for c in self.changes] for name in ("old", "new"))
        said = [f"{100 * c.relative:+.1f} %{' SLOWER' * self.is_slower(c)}" for c in self.changes]
        return [
            Column("part", "", [result.what for result in new]),
            Column("job", "", [result.sizes for result in new]),
            Column("engine", "", [f"{r.name}{' (peer)' * r.peer}" for r in new]),
            Column("then", "number", [seconds_text(result.median) for result in old]),
            Column("now", "number", [seconds_text(result.median) for result in new]),
            Column("change", "number", said),
        ]


def compare_records(old: Record, new: Record, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Compare two records, see the head of this module."""
    machines = [
        f"another machine: its {_MACHINE[name]} was {before}, here it is {now}"
        for name, before, now in _differences(old, new, _MACHINE)
    ]
    if machines:
        return Comparison([], machines, [], threshold)
    # A line for each part that only one record has.
    before, now = _by_key(old), _by_key(new)
    parts_before, parts_now = (dict.fromkeys(key[0] for key in each) for each in (before, now))
    alone = [(part, "new") for part in parts_now if part not in parts_before]
    alone += [(part, "old") for part in parts_before if part not in parts_now]
    not_compared = [f"{part}: only the {which} record has it" for part, which in alone]
    # Parts in both records: a change, or the reason why results can't be compared.
    changes = []
    for key, result in now.items():
        if key[0] not in parts_before:
            continue
        reason = _why_not(key, result, old, new, before)
        if reason is not None:
            not_compared.append(f"{result.what}: {result.name}, {result.sizes}: {reason}")
        elif result.seconds is not None:
            changes.append(Change(before[key], result))
    # Results of the old record that the new record lacks at all sizes.
    for key, result in before.items():
        is_lost = key[0] in parts_now and key not in now and result.seconds is not None
        if is_lost and _other_sizes(key, now) is None:
            line = f"{result.what}: {result.name}, {result.sizes}"
            not_compared.append(f"{line}: only the old record has it")
    return Comparison(changes, not_compared, list(_notes(old, new)), threshold)


def _by_key(record: Record) -> dict[_Key, Result]:
    results: dict[_Key, Result] = {}
    for result in record.results:
        results.setdefault((result.what, result.sizes, result.engine, result.variant), result)
    return results


def _why_not(
    key: _Key, result: Result, old: Record, new: Record, old_results: dict[_Key, Result]
) -> str | None:
    """Return why a new result is not compared; None if it is compared or has no times."""
    before = old_results.get(key)
    if before is None:
        sizes = _other_sizes(key, old_results)
        if sizes is not None:
            return f"the sizes differ: they were {sizes}"
        return "only the new record has it" if result.seconds is not None else None
    if result.seconds is not None and before.seconds is None:
        return "the old record has no time for it"
    if before.seconds is not None and result.seconds is None:
        return f"no time now: {result.note or result.answer or 'unknown why'}"
    digests = {record.text and record.text.sha256 for record in (old, new)}
    if result.text_bytes is not None and len(digests) > 1:
        return "the text differs"
    if result.what == TOKENIZE and old.vocabulary != new.vocabulary:
        return "the vocabulary differs"
    return None


def _other_sizes(key: _Key, results: dict[_Key, Result]) -> str | None:
    """Return the sizes of a result whose key differs from `key` only in the sizes, or None."""
    what, _, engine, variant = key
    same = (k[1] for k in results if (k[0], k[2], k[3]) == (what, engine, variant))
    return next(same, None)


def _differences(old: Record, new: Record, names: Iterable[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names of fields in which two records' machines differ, with both values."""
    for name in names:
        before, now = (getattr(record.machine, name) for record in (old, new))
        if before != now:
            yield name, before, now


def _notes(old: Record, new: Record) -> Iterator[str]:
    """Yield lines on versions, drivers and interruptions, which may explain changes."""
    for name, before, now in _differences(old, new, _VERSIONS):
        yield f"{name}: {before} then, {now} now"
    drivers = {adapter.name: adapter.driver for adapter in old.machine.adapters}
    for adapter in new.machine.adapters:
        driver = drivers.get(adapter.name, adapter.driver)
        if driver != adapter.driver:
            yield f"driver of {adapter.name}: {driver} then, {adapter.driver} now"
    for record, when in ((old, "old"), (new, "new")):
        if not record.complete:
            yield f"the {when} record was interrupted, so it doesn't have everything"
