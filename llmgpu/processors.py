"""The processors that this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Return how many there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1
