"""Tiles of matrix products, and how a product is divided: tiles, parts of the inner sum.

The kernels are lm/03_matrix_product.wgsl and, on matrix units, lm/03_matrix_product_units.wgsl.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

MAX_INNER = 8_192  # of one part: rounding errors of a running sum grow with its length
MAX_PARTS = 32
PROCESSORS = 132  # of a large device; smaller ones lose little by more workgroups than they need
HALVES = 8  # half-precision numbers in a vector of 16 bytes
SUMS = 4  # float32 numbers in one

Unit = tuple[int, int, int]  # rows, columns and inner dimension of matrices that units multiply


@dataclass(frozen=True)
class AnyTile(ABC):
    """The block of a product that a workgroup computes.

    rows, columns: of the block. inner: terms of its sums that are in workgroup memory at once.
    """

    rows: int
    columns: int
    inner: int

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a workgroup."""

    @property
    def resident(self) -> int:
        """Workgroups that keep a processor busy."""
        return 1

    @property
    @abstractmethod
    def term_cost(self) -> float:
        """Time to add a term to each element, with 1 for 64 elements a thread and 128 threads."""

    def count(self, rows: int, columns: int) -> int:
        """Return how many tiles cover a product."""
        return -(-rows // self.rows) * -(-columns // self.columns)


@dataclass(frozen=True)
class Tile(AnyTile):
    """A tile of float32 kernels.

    thread_rows, thread_columns: the elements of each thread. These and the block's sizes are
        multiples of 4, and so is the number of elements of a factor that a thread loads for a step.
    """

    thread_rows: int
    thread_columns: int

    @property
    def threads_down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.thread_rows

    @property
    def threads_across(self) -> int:
        """Threads along the columns."""
        return self.columns // self.thread_columns

    @property
    def threads(self) -> int:
        return self.threads_down * self.threads_across

    @property
    def term_cost(self) -> float:
        # Loads of workgroup memory take most of the time: one for `thread_rows` multiplications of
        # the right factor, one for `thread_columns` of the left one.
        loads = 1 / self.thread_rows + 1 / self.thread_columns
        return self.rows * self.columns * (0.3 + 2.8 * loads) / (64 * 128)


@dataclass(frozen=True)
class MatrixTile(AnyTile):
    """A tile on matrix units; subgroup_rows, subgroup_columns: the block of a subgroup."""

    subgroup_rows: int
    subgroup_columns: int

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.rows // self.subgroup_rows * (self.columns // self.subgroup_columns)

    @property
    def threads(self) -> int:
        return 32 * self.subgroups  # lanes of a subgroup on the devices that were measured

    @property
    def resident(self) -> int:
        # The registers of a processor hold two large tiles.
        return 2 if self.rows * self.columns >= 128 * 128 else 3

    @property
    def term_cost(self) -> float:
        # A third of the time of a large tile is spent on loading its factors from the cache. Loads
        # grow with the borders of tiles.
        loads = 1 / self.rows + 1 / self.columns
        return self.rows * self.columns * (0.21 + 6.2 * loads) / (128 * 128)

    def together(self, unit: Unit) -> int:
        """Return how many of a subgroup's matrices of sums are stored at once: a cache line."""
        return gcd(max(32 // unit[1], 1), self.subgroup_columns // unit[1])

    def vectors(self, unit: Unit) -> tuple[int, int]:
        """Return the most vectors of workgroup memory that each factor's part of a step takes.

        Sums go by way of the left part, and of the right one, too, if there is room. Lines of
        factors have one vector more than their contents, and lines of sums two.
        """
        sums = self.subgroups * unit[0] * (self.together(unit) * unit[1] // SUMS + 2)
        left, right = (
            max(width * (self.inner + HALVES), self.inner * (width + HALVES)) // HALVES
            for width in (self.rows, self.columns)
        )
        return max(left, sums), right

    def memory(self, unit: Unit) -> int:
        """Return the bytes of workgroup memory that a kernel takes."""
        return 16 * sum(self.vectors(unit))

    def fits(self, unit: Unit, threads: int) -> bool:
        """Whether it can be divided evenly among matrices of a unit, and copied by threads."""
        rows, columns, inner = unit
        vectors = (self.rows * self.inner // HALVES, self.columns * self.inner // HALVES)
        return not (
            self.subgroup_rows % rows
            or self.subgroup_columns % columns
            or self.inner % inner
            or any(number % threads for number in vectors)
        )


TILES = (Tile(64, 128, 16, 8, 8), Tile(32, 32, 16, 4, 4))
# A CPU has few registers, and compiling long kernels for it takes seconds.
SOFTWARE_TILES = (Tile(64, 64, 8, 4, 8), Tile(32, 32, 8, 4, 4))


@dataclass(frozen=True)
class Tiling:
    """A tile, and how many terms of the inner dimension a workgroup adds: a multiple of its step.

    parts: workgroups that compute sums of the same elements; more than 1 leave partial sums.
    """

    tile: AnyTile
    inner: int
    parts: int


def choose_tiling(
    tiles: Sequence[AnyTile], rows: int, columns: int, inner: int, *, processors: int, most: int
) -> Tiling:
    """Return the tile and the split of the inner dimension that are expected to be fastest.

    processors: workgroups that run side by side. most: floats that partial sums may take.
    """
    most_parts = max(1, min(MAX_PARTS, most // (rows * columns), inner // 64))
    # Long sums are split even where it costs time, for the sake of rounding errors.
    least_parts = min(most_parts, -(-inner // MAX_INNER))

    def cost(choice: tuple[AnyTile, int]) -> float:
        tile, parts = choice
        return _cost(tile, parts, rows, columns, inner, processors)

    tile, parts = min(product(tiles, range(least_parts, most_parts + 1)), key=cost)
    # Parts are whole steps of the tile, so there may be fewer of them than chosen.
    part = -(-inner // (parts * tile.inner)) * tile.inner
    return Tiling(tile, part, -(-inner // part))


def _cost(tile: AnyTile, parts: int, rows: int, columns: int, inner: int, processors: int) -> float:
    """Return the time of a product, about in terms that a processor adds to a tile.

    The constants are measured: the time of a workgroup besides its terms, of a second kernel, and
    of a partial sum's way to memory and back.
    """
    workgroups = tile.count(rows, columns) * parts
    # Workgroups run in rounds; few of them can't keep a processor busy, nor can the last ones.
    last = -(-workgroups // processors) % tile.resident
    idle = 1 - last / tile.resident if last else 0
    rounds = max(-(-workgroups // processors) + idle, 128 / tile.threads)
    time = rounds * (inner / parts + 20) * tile.term_cost
    if parts > 1:
        time += 60 + 0.0064 * rows * columns * parts / processors
    return time
