"""Records in readable form: cells of tables, headlines, facts; the page; comparing two records.

The terminal and the page, which is HTML with tables, bars and rooflines, show the same cells.

Two records are compared only if they are of the same machine. Two results are compared only if
part, sizes, engine and variant are the same. Results in only one record are listed with the reason.
Times of other programs are compared, too, since they show whether the machine is as fast as before;
but only llmgpu's times can be `slower`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

from llmgpu.bench import (
    BPE_TRAIN,
    DEFAULT_THRESHOLD,
    EMBEDDING,
    GENERATE,
    IDEAS,
    KERNELS,
    STARTUP,
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
from llmgpu.charts import (
    NOTHING,
    Bar,
    Column,
    Dot,
    draw_bars,
    draw_facts,
    draw_page,
    draw_roofline,
    draw_table,
    escape_text,
    folded,
)
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


def lines_below(table: ResultTable, *, narrow: bool = False) -> Iterator[tuple[str, str]]:
    """Yield names and texts of lines below a table: the runs, if known, and `ResultTable.answers`.

    narrow: also explain the column `HALF_RANGE` of a narrow table.
    """
    counts = {len(result.seconds.runs) for result in table.results if result.seconds}
    if counts and 0 not in counts:
        least, most = min(counts), max(counts)
        line = number_of(least, "run") if least == most else f"{least} to {most} runs"
        has_column = narrow and table.what in NARROW
        yield "median of", f"{line}; {HALF_RANGE}: half of their range" if has_column else line
    if table.answers:
        yield "answers", table.answers


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


# The page

MOST_KERNELS = 12  # bars of kernels in a chart; all other kernels share one more bar
_SOFTWARE = "software adapter"  # kind of an adapter
_PARTS: dict[str, tuple[str, ...]] = {
    BPE_TRAIN: (
        "Training tokenizers",
        "From a text file in the page cache to a vocabulary file. The merges are compared with "
        "those of the CPU first.",
    ),
    TOKENIZE: (
        "Tokenizing",
        "From a text file in the page cache to a file of ids. The ids are compared with those "
        "of the CPU first.",
    ),
    EMBEDDING: (
        "Embedding",
        "Looking up rows of a table by tokens, and adding gradients to them. Rows and gradients "
        "are compared with NumPy's first.",
    ),
    KERNELS: (
        "Kernels of a language model",
        "One operation at a time. The outputs are compared first. The limit is what the measured "
        "bandwidth or the measured arithmetic allows; small sizes, which fit into caches, may be "
        "faster than memory.",
    ),
    TRAIN: (
        "Training a language model",
        "Whole steps: forward, backward, optimizer. The losses are compared first.",
    ),
    GENERATE: (
        "Generating",
        "The likeliest ids after prompts, one sequence alone and many together. The ids of a tiny "
        "model are compared first. The limit is reading all weights once for each step.",
    ),
    STARTUP: ("Starting", "Whole commands with little to do, each a process of its own."),
    IDEAS: (
        "What each idea is worth",
        "Ideas of the kernels, each switched off alone. The first way of an idea is the product's. "
        "The answers of all ways are compared with the CPU's first.",
    ),
}


def draw_report(record: Record) -> str:
    """Return the page of a record."""
    tables = record.tables()
    parts = list(dict.fromkeys(table.what for table in tables))
    lines = [*_head(record)]
    if len(parts) > 1:
        links = [f'<a href="#{escape_text(what)}">{_about(what)[0]}</a>' for what in parts]
        lines.append(f"<nav>{''.join(links)}</nav>")
    for what in parts:
        lines += _part(what, [table for table in tables if table.what == what], record)
    return draw_page("llmgpu bench", f"llmgpu bench: {record.machine.cpu}", lines)


def _head(record: Record) -> Iterator[str]:
    """Yield the lines at the top of the page: warnings, headlines and facts."""
    if not record.complete:
        yield '<p class="warning">Interrupted: these are the results so far.</p>'
    if not record.is_correct:
        yield '<p class="warning">An engine gave a wrong answer; see the results.</p>'
    for what, text in headlines(record):
        yield f'<p class="headline"><b>{_about(what)[0]}</b>: {escape_text(text)}.</p>'
    facts = [("measured", record.measured)] if record.measured is not None else []
    facts += facts_of(record)
    for name, limits in record.limits.items():
        bandwidth = quantity(limits.bytes_per_second, "B/s")
        rate = quantity(limits.operations_per_second, "FLOP/s")
        text = f"{name}: {bandwidth} copying, {rate} in float32"
        if limits.matrix_operations_per_second is not None:
            text += f", {quantity(limits.matrix_operations_per_second, 'FLOP/s')} on matrix units"
        facts.append(("limits", f"{text}, measured"))
    facts += [("not compared with", f"{k}: {why}") for k, why in record.missing_peers.items()]
    yield from draw_facts(facts)


def _about(what: str) -> list[str]:
    """Return the title of a part of the benchmark, then its introduction if there is one."""
    return [escape_text(text) for text in _PARTS.get(what, (what,))]


def _part(what: str, tables: Sequence[ResultTable], record: Record) -> list[str]:
    title, *introduction = _about(what)
    lines = [f'<h2 id="{escape_text(what)}">{title}</h2>']
    lines += [f"<p>{text}</p>" for text in introduction]
    if what == KERNELS:
        lines += _next_to_peers(tables)
    software = {a.name for a in record.machine.adapters if a.kind == _SOFTWARE}
    for table in tables:
        lines.append(f"<h3>{escape_text(table.title)}</h3>")
        drawn = _table(table, record, software)
        is_folded = what == KERNELS and table.title in software
        lines += folded("Of a software adapter", drawn) if is_folded else drawn
    return lines


def _table(table: ResultTable, record: Record, software: Set[str]) -> list[str]:
    """Return charts, a table and details; software: the names of software adapters."""
    is_kernels = table.what == KERNELS
    lines = _engine_charts(table, record) if is_kernels else result_bars(table)
    lines += draw_table(columns_of(table), [result.correct is False for result in table.results])
    for name, text in lines_below(table):
        lines.append(f'<p class="small">{name}: {escape_text(text)}</p>')
    for result in table.results:
        is_software = result.engine.removeprefix("recount on ") in software
        lines += _details(result, is_open=not (is_kernels or is_software))
    return lines


def _next_to_peers(tables: Sequence[ResultTable]) -> list[str]:
    """Return a chart for each kernel whose work was also measured in another program."""
    kernels: dict[str, dict[str, Result]] = {}
    for table in tables:
        for result in table.results:
            by_engine = kernels.setdefault(table.row_name(result), {})
            by_engine.setdefault(result.engine, replace(result, variant=""))
    lines: list[str] = []
    for title, by_engine in kernels.items():
        results = [result for result in by_engine.values() if result.seconds is not None]
        if any(result.peer for result in results):
            lines.append(f"<h4>{escape_text(title)}</h4>")
            lines += result_bars(ResultTable(KERNELS, title, results))
    return ["<h3>Next to other programs</h3>", *lines] if lines else []


def _engine_charts(table: ResultTable, record: Record) -> list[str]:
    """Return the roofline of an engine whose limits are known, and a chart of shares of limits."""
    limits = record.limits.get(table.title)
    dots = {k: dot for k, result in enumerate(table.results) if (dot := dot_of(result))}
    if limits is None or not dots:
        return share_bars(table)
    results = [table.results[k] for k in dots]
    columns = [
        Column("number", "number", [str(k) for k in range(1, len(dots) + 1)]),
        Column("kernel", "name", [*map(table.row_name, results)]),
        Column("FLOP per byte", "number", [three_digits(across) for across, _ in dots.values()]),
        Column("reached", "number", [*map(OPERATION_RATE.text, results)]),
    ]
    bandwidth, rates = limits.bytes_per_second, [limits.operations_per_second]
    measured = (
        f"copies move {quantity(bandwidth, 'B/s')}, multiply-adds do {quantity(rates[0], 'FLOP/s')}"
    )
    if limits.matrix_operations_per_second is not None:
        rates.append(limits.matrix_operations_per_second)
        measured += f", matrix units {quantity(rates[1], 'FLOP/s')}"
    title = f"Roofline of {table.title}"
    roofline = draw_roofline([*dots.values()], bandwidth, rates, title, f"{title}; {measured}")
    return [*roofline, *folded("What the numbers are", draw_table(columns)), *share_bars(table)]


def _details(result: Result, *, is_open: bool) -> list[str]:
    """Return a folded section: a chart of the time in kernels, then start-up and phases.

    is_open: unfold the section if it has a chart.
    """
    kernels, chart = result.kernels, []
    if kernels is not None and len(kernels.seconds) > 1:
        longest = sorted(kernels.seconds.items(), key=lambda item: -item[1])
        shown, others = longest[:MOST_KERNELS], longest[MOST_KERNELS:]
        if others:
            shown.append((f"{len(others)} others", sum(spent for _, spent in others)))
        total = sum(kernels.seconds.values()) or 1.0
        texts = [f"{seconds_text(spent)}, {100 * spent / total:.0f} %" for _, spent in shown]
        bars = [Bar(name, "time", text, s) for (name, s), text in zip(shown, texts, strict=True)]
        of = f"the first {kernels.merges:,} merges" if kernels.merges else "one run"
        chart = draw_bars(bars, f"time per kernel: {seconds_text(kernels.total)} for {of}")
    times = [f"<p>{escape_text(f'{name}: {text}')}</p>" for name, text in time_lines(result)]
    is_open = bool(chart) and is_open
    return folded(f"Where the time of {result.name} goes", [*chart, *times], is_open=is_open)


def result_bars(table: ResultTable) -> list[str]:
    """Return the chart of a job. It shows a rate that all results have, or else median times."""
    rate = common_rate(table.results)
    bars = []
    for result in table.results:
        number, value = None, result.note or result.answer or "not measured"
        if result.seconds is not None:
            number = rate.of(result) if rate else result.median
            value = rate.full_text(result) if rate else seconds_text(result.median)
        kind = "peer" if result.peer else "own"
        bars.append(Bar(result.engine, kind, value, number, result.kind_and_way[1]))
    if all(bar.number is None for bar in bars):
        return []
    if rate is None:
        return draw_bars(bars, "median time: less is better")
    return draw_bars(bars, f"{rate.title}{' per second' * bool(rate.unit)}: more is better")


def share_bars(table: ResultTable) -> list[str]:
    """Return the chart of kernels' speeds as shares of the engine's limits."""
    bars = [
        Bar(r.variant or "kernel", "own", SHARE_OF_FLOOR.text(r), r.share_of_floor, r.sizes)
        for r in table.results
        if r.share_of_floor is not None
    ]
    caption = "part of what bandwidth or arithmetic allows: more is better"
    return draw_bars(bars, caption, 1.0) if bars else []


def dot_of(result: Result) -> Dot | None:
    """Return the position of a result on a roofline; None without times, bytes or operations."""
    numbers = (result.bytes or 0, result.operations or 0, result.operations_per_second or 0)
    nbytes, operations, rate = numbers
    return (operations / nbytes, rate) if result.seconds and min(numbers) > 0 else None


# Comparing two records

_VERSIONS = ("llmgpu", "commit", "python", "numpy", "wgpu")
_MACHINE = {"platform": "platform", "cpu": "CPU", "cpus": "number of CPUs"}
_Key = tuple[str, str, str, str]  # part, sizes, engine, variant
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
    parts_of_records = [(key[0], "new") for key in now] + [(key[0], "old") for key in before]
    not_compared = [
        f"{part}: only the {which} record has it"
        for part, which in dict.fromkeys(parts_of_records)
        if part not in parts
    ]
    changes = []
    for key in now | before:
        result = now.get(key) or before[key]
        if result.what not in parts:
            continue
        reason = _why_not(key, before, now, old, new)
        if reason is not None:
            not_compared.append(f"{result.what}: {result.name}, {result.sizes}: {reason}")
        elif key in now and result.seconds is not None:
            changes.append(Change(before[key], result))
    return Comparison(changes, not_compared, notes, threshold)


def _by_key(record: Record) -> _Results:
    results: _Results = {}
    for result in record.results:
        results.setdefault((result.what, result.sizes, result.engine, result.variant), result)
    return results


def _why_not(key: _Key, before: _Results, now: _Results, old: Record, new: Record) -> str | None:
    """Return why the results of a key are not compared.

    None if they are compared, have no times, or have new sizes, of which the new key's line tells.
    """
    then, result = before.get(key), now.get(key)
    if then is None or result is None:
        others, which = (before, "new") if then is None else (now, "old")
        what, _, *own = key
        sizes = next((k[1] for k in others if [k[0], *k[2:]] == [what, *own]), None)
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
