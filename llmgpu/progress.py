"""Reports of progress: a callback that the library calls now and then during long work.

The library never prints. Its caller decides how to show progress.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A callback for the name of a phase, the amount done and the total (None: unknown)."""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Show or record the progress of a phase."""


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignore progress: the default of arguments named `progress`."""
