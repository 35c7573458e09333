"""How many processors this process may use, and how OpenBLAS, NumPy's library for products of
matrices, uses them."""

from __future__ import annotations

import os

# By default idle threads of OpenBLAS spin for 2**26 cycles, about 30 ms, before they sleep. The
# threads start when NumPy is imported, and their spinning slows the opening of a device. 2**23
# cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23


def usable_processors() -> int:
    """Return the number of processors for this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1


def set_blas_variables() -> None:
    """Set the environment variables of OpenBLAS, unless set by the user."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # otherwise NumPy sets and removes it
