"""The division of matrix products into tiles and parts."""

from __future__ import annotations

import pytest

from llmgpu.gpu.adapters import WEBGPU_DEFAULT_LIMITS
from llmgpu.lm.ops.matrix_tiling import MAX_INNER, SOFTWARE_TILES, TILES, Tile, choose_tiling

MOST = 1 << 26
SIZES = [(8192, 768, 768), (768, 768, 8192), (8192, 768, 50304), (50304, 768, 8192), (1, 1, 1)]


@pytest.mark.parametrize("tile", TILES + SOFTWARE_TILES)
def test_tiles_are_what_the_generator_relies_on(tile: Tile) -> None:
    assert tile.rows // tile.thread_rows % 4 == tile.columns // tile.thread_columns % 8 == 0
    for width in (tile.rows, tile.columns):
        assert width * tile.inner % (4 * tile.threads) == 0
    limits = WEBGPU_DEFAULT_LIMITS
    assert tile.threads <= limits["max-compute-invocations-per-workgroup"]
    memory = 4 * tile.inner * (tile.rows + tile.columns)
    assert memory <= limits["max-compute-workgroup-storage-size"]


@pytest.mark.parametrize("sizes", [*SIZES, (3, 5, 70_001), (100, 100, 63)])
@pytest.mark.parametrize("processors", [1, 2, 132])
def test_parts_cover_the_inner_dimension(sizes: tuple[int, int, int], processors: int) -> None:
    rows, columns, inner = sizes
    tiling = choose_tiling(TILES, *sizes, processors=processors, most=MOST)
    assert tiling.inner % tiling.tile.inner == 0
    assert (tiling.parts - 1) * tiling.inner < inner <= tiling.parts * tiling.inner
    assert tiling.inner < MAX_INNER + tiling.tile.inner
    assert tiling.parts == 1 or tiling.parts * rows * columns <= MOST


def test_partial_sums_keep_to_the_memory_given() -> None:
    wanted = choose_tiling(TILES, 768, 768, 8192, processors=132, most=MOST)
    assert wanted.parts > 4
    given = choose_tiling(TILES, 768, 768, 8192, processors=132, most=3 * 768 * 768)
    assert given.parts <= 3


def test_products_with_tiles_enough_are_in_one_part() -> None:
    for rows, columns, inner in [(8192, 768, 768), (8192, 2048, 768), (8192, 50304, 768)]:
        tiling = choose_tiling(TILES, rows, columns, inner, processors=132, most=MOST)
        assert (tiling.tile, tiling.parts) == (TILES[0], 1)
