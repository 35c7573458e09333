"""How many processors this process may use, and how OpenBLAS, NumPy's library for products of
matrices, uses them."""

from __future__ import annotations

import os

# By default its idle threads spin for 2**26 cycles, some 30 ms, before they sleep. They do so as
# soon as NumPy starts them, and keep every processor busy just when a device is being opened.
# 2**23 cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23


def usable_processors() -> int:
    """Return how many there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        return os.cpu_count() or 1


def set_blas_variables() -> None:
    """Set the variables that OpenBLAS reads, unless they are set."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # which NumPy sets and removes otherwise
