"""Matrix products and work on rows in NumPy whose bits do not depend on the number of threads.

The threads of OpenBLAS wait for each other in a loop, which costs more than the threads save when
other programs use the processors. Several threads also add some products in another order than one
thread does. So `FixedProducts` divides a product into whole rows or columns, and OpenBLAS computes
each part in one thread. With the kernels of `_ADD_ALIKE`, the order of the sums along the inner
dimension does not depend on the number of rows and columns, so a product has as many parts as there
are threads. Other kernels, such as Haswell's, add the last few rows of a product in another order,
so the parts must depend only on the shape of the product. Other libraries (MKL, Accelerate) use
their own threads. The threads of `FixedProducts` also compute operations on rows, while NumPy does
not hold Python's lock.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import numpy.linalg

from llmgpu.lm.ops.tensor import FloatArray
from llmgpu.machine import has_limited_address_space, usable_processors

# Parts have a multiple of this many rows or columns, and so whole blocks of OpenBLAS.
ALIGNMENT = 64
# Least multiplications of a part. Fewer take less time than handing them to another thread.
LEAST_PART = 1 << 24
# Most parts of a product if the parts depend only on its shape. In two threads, 8 parts are up to 5
# % slower than 2, because each part packs a factor again.
PARTS = 8
# OpenBLAS's kernels that give the same bits for any number of rows and columns, as tests show.
_ADD_ALIKE = {b"Sandybridge", b"SkylakeX"}
_BUFFER_BYTES = 36 << 20  # upper bound of the memory that OpenBLAS allocates for a thread
_claimed = [0]  # number of threads whose memory OpenBLAS has allocated

T = TypeVar("T")


# Functions of OpenBLAS, with {} for the prefix and the suffix that a build adds to names.
# processor: name of the processor whose kernels run. config: settings of the build. take_memory,
# give_back: allocate and free the memory of a product.
_FUNCTIONS = {
    "get_threads": "{}openblas_get_num_threads{}",
    "set_threads": "{}openblas_set_num_threads{}",
    "processor": "{}openblas_get_corename{}",
    "config": "{}openblas_get_config{}",
    "sgemm": "{}cblas_sgemm{}",
    "take_memory": "blas_memory_alloc",
    "give_back": "blas_memory_free",
}


@cache
def _openblas() -> SimpleNamespace | None:
    """Return the functions of NumPy's OpenBLAS; None if NumPy's library is another."""
    # A name looked up in an extension module is also found in the libraries that the module was
    # linked with, except on Windows.
    extension = Path(sys.modules["numpy.linalg._umath_linalg"].__file__ or "")
    beside = Path(np.__file__).parent.with_name("numpy.libs").glob("*openblas*")
    for path in (extension, *beside):
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix, suffix in product(("scipy_", ""), ("64_", "")):
            theirs = [name.format(prefix, suffix) for name in _FUNCTIONS.values()]
            if all(hasattr(library, name) for name in theirs):
                functions = [library[name] for name in theirs]
                found = SimpleNamespace(**dict(zip(_FUNCTIONS, functions, strict=True)))
                found.take_memory.restype = ctypes.c_void_p
                found.processor.restype = found.config.restype = ctypes.c_char_p
                return found
    return None


def has_fixed_products() -> bool:
    """Whether NumPy's library is OpenBLAS, which `FixedProducts` can limit to one thread."""
    return _openblas() is not None


def sgemm() -> tuple[int, bool] | None:
    """Return the address of OpenBLAS's cblas_sgemm, and whether its integers have 64 bits.

    None if NumPy's library is not OpenBLAS.
    """
    blas = _openblas()
    if blas is None:
        return None
    address = ctypes.cast(blas.sgemm, ctypes.c_void_p).value or 0
    return address, b"USE64BITINT" in blas.config()


def _adds_alike() -> bool:
    """Whether each element of a product has the same bits in products of any shape."""
    blas = _openblas()
    return blas is not None and blas.processor() in _ADD_ALIKE


def describe_products(*, fixed: bool) -> str:
    """Return the names of the library and the kernels that determine the bits of products.

    fixed: whether `FixedProducts` computes the products. If not, the bits also depend on the number
    of threads, which is then part of the name.
    """
    library = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    described, blas = f"{library.get('name')} {library.get('version')}", _openblas()
    if blas is not None:
        described += f" for {blas.processor().decode()}"
    if fixed and blas is not None:
        return described if _adds_alike() else f"{described}, parts: {PARTS}"
    threads = usable_processors() if blas is None else blas.get_threads()
    return f"{described}, threads: {threads}"


class FixedProducts:
    """Computes products in its own threads; the bits do not depend on the number of threads.

    threads: number of threads. parts: the most parts of a product.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Store the number of threads. They start later.

        threads: None: the number that OPENBLAS_NUM_THREADS and the processors allow.
        """
        blas = _openblas()
        allowed = 1 if blas is None else min(blas.get_threads(), usable_processors())
        self.threads = threads or allowed
        self.parts = self.threads if _adds_alike() else PARTS
        self._pool = ThreadPoolExecutor(self.threads, "products")

    @contextmanager
    def one_blas_thread(self) -> Iterator[None]:
        """Limit OpenBLAS to one thread while the block runs."""
        blas = _openblas()
        if blas is None:
            yield
            return
        before = blas.get_threads()
        blas.set_threads(1)
        _claim_memory(self.threads)
        try:
            yield
        finally:
            blas.set_threads(before)

    def multiply(self, left: FloatArray, right: FloatArray, out: FloatArray) -> None:
        """Write left @ right, (M, K) and (K, N), to out (M, N)."""
        if left.ctypes.data == right.ctypes.data:
            # NumPy adds in another order if both factors have the same memory, so copy one of them.
            right = right.copy()
        rows, columns = out.shape
        parts = min(self.parts, rows * columns * left.shape[1] // LEAST_PART)
        if parts < 2:
            np.matmul(left, right, out=out)
            return
        step = -(-max(rows, columns) // (parts * ALIGNMENT)) * ALIGNMENT
        pieces = [slice(start, start + step) for start in range(0, max(rows, columns), step)]
        if rows >= columns:
            work = [(left[piece], right, out[piece]) for piece in pieces]
        else:
            work = [(left, right[:, piece], out[:, piece]) for piece in pieces]
        self.in_threads([partial(np.matmul, left, right, out=out) for left, right, out in work])

    def in_threads(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Call functions, a share in each thread; return the results in order.

        The calling thread works, too: share k has the functions k, k + threads, and so on.
        """

        @np.errstate(all="ignore")  # each thread has its own error state
        def do_share(first: int) -> list[T]:
            return [each() for each in work[first :: self.threads]]

        firsts = range(1, min(self.threads, len(work)))
        others = [self._pool.submit(do_share, first) for first in firsts]
        shares = [do_share(0), *(other.result() for other in others)]
        return [shares[i % self.threads][i // self.threads] for i in range(len(work))]


def _claim_memory(threads: int) -> None:
    """If the address space is limited, let OpenBLAS allocate its memory in advance.

    Without memory, a product of OpenBLAS would end the process. Raises MemoryError if the address
    space is too small.
    """
    blas = _openblas()
    if blas is None or threads <= _claimed[0] or not has_limited_address_space():
        return
    try:
        mmap.mmap(-1, threads * _BUFFER_BYTES).close()
    except OSError as error:
        raise MemoryError from error
    taken = [ctypes.c_void_p(blas.take_memory(0)) for _ in range(threads)]
    for memory in taken:  # OpenBLAS keeps freed memory for later products
        blas.give_back(memory)
    _claimed[0] = threads
