"""The number of usable processors, and settings of OpenBLAS, NumPy's library of matrix products."""

from __future__ import annotations

import os

# Log2 of the cycles that an idle OpenBLAS thread spins before it sleeps. The default, 2**26 cycles
# or about 30 ms, slows the opening of a device, since the threads start when NumPy is imported.
# 2**23 cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23
# Address space, in bytes, of one OpenBLAS thread, and of everything else in a small command.
_THREAD_BYTES, _OTHER_BYTES = 64 << 20, 512 << 20


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
    if limit is not None and limit < _OTHER_BYTES + _THREAD_BYTES * usable_processors():
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def address_space_limit() -> int | None:
    """Return the limit of the address space in bytes (`ulimit -v`); None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no `resource`
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit
