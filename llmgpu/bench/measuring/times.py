"""Timing a function several times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def summarize(seconds: list[float]) -> dict[str, Any]:
    """Return median, min, max and all of the times of several runs, in seconds."""
    return {
        "median": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
        "runs": seconds,
    }


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Call a function; return the seconds it took and what it returned."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def repeat(function: Callable[[], object], runs: int) -> dict[str, Any]:
    """Call a function `runs` times; return `summarize` of the times."""
    return summarize([timed(function)[0] for _ in range(runs)])
