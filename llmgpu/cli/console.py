"""Output of a command: progress and notes on stderr, results on stdout.

A terminal shows a bar for each phase, unless data is printed on the same terminal. Elsewhere a
plain line is printed every LINE_SECONDS, so that log files stay readable. With --log-format json
every line is a JSON object. With --quiet no progress and no notes are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from llmgpu.cli.interrupts import held_back
from llmgpu.closing import Closing
from llmgpu.errors import OutputError
from llmgpu.files import STANDARD_OUTPUT
from llmgpu.input_files import number_of, printable
from llmgpu.machine import Growth, Memory, free_memory

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from llmgpu.backend import Backend
    from llmgpu.text.corpus import Corpus
    from llmgpu.tokens.ids import Style

# smallest width, in characters, of a number and of a name in tables
_LEAST_COLUMN, _LEAST_NAME = 8, 20
_LITTLE = 10  # an estimate below 1 / _LITTLE of the free memory is not reported
LINE_SECONDS = 5.0  # time between two progress lines when there is no bar
_WIDEST_TEXT = 64  # width, in columns, of a phase's name and `progress_text`
LEFT_OUT = {
    "left_out_files": ("hidden or special file", "skipped"),
    "left_out_rows": ("row", "without text skipped"),
}
# Phases whose amounts are bytes. All other phases count items.
BYTE_PHASES = frozenset({"counting words", "reading", "tokenizing"})


class Reporter(Closing):
    """Prints lines and progress on stderr, and the summary. A reporter is also a `Progress`.

    The end of a `with` block removes the bars.

    quiet, as_json, log_format: the options --quiet, --json and --log-format. shows_progress:
    whether progress is shown.
    """

    def __init__(self, *, quiet: bool, as_json: bool = False, log_format: str = "text") -> None:
        """Store the options; bars appear at the first report of progress."""
        self.quiet, self.as_json, self.log_format = quiet, as_json, log_format
        self.shows_progress = not quiet
        # Only a terminal needs rich, and a dumb terminal can't redraw a bar.
        has_terminal = bool(os.environ.get("FORCE_COLOR")) or is_terminal(sys.stderr)
        can_redraw = has_terminal and os.environ.get("TERM") != "dumb"
        self._can_have_bars = can_redraw and log_format == "text"
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        # By phase: the time of the first report, and the amount done by then.
        self._started: dict[str, tuple[float, int]] = {}
        self._printed = 0.0  # time of the last progress line
        self._covered = 0  # estimates of up to so many bytes are not reported again
        self.growth = Growth()  # of memory, since before the job begins
        self.needed_bytes = 0  # bytes of memory in the latest estimate

    @property
    def has_bars(self) -> bool:
        """Whether progress is shown as bars on a terminal."""
        return self.shows_progress and self._can_have_bars

    def need_memory(self, memory: Memory, *, is_small: bool = False) -> None:
        """Report the most memory that the process needs, unless an earlier report named as much.

        memory: the estimate for the job. The memory that the process had before the job is added.
        If the sum is less than a tenth of the free memory, nothing is reported.

        is_small: whether the job is too small for a report. Only `needed_bytes` is then set.
        """
        begin, used = self.growth.begin or 0, self.growth.measure() or 0
        self.needed_bytes = needed = max(begin + memory.host, used)
        if is_small or needed <= self._covered:
            return
        self._covered, free = needed, free_memory()
        if free is not None and needed < free // _LITTLE:
            return
        # plus 10 %, so that a slightly larger need is not reported again
        self._covered += needed // 10
        on_device = f", {human_bytes(memory.device)} on the device" if memory.device else ""
        about = ""
        if memory.likely is not None:
            likely = max(begin + memory.likely, used)
            about = f"about {human_bytes(likely)}, "
        self.line(f"needs {about}at most {human_bytes(self._covered)} of memory{on_device}")
        if free is not None and needed > free:
            self.line(f"note: only {human_bytes(free)} of memory are free: use less text (--limit)")

    def line(self, text: str, **facts: Any) -> None:
        """Print a line, above the bars if bars are shown; facts: further fields of a JSON line."""
        if self.quiet:
            return
        if self.log_format == "json":
            text = json.dumps({"message": text, **facts}, ensure_ascii=False)
        text = printable(text)
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def note(self, *texts: str) -> None:
        """Print notes about the input or the output."""
        for text in texts:
            self.line(f"note: {text}")

    def note_missing_engine(self, backend: Backend) -> None:
        """Print a note if NumPy computes because the CPU engine is missing."""
        from llmgpu.cpu.library import why_missing  # imports NumPy, which is slow

        if backend.device is None and (reason := why_missing()):
            self.note(f"NumPy replaces the CPU engine, which is up to 14 times faster: {reason}")

    def note_left_out(self, summary: dict[str, Any]) -> None:
        """Print a summary's notes, and how much text was left out."""
        for name, (what, fate) in LEFT_OUT.items():
            if summary[name]:
                self.note(f"{number_of(summary[name], what)} {fate}")
        self.note(*summary.get("notes", ()))

    def summarize(self, summary: dict[str, Any], *, to_stderr: bool = False) -> None:
        """Print a summary, or a row of a list, as a line of JSON; without --json, print nothing.

        to_stderr: whether standard output carries data. Raises OutputError if standard output is
        closed.
        """
        if not self.as_json:
            return
        # `printable` writes control characters as escapes that are valid in JSON.
        text = printable(json.dumps(summary, ensure_ascii=False))
        if to_stderr:
            click.echo(text, err=True)
        else:
            print_result(text)

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Show the progress of a phase, its speed and the time left.

        The speed is measured from the first report of the phase, because a resumed job starts in
        the middle.
        """
        if not self.shows_progress:
            return
        now = time.monotonic()
        if phase not in self._started:
            self._started[phase] = now, done
            self._printed = now
        started, first = self._started[phase]
        seconds = now - started
        rate = (done - first) / seconds if seconds > 0 else 0.0
        if self.has_bars:
            self._update_bar(phase, done, total, rate)
        elif now - self._printed >= LINE_SECONDS:
            self._printed = now
            facts = {"phase": phase, "done": done, "total": total, "seconds": round(seconds, 3)}
            text = f"{phase} {progress_text(phase, done, total, rate)}"
            self.line(text, **facts, per_second=round(rate, 3) or None)

    def close(self) -> None:
        if self._bars is not None:
            with held_back():
                self._bars.stop()
                self._bars = None
                self._tasks.clear()

    def _update_bar(self, phase: str, done: int, total: int | None, rate: float) -> None:
        if self._bars is None:
            bars = _make_bars()
            with held_back():  # a signal between the steps would leave bars that can't be stopped
                bars.start()
                self._bars = bars
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total, text="")
        is_narrow = self._bars.console.width < _WIDEST_TEXT
        text = progress_text(phase, done, total, rate, is_narrow=is_narrow)
        self._bars.update(self._tasks[phase], completed=done, total=total, text=text)


def _make_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
    return Progress(*columns, console=Console(stderr=True), transient=True)


def progress_text(
    phase: str, done: int, total: int | None, rate: float, *, is_narrow: bool = False
) -> str:
    """Return the progress of a phase as text: "1.2 GB of 3.4 GB, 410.0 MB/s, 5 s left".

    rate: amount per second. is_narrow: return a text for 40 columns: "35 %, 5 s left".
    """
    show = human_bytes if phase in BYTE_PHASES else human_count
    left = f", {human_time((total - done) / rate)} left" if total and rate > 0 else ""
    if total and is_narrow:
        return f"{done / total:.0%}{left}"
    text = show(done) if total is None else f"{show(done)} of {show(total)}"
    return text if rate <= 0 else f"{text}, {show(rate)}/s{left}"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; `stream` is None for a closed stream."""
    return stream is not None and stream.isatty()


def token_style(output: str) -> Style:
    """Return a style for tokens: colours or borders on a terminal, else one token per line.

    With FORCE_COLOR, colours are used without a terminal, too. With NO_COLOR, or on a dumb terminal
    without FORCE_COLOR, no colours are used.
    """
    is_shown = is_terminal(sys.stdout)
    can_colour = is_shown and os.environ.get("TERM") != "dumb"
    has_colours = not os.environ.get("NO_COLOR") and (can_colour or os.environ.get("FORCE_COLOR"))
    if output != STANDARD_OUTPUT or not (is_shown or has_colours):
        return "lines"
    return "colours" if has_colours else "borders"


def left_out_of(text: Corpus | None) -> dict[str, Any]:
    """Return how much of a corpus's text was invalid or left out, for a summary."""
    notes = text.notes if text else []
    return {
        "invalid_sequences": text.policy.invalid_sequences if text else 0,
        "left_out_files": text.sources.left_out if text else 0,
        "left_out_rows": text.policy.null_rows if text else 0,
        "bad_rows": text.policy.bad_rows if text else 0,
        **({"notes": notes} if notes else {}),
    }


def print_result(text: object, *, end: str = "\n") -> None:
    """Print a command's result; OutputError if standard output is closed."""
    if sys.stdout is None:
        raise OutputError("can't write to standard output: it is closed")
    click.echo(f"{text}{end}", nl=False)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[int | str]]) -> None:
    """Print a table: columns of numbers, then a column of names.

    On a terminal, numbers have thousands separators, and only the end of a long name is shown.
    """
    is_shown = is_terminal(sys.stdout)
    number = "{:,}" if is_shown else "{}"
    lines = [
        [number.format(cell) if isinstance(cell, int) else printable(cell) for cell in row]
        for row in (heads, *rows)
    ]
    widths = [max(_LEAST_COLUMN, *map(len, column)) for column in zip(*lines, strict=True)][:-1]
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    most = max(room, _LEAST_NAME) if is_shown else sys.maxsize
    for *numbers, name in lines:
        if len(name) > most:
            name = f"…{name[1 - most :]}"
        cells = (cell.rjust(width) for cell, width in zip(numbers, widths, strict=True))
        print_result("  ".join([*cells, name]).rstrip())


def human_bytes(count: float) -> str:
    """Format a number of bytes in powers of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_count(count: float) -> str:
    """Format a count with thousands separators."""
    return f"{count:,.0f}"


def human_time(seconds: float) -> str:
    """Format a duration: 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
