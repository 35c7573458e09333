"""Records in readable form: columns of tables, headlines, facts; the page; comparing two records.

The terminal and the page, which is HTML with bars and rooflines, show the same facts, columns and
lines. A narrow terminal leaves out columns.

Two records are compared only if they are of the same machine. Two results are compared only if
part, sizes, engine and variant are the same. Results in only one record are listed with the reason.
Times of other programs are compared, too, since they show whether the machine is as fast as before;
but only llmgpu's times can be `slower`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmgpu.bench import BPE_TRAIN, DEFAULT_THRESHOLD, KERNELS, TEXT_PARTS, TOKENIZE, TRAIN
from llmgpu.bench.results import (
    HOST_ENGINES,
    KernelTimes,
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
from llmgpu.charts import (
    NOTHING,
    Column,
    draw_bars,
    draw_facts,
    draw_page,
    draw_roofline,
    draw_table,
    element,
    folded,
)
from llmgpu.input_files import number_of

HEADLINED = (BPE_TRAIN, TOKENIZE, TRAIN)


def _quotient(dividend: float, divisor: float) -> float:
    return dividend / max(divisor, 1e-9)  # no clock is finer


def _half_range(times: Times) -> str:
    """Return half the difference of the slowest and the fastest run, in percent of the median."""
    return f"{_quotient(50 * (times.max - times.min), times.median):.0f}"


def _percent(number: float) -> str:
    return f"{three_digits(100 * number)} %"


def _ratio(number: float) -> str:
    return f"{three_digits(number)}x"


_rate, _count = partial(quantity, unit="B/s"), partial(quantity, unit="")
# Columns of numbers by title: a field of results, and the function that writes its cells. A
# terminal that lacks room for all columns leaves out the last ones.
MEASURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "median": ("seconds", lambda times: seconds_text(times.median)),
    "±%": ("seconds", _half_range),
    "text": ("mb_per_second", lambda number: _rate(1e6 * number)),
    "merges/s": ("merges_per_second", _count),
    "vs NumPy": ("speed_up", _ratio),
    "vs torch": ("speed_up_over_torch", _ratio),
    "of limit": ("share_of_floor", _percent),
    "memory": ("bytes_per_second", _rate),
    "out B/s": ("output_bytes_per_second", _count),
    "tokens/s": ("tokens_per_second", _count),
    "FLOP/s": ("operations_per_second", _count),
    "of copy": ("share_of_copy", _percent),
    "FLOP/B": ("operations_per_byte", three_digits),
    "min-max": ("seconds", lambda times: spread_text(times.median, times.min, times.max)),
}
_TOKENS: tuple[str, Callable[[Any], str]] = ("tokens", "{:,}".format)


def columns_of(table: ResultTable) -> list[Column]:
    """Return the columns of a table."""
    results, measures = table.results, dict(MEASURES)
    # The speed is also compared with the fastest other program's.
    peers = [result.median for result in results if result.peer and result.seconds]
    if peers and table.what in (*TEXT_PARTS, KERNELS):
        fastest = min(peers)
        measures["vs peers"] = "seconds", lambda t: f"{_quotient(fastest, t.median):.2f}x"
    names = [*map(table.row_name, results)]
    if table.is_of_engine:  # the roofline has the numbers
        names = [f"{number}. {name}" for number, name in enumerate(names, 1)]
    columns = [
        Column("kernel" if table.is_of_engine else "engine", "name", names),
        # A line below the table names the engine or program whose results are the reference.
        Column("answer", "", [result.verdict for result in results]),
    ]
    for title, (field, text) in (measures | {"tokens": _TOKENS}).items():
        found = [getattr(result, field) for result in results]
        cells = [NOTHING if value is None else text(value) for value in found]
        numbers = [value if isinstance(value, int | float) else None for value in found]
        full = max([1.0 if text is _percent else 0.0, *filter(None, numbers)])
        bars = [None if number is None else _quotient(number, full) for number in numbers]
        if any(value is not None for value in found):
            columns.append(Column(title, "number", cells, bars))
    return columns


def lines_below(table: ResultTable) -> Iterator[tuple[str, str]]:
    """Yield names and texts of lines below a table.

    These are the number of runs, if known, `ResultTable.answers`, and for each result the seconds
    of its start-up, phases and kernels.
    """
    counts = {len(result.seconds.runs) for result in table.results if result.seconds}
    if counts and 0 not in counts:
        least, most = min(counts), max(counts)
        line = number_of(least, "run") if least == most else f"{least} to {most} runs"
        yield "median of", f"{line}; ±%: half of their range"
    if table.answers:
        yield "answers", table.answers
    for result in table.results:
        phases = {name: times.median for name, times in result.phases.items()}
        spent_in = {"start-up": result.start_up, "phases": phases}
        if kernels := kernels_of(result):
            spent_in[_kernels_title(kernels)] = kernels.seconds
        for name, spent in spent_in.items():
            text = ", ".join(f"{part} {seconds_text(s)}" for part, s in spent.items() if s)
            if text:
                yield f"{result.name}, {name}", text


def headlines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield a line for each part: llmgpu's speed relative to the fastest other program's.

    Next to the ratio are the runs of both programs and their spread. A --quick run has one line
    without a ratio instead. Jobs grow from the first to the last, and the line is about the last
    job that another program did, too. Without another program, an adapter is compared with the CPU.
    Greedy matching is left out, because no other program supports it.
    """
    if record.smoke is not None:
        yield "smoke test", f"{record.smoke}; the times are too few for a comparison"
        return
    told: dict[str, str] = {}
    # Tables with times of another program come last: their lines replace the lines of other tables.
    tables = sorted(record.tables(), key=lambda t: any(r.peer and r.seconds for r in t.results))
    for table in tables:
        timed = [r for r in table.results if r.seconds and r.correct is not False]
        # Choose the fastest result of llmgpu, and the fastest of other programs or of the CPU.
        own = [r for r in timed if not r.peer and "greedy" not in r.variant]
        peers = [r for r in timed if r.peer]
        others = peers or [r for r in own if r.engine in HOST_ENGINES]
        if not (own and others):
            continue
        best, other = (min(each, key=lambda r: r.median) for each in (own, others))
        role = ", the fastest other program" if peers else ""
        ratio = three_digits(_quotient(other.median, best.median))
        runs = " against ".join(runs_text(each.seconds) for each in (best, other) if each.seconds)
        faster = f"{best.engine} is {ratio} times as fast as {other.engine}{role}"
        if best is not other:
            told[table.what] = f"{faster} ({runs})"
    yield from ((what, told[what]) for what in HEADLINED if what in told)


def facts_of(record: Record) -> Iterator[tuple[str, str]]:
    """Yield names and values: headlines, machine, adapters, software, text, vocabulary, limits."""
    yield from headlines(record)
    if not record.complete:
        yield "interrupted", "these are the results so far"
    if not record.is_correct:
        yield "wrong", "an engine gave a wrong answer; see the results"
    machine = record.machine
    if record.measured is not None:
        yield "measured", record.measured
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
    for name, limits in record.limits.items():
        line = f"{name}: {_rate(limits.bytes_per_second)} copying"
        for rate, where in zip(limits.rates, ("in float32", "on matrix units"), strict=False):
            line += f", {quantity(rate, 'FLOP/s')} {where}"
        yield "limits", f"{line}, measured"
    for name, reason in record.missing_peers.items():
        yield "not compared with", f"{name}: {reason}"


def draw_report(record: Record) -> str:
    """Return the page of a record."""
    tables = record.tables()
    parts = dict.fromkeys(table.what for table in tables)
    links = (element("a", "", what, href=f"#{what}") for what in parts)
    lines = [*draw_facts([*facts_of(record)]), element("nav", inside="".join(links))]
    for what in parts:
        lines.append(element("h2", "", what, id=what))
        for table in tables:
            if table.what == what:
                lines += [element("h3", "", table.title), *_draw_table(table, record)]
    return draw_page("llmgpu bench", f"llmgpu bench: {record.machine.cpu}", lines)


def _draw_table(table: ResultTable, record: Record) -> list[str]:
    """Return the roofline of an engine whose limits are known; the table; the kernels' times."""
    lines, limits = [], record.limits.get(table.title)
    dots = {
        number: (result.operations_per_byte, result.operations_per_second)
        for number, result in enumerate(table.results, 1)
        if result.seconds and result.operations_per_byte and result.operations_per_second
    }
    if table.is_of_engine and limits and dots:
        title = f"Roofline of {table.title}"
        lines = [draw_roofline(dots, limits.bytes_per_second, limits.rates, title)]
    kinds = ["wrong" if r.correct is False else "peer" * r.peer for r in table.results]
    lines += [*draw_table(columns_of(table), kinds), *draw_facts([*lines_below(table)])]
    for result in table.results:
        if kernels := kernels_of(result):
            longest = sorted(kernels.seconds.items(), key=lambda item: -item[1])
            total = sum(kernels.seconds.values()) or 1.0
            rows = [(k, f"{seconds_text(s)}, {100 * s / total:.0f} %", s) for k, s in longest]
            bars = draw_bars(("kernel", "time"), rows)
            lines += folded(f"{result.name}, {_kernels_title(kernels)}", bars)
    return lines


def kernels_of(result: Result) -> KernelTimes | None:
    """Return the times of a result's kernels; None if there are less than two kernels."""
    return result.kernels if result.kernels and len(result.kernels.seconds) > 1 else None


def _kernels_title(kernels: KernelTimes) -> str:
    title = f"kernels, {seconds_text(kernels.total)}"
    if kernels.merges is not None:
        return f"{title} for the first {kernels.merges:,} merges"
    return f"{title}, {kernels.mb_per_second:.0f} MB/s" if kernels.mb_per_second else title


# Comparing two records

_VERSIONS = ("llmgpu", "commit", "python", "numpy", "wgpu")
_MACHINE = {"platform": "platform", "cpu": "CPU", "cpus": "number of CPUs"}
_Key = tuple[str, str, str, str]  # part, engine, variant, sizes
_Results = dict[_Key, Result]


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
    was, is_now = vars(old.machine), vars(new.machine)
    differing = [name for name in was if was[name] != is_now[name]]
    machines = [
        f"another machine: its {called} was {was[name]}, here it is {is_now[name]}"
        for name, called in _MACHINE.items()
        if name in differing
    ]
    if machines:
        return Comparison([], machines, [], threshold)
    # Versions, drivers and interruptions may explain changes.
    notes = [f"{k}: {was[k]} then, {is_now[k]} now" for k in _VERSIONS if k in differing]
    drivers = {adapter.name: adapter.driver for adapter in old.machine.adapters}
    for adapter in new.machine.adapters:
        driver = drivers.get(adapter.name, adapter.driver)
        if driver != adapter.driver:
            notes.append(f"driver of {adapter.name}: {driver} then, {adapter.driver} now")
    for record, when in ((old, "old"), (new, "new")):
        if not record.complete:
            notes.append(f"the {when} record was interrupted, so it doesn't have everything")
    # A line for each part that only one record has, and for each result that is not compared.
    before, now = _by_key(old), _by_key(new)
    parts = {key[0] for key in before} & {key[0] for key in now}
    changes, not_compared = [], dict[str, None]()
    for key in now | before:
        result, reason = now.get(key) or before[key], _why_not(key, before, now, old, new)
        name = f"{result.what}: {result.name}, {result.sizes}"
        if result.what not in parts:
            name, reason = result.what, f"only the {'new' if key in now else 'old'} record has it"
        if reason is not None:
            not_compared[f"{name}: {reason}"] = None
        elif key in now and result.seconds is not None:
            changes.append(Change(before[key], result))
    return Comparison(changes, [*not_compared], notes, threshold)


def _by_key(record: Record) -> _Results:
    return {(r.what, r.engine, r.variant, r.sizes): r for r in record.results}


def _why_not(key: _Key, before: _Results, now: _Results, old: Record, new: Record) -> str | None:
    """Return why the results of a key are not compared.

    None if they are compared, have no times, or have new sizes, of which the new key's line tells.
    """
    then, result = before.get(key), now.get(key)
    if then is None or result is None:
        others, which = (before, "new") if then is None else (now, "old")
        sizes = next((k[-1] for k in others if k[:-1] == key[:-1]), None)
        if sizes is not None:
            return f"the sizes differ: they were {sizes}" if which == "new" else None
        is_timed = (then or now[key]).seconds is not None
        return f"only the {which} record has it" if is_timed else None
    if result.seconds is not None and then.seconds is None:
        return "the old record has no time for it"
    if then.seconds is not None and result.seconds is None:
        return f"no time now: {result.note or result.answer or 'unknown why'}"
    digests = {record.text and record.text.sha256 for record in (old, new)}
    if result.text_bytes is not None and len(digests) > 1:
        return "the text differs"
    if result.what == TOKENIZE and old.vocabulary != new.vocabulary:
        return "the vocabulary differs"
    return None
