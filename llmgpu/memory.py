"""Estimates of the memory of an engine or a job, and the amount of free memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_RESIDENT, _STATUS = Path("/proc/self/statm"), Path("/proc/self/status")
_GROWTH_SPARE, _GROWTH_STEP = 8 << 20, 1.5
_MEMORY_INFO = Path("/proc/meminfo")
_GROUP_LIMIT, _GROUP_USE = (
    Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current")
)  # of a container


@dataclass(frozen=True)
class Costs:
    """The most memory of an engine for distinct words, in bytes.

    fixed: for any text. per_byte: for each byte of the words. per_word: for each word.
    """

    fixed: int
    per_byte: float
    per_word: float

    def of(self, words: float, nbytes: float) -> int:
        """Return the bytes for this many words that have `nbytes` in all."""
        return round(self.fixed + self.per_byte * nbytes + self.per_word * words)


@dataclass(frozen=True)
class Memory:
    """Most bytes needed: of the process, and on a device."""

    host: int
    device: int = 0


OnMemory = Callable[[Memory], None]  # called with each new estimate


def no_memory(memory: Memory) -> None:
    """Ignore an estimate."""


def resident_memory() -> int | None:
    """Return the bytes of memory of this process now; None where unknown."""
    try:
        return int(_RESIDENT.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError, IndexError):
        return None


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None where unknown."""
    try:
        [peak] = re.findall(r"^VmHWM:\s*(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return int(peak) << 10
    except (OSError, ValueError):
        return None


class Growth:
    """Estimates the memory of a job with tables of words by its memory so far.

    The tables grow with the text, slower and slower, and in steps of half their size; buffers stop
    growing after the first part of the text. A peak between two estimates counts, too.
    """

    def __init__(
        self,
        resident: Callable[[], int | None] = resident_memory,
        peak: Callable[[], int | None] = peak_memory,
    ) -> None:
        """Begin before the job allocates memory."""
        self._resident, self._peak = resident, peak
        self._begin, self._first_peak = resident(), peak() or 0
        self._fixed: int | None = None
        self._most = 0

    def estimate(self, left: float | None) -> Memory | None:
        """Return the most memory for the whole text; None while unknown.

        left: ratio of the rest of the text to the text so far; None if unknown.
        """
        now = self._resident()
        if now is None or self._begin is None:
            return None
        peak = self._peak() or 0
        if peak > self._first_peak:  # an earlier peak belongs to another job
            now = max(now, peak)
        self._most = max(self._most, now - self._begin)
        if self._fixed is None:
            self._fixed = self._most
        if left is None:
            return None
        grown = (self._most - self._fixed) * left
        return Memory(round(_GROWTH_SPARE + self._fixed + grown * _GROWTH_STEP))


def free_memory() -> int | None:
    """Return the bytes of memory still free for this process; None where unknown."""
    free = [number for number in (_free_in_system(), _free_in_group()) if number is not None]
    return min(free, default=None)


def has_limited_address_space() -> bool:
    """Whether the address space of this process is limited (`ulimit -v`)."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _free_in_system() -> int | None:
    """Return the bytes of memory available on this machine."""
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
        [free] = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(free) << 10
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


def _free_in_group() -> int | None:
    """Return the bytes of memory still free for the container; None without a limit."""
    try:
        return int(_GROUP_LIMIT.read_text()) - int(_GROUP_USE.read_text())
    except (OSError, ValueError):
        return None
