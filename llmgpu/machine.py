"""What this process may use of its machine: processors and memory; estimates of a job's memory.

OpenBLAS, NumPy's library of matrix products, is set up here, too: see `set_blas_variables`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Log2 of the cycles that an idle OpenBLAS thread spins before it sleeps. The default, 2**26 cycles
# or about 30 ms, slows the opening of a device, since the threads start when NumPy is imported.
# 2**23 cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23
# Address space, in bytes, of one OpenBLAS thread, and of everything else in a small command.
_BLAS_THREAD_BYTES, _OTHER_BYTES = 64 << 20, 512 << 20


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has this function
        return os.cpu_count() or 1


def set_blas_variables() -> None:
    """Set the environment variables of OpenBLAS, except variables that the user has set.

    OpenBLAS ends the process if it can't start its threads. If the address space is limited
    (`ulimit -v`) and too small for all threads, OpenBLAS is set to one thread.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # if unset, NumPy sets and removes it
    limit = address_space_limit()
    if limit is not None and limit < _OTHER_BYTES + _BLAS_THREAD_BYTES * usable_processors():
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def address_space_limit() -> int | None:
    """Return the limit of the address space in bytes (`ulimit -v`); None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no `resource`
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


_STATUS = Path("/proc/self/status")
_GROWTH_SPARE, _GROWTH_STEP = 8 << 20, 1.5
USUAL_GROWTH = 0.5  # the distinct words of a text of n bytes grow about as n to this power
_TABLE_BYTES = 128  # largest size of the word tables, in bytes for each byte of text
_USUAL_TABLE = 8192  # usual size of the word tables is this times bytes**USUAL_GROWTH
_THREAD_BYTES = 32 << 20  # a stack of 8 MB, and a heap
_MEMORY_INFO = Path("/proc/meminfo")
# Files that give the limit and the use of memory of a container.
_GROUP_LIMIT, _GROUP_USE = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))


class Costs(NamedTuple):
    """The most memory, in bytes, that an engine needs for a table of distinct words.

    fixed: bytes for any text. per_byte: bytes for each byte of the words. per_word: bytes for each
    word.
    """

    fixed: int
    per_byte: float
    per_word: float

    def of(self, words: float, nbytes: float) -> int:
        """Return the bytes of memory for distinct words.

        words: number of words. nbytes: sum of their lengths.
        """
        return round(self.fixed + self.per_byte * nbytes + self.per_word * words)


class Memory(NamedTuple):
    """The most memory, in bytes, that a job needs.

    host: memory of the process. device: memory on a device. likely: a realistic estimate of `host`
    for ordinary text; None if `host` is exact enough.
    """

    host: int
    device: int = 0
    likely: int | None = None


OnMemory = Callable[[Memory], None]  # called with each new estimate


def no_memory(memory: Memory) -> None:
    """Ignore an estimate."""


def resident_memory() -> int | None:
    """Return the bytes of memory that this process has now; None if the system does not tell."""
    return _kilobytes(_STATUS, "VmRSS")


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None if the system does not tell."""
    return _kilobytes(_STATUS, "VmHWM")


def _kilobytes(path: Path, name: str) -> int | None:
    """Return the bytes in the line "NAME: N kB" of a file of the system; None without the line."""
    with suppress(OSError, ValueError):
        [number] = re.findall(rf"^{name}:\s*(\d+) kB", path.read_text(), re.MULTILINE)
        return int(number) << 10
    return None


class Growth:
    """Estimates the memory of a job that fills word tables, from the memory used so far.

    Word tables grow with the text, ever more slowly, and each time by half their size. Buffers
    reach their full size near the beginning of the text. A peak of memory between two estimates is
    included in the later estimate.

    begin: bytes of memory before the job allocates any; None if the system does not tell.
    """

    def __init__(self) -> None:
        """Measure the memory of the process before the job allocates any."""
        self.begin, self._first_peak = resident_memory(), peak_memory() or 0
        self._fixed: int | None = None
        self._most = 0

    def measure(self) -> int | None:
        """Return the most bytes of memory since `begin`; None if the system does not tell."""
        now, peak = resident_memory(), peak_memory() or 0
        return now if now is None or peak <= self._first_peak else max(now, peak)

    def estimate(
        self, left: float | None, text_bytes: int = 0, table_bytes: int = 0
    ) -> Memory | None:
        """Return the most memory that the whole text may need; None if it can't be estimated yet.

        left: size of the whole text divided by the size of the text so far; None if unknown.
        text_bytes: size of the text so far. table_bytes: largest size of the word tables; all other
        memory grows as the text does.
        """
        used = self.measure()
        if used is None or self.begin is None:
            return None
        self._most = max(self._most, used - self.begin)
        if self._fixed is None:
            self._fixed = self._most
        if left is None:
            return None
        grown = self._most - self._fixed
        table_bytes = min(table_bytes, round(_TABLE_BYTES * text_bytes * left))
        # The tables may grow up to table_bytes. Memory beyond table_bytes belongs to other objects,
        # which grow with the text.
        other = max(grown - table_bytes, 0)
        more = max(table_bytes - grown, 0) if left > 1 else 0
        most = self._most + more + other * (left * _GROWTH_STEP - 1)
        usual = min(_USUAL_TABLE * (text_bytes * left) ** USUAL_GROWTH, table_bytes)
        likely = self._most + usual * (1 - left**-USUAL_GROWTH)
        likely += other * (left**USUAL_GROWTH - 1)
        host = round(_GROWTH_SPARE + most)
        return Memory(host, likely=min(round(likely), host) if left > 1 else None)


def free_memory() -> int | None:
    """Return the bytes of memory free for this process; None if the system does not tell."""
    free = [number for number in (_free_in_system(), _free_in_group()) if number is not None]
    return min(free, default=None)


def has_limited_address_space() -> bool:
    """Whether the address space of this process is limited (`ulimit -v`)."""
    return address_space_limit() is not None


def has_room_for_thread() -> bool:
    """Whether a limited address space has room for a thread: its stack and its first objects.

    CPython waits forever for the start of a thread that runs out of memory before its first line.
    """
    if not has_limited_address_space():
        return True
    with suppress(ImportError, OSError):  # without room for the module, its import fails
        import mmap

        mmap.mmap(-1, _THREAD_BYTES).close()
        return True
    return False


def _free_in_system() -> int | None:
    """Return the bytes of memory available on this machine."""
    available = _kilobytes(_MEMORY_INFO, "MemAvailable")
    if available is not None:
        return available
    with suppress(AttributeError, OSError, ValueError):  # Windows has no `os.sysconf`
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _free_in_group() -> int | None:
    """Return the bytes of memory that are free for the container; None without a limit."""
    with suppress(OSError, ValueError):
        return int(_GROUP_LIMIT.read_text()) - int(_GROUP_USE.read_text())
    return None
