"""What NumPy's library for products of matrices, OpenBLAS, is told before NumPy is imported."""

import os

# Its threads look for a product in a loop of 2**26 cycles, unless told otherwise: when they start,
# that is 30 ms in which they take all processors from whatever is opened while NumPy is imported.
# After 2**23 they sleep; the operations of a training step follow each other sooner.
_CYCLES_LOG2 = 23


def set_blas_variables() -> None:
    """Set the variables that OpenBLAS reads, unless they are set."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(_CYCLES_LOG2))
    os.environ.setdefault("OPENBLAS_MAIN_FREE", "1")  # which NumPy sets and removes otherwise
