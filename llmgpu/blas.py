"""What NumPy's library for products of matrices, OpenBLAS, is told before NumPy is imported."""

import os

# By default its idle threads spin for 2**26 cycles, some 30 ms, before they sleep. They do so as
# soon as NumPy starts them, and keep every processor busy just when a device is being opened.
# 2**23 cycles still bridge the gaps between the operations of a training step.
_CYCLES_LOG2 = 23


def set_blas_variables() -> None:
    """Set the variables that OpenBLAS reads, unless they are set."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # which NumPy sets and removes otherwise
