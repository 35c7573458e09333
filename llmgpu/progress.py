"""How the library reports progress: one callback, called now and then during long work.

The library never prints; its caller decides what to do with these calls.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with a phase's name, how much is done and how much there is (None: unknown)."""

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is."""


def no_progress(phase: str, done: int, total: int | None) -> None:
    """Ignore progress: the default wherever a callback is taken."""
