"""Reports of progress during long work, by a callback of the library's caller.

The library itself never prints. The caller decides how to show progress.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A callback that receives the name of a phase, the amount done and the total.

    The total is None if unknown.
    """

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Show or record the progress of a phase."""


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignore progress. This function is the default of arguments named `progress`."""
