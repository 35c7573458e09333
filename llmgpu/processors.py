"""The number of usable processors, and settings of OpenBLAS, NumPy's library of matrix products."""

from __future__ import annotations

import os

# By default idle threads of OpenBLAS spin for 2**26 cycles, about 30 ms, before they sleep. The
# threads start when NumPy is imported, and their spinning slows the opening of a device. 2**23
# cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23
# Address space of a thread of OpenBLAS, and of the rest of a small command.
_THREAD_BYTES, _OTHER_BYTES = 64 << 20, 512 << 20


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1


def set_blas_variables() -> None:
    """Set the environment variables of OpenBLAS that the user has not set.

    OpenBLAS interrupts the process if it can't start its threads, so a limited address space
    (`ulimit -v`) without room for all threads gets one.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # otherwise NumPy sets and removes this one
    limit = _limit_of_address_space()
    if limit is not None and limit < _OTHER_BYTES + _THREAD_BYTES * usable_processors():
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _limit_of_address_space() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit
