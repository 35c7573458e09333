"""How the library reports progress: one callback, called now and then during long work.

The library never prints; the caller of the library decides how to show progress.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the name of a phase, the amount done and the total (None: unknown)."""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Show or record the progress of a phase."""


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignore progress: the default wherever a callback is taken."""
