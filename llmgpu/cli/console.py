"""What people see while a command runs: one reporter on stderr.

On a terminal a bar for each phase; elsewhere a plain line now and then, so that log files stay
readable. Nothing with --quiet.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 5.0  # between plain progress lines


class Reporter:
    """Prints lines and progress on stderr; a `llmgpu.progress.Progress` when called."""

    def __init__(self, *, quiet: bool) -> None:
        """Report nothing at all if `quiet`."""
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._phase, self._started, self._printed = "", 0.0, 0.0

    def line(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        if not self._quiet:
            self._console.print(text, markup=False)

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Show how far a phase is."""
        if self._quiet:
            return
        if self._console.is_terminal:
            self._update_bar(phase, done, total)
        else:
            self._print_now_and_then(phase, done, total)

    def close(self) -> None:
        """Take the bars away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._tasks.clear()

    def _update_bar(self, phase: str, done: int, total: int | None) -> None:
        if self._bars is None:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total)
        self._bars.update(self._tasks[phase], completed=done, total=total)

    def _print_now_and_then(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._started, self._printed = phase, now, now
        if now - self._printed < LINE_SECONDS:
            return
        self._printed = now
        text = f"{phase}: {done:,}"
        if total:
            left = (now - self._started) * (total - done) / max(done, 1)
            text += f" of {total:,} ({done / total:.0%}), about {left:.0f} s left"
        self.line(text)


def print_json(summary: dict[str, Any], *, to_stderr: bool) -> None:
    """Print a command's summary as one line of JSON."""
    click.echo(json.dumps(summary, ensure_ascii=False), err=to_stderr)


def human_bytes(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
