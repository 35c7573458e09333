"""Matrix products have the same bits with any number of threads."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from llmgpu.lm.ops import recording
from llmgpu.lm.ops.products import ALIGNMENT, FixedProducts, has_fixed_products

# (M, N, K): inner dimensions that OpenBLAS takes in one block and in several, odd sizes, and sizes
# that are too small to share.
SHAPES = [(1024, 256, 300), (1000, 333, 601), (200, 1025, 1000), (129, 3000, 449), (7, 5, 2000)]
LAYOUTS = ["left and right", "left and right.T", "left.T and right"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_threads(shape: tuple[int, int, int], layout: str) -> None:
    if not has_fixed_products():
        pytest.skip("NumPy has no OpenBLAS here")
    rows, columns, inner = shape
    rng = np.random.default_rng(0)
    left = rng.standard_normal((rows, inner), np.float32)
    right = rng.standard_normal((inner, columns), np.float32)
    if "left.T" in layout:
        left = np.asfortranarray(left)
    if "right.T" in layout:
        right = np.asfortranarray(right)
    products = []
    for threads in (1, 2, 3, 7):
        fixed = FixedProducts(threads)
        out = np.full((rows, columns), np.nan, np.float32)
        with fixed.one_blas_thread():
            fixed.multiply(left, right, out)
            products.append(out)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(products[0], exact, rtol=0, atol=1e-5 * inner)
    for other in products[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), products[0].view(np.uint32))


def span(rows: slice) -> range:
    return range(rows.start, rows.stop)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 4, 100])
def test_each_row_is_computed_once_and_results_are_in_order(rows: int, threads: int) -> None:
    names: set[str] = set()

    def compute(row: int) -> int:
        names.add(threading.current_thread().name)
        return row

    work = [partial(compute, row) for row in range(rows)]
    assert FixedProducts(threads).in_threads(work) == list(range(rows))
    assert len(names) <= threads


@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("rows", [0, 1, 4, 101])
def test_blocks_do_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch, rows: int, threads: int | None
) -> None:
    monkeypatch.setattr(recording, "BLOCK_ELEMENTS", 50)
    products = None if threads is None else FixedProducts(threads)
    blocks = recording.Recorder(products).over_blocks(span, rows, 9)
    assert blocks == [range(start, min(start + 5, rows)) for start in range(0, rows, 5)]


def test_an_error_in_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        FixedProducts(3).in_threads([partial(divmod, 1, 6 - k) for k in range(9)])


@pytest.mark.parametrize("rows", [ALIGNMENT, 4 * ALIGNMENT + 1])
def test_numbers_that_are_not_finite_warn_in_no_thread(rows: int) -> None:
    left = np.full((rows, 2048), 3e38, np.float32)
    out = np.empty((rows, 512), np.float32)
    with np.errstate(all="ignore"):
        FixedProducts(2).multiply(left, left[:1].T.repeat(512, axis=1), out)
    assert np.isinf(out).all()
