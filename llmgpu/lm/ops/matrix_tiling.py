"""How a matrix product is cut up: tiles of workgroups and threads, parts of the inner dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_INNER = 16_384  # of one part: rounding errors of a running sum grow with its length
MAX_PARTS = 32
WORKGROUPS_WANTED = 132 * 2  # that run at the same time on a large device
ADDING_COST = 600  # what a part costs more, in multiply-adds an element of the product


@dataclass(frozen=True)
class Tile:
    """The block of a product that a workgroup computes.

    rows, columns: of the block. inner: how many terms of its sums are in workgroup memory at once.
    thread_rows, thread_columns: what each thread computes of it, multiples of 4.
    stages: 2 where the next terms are stored while these are added, 1 where that takes turns.
    padding: floats between the columns of a tile in workgroup memory, a multiple of 4.
    """

    rows: int
    columns: int
    inner: int
    thread_rows: int
    thread_columns: int
    stages: int = 2
    padding: int = 4

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory for the tiles of both factors."""
        width = self.rows + self.columns + 2 * self.padding
        return 4 * self.stages * self.inner * width

    def fits(self, limits: Mapping[str, int]) -> bool:
        """Whether a device with these limits can run it."""
        return (
            self.threads <= limits["max-compute-invocations-per-workgroup"]
            and self.workgroup_bytes <= limits["max-compute-workgroup-storage-size"]
        )


# From the fewest loads of workgroup memory a multiplication to the most workgroups.
TILES = (
    Tile(128, 128, 8, 8, 8),
    Tile(128, 128, 8, 8, 8, padding=0),
    Tile(64, 64, 8, 4, 4),
    Tile(32, 32, 8, 4, 4),
)


@dataclass(frozen=True)
class Tiling:
    """A tile, and how many terms of the inner dimension a workgroup adds: a multiple of its step.

    parts: workgroups that compute sums of the same elements; more than 1 leave partial sums.
    """

    tile: Tile
    inner: int
    parts: int


def choose_tiling(
    rows: int, columns: int, inner: int, limits: Mapping[str, int], max_elements: int
) -> Tiling:
    """Return how to compute a product of these sizes.

    limits: of the device. max_elements: how many floats all partial sums may be.
    """
    fitting = [tile for tile in TILES if tile.fits(limits)]
    for tile in fitting:
        tiling = _split(tile, rows, columns, inner, max_elements)
        if _count(tile, rows, columns) * tiling.parts >= WORKGROUPS_WANTED // 2:
            return tiling
    return _split(fitting[-1], rows, columns, inner, max_elements)


def _count(tile: Tile, rows: int, columns: int) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def _split(tile: Tile, rows: int, columns: int, inner: int, max_elements: int) -> Tiling:
    """Return the split of the inner dimension that takes the least time."""
    tiles = _count(tile, rows, columns)
    most = max(1, min(MAX_PARTS, max_elements // (rows * columns), inner // (8 * tile.inner)))
    least = min(most, -(-inner // MAX_INNER))

    def cost(parts: int) -> float:
        rounds = -(-tiles * parts // WORKGROUPS_WANTED)
        adding = ADDING_COST * parts * tiles / WORKGROUPS_WANTED if parts > 1 else 0
        return rounds * (inner / parts) + adding

    wanted = min(range(least, most + 1), key=cost)
    steps = -(-inner // tile.inner)
    part = -(-steps // wanted) * tile.inner
    return Tiling(tile, part, -(-inner // part))
