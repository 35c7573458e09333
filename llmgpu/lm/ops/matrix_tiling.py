"""Tiles of matrix products, and the division of a product into tiles and parts of inner sums.

The kernels are lm/03_matrix_product.wgsl and, on matrix units, lm/03_matrix_product_units.wgsl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd
from typing import ClassVar

# A part has at most this many terms, since rounding errors of a running sum grow with its length.
MAX_INNER = 8_192
# The limit for half-precision factors is higher: their rounding loses more than a longer sum.
MAX_HALF_INNER = 32_768
MAX_PARTS = 32
# The number of processors of a large device. A smaller device loses little by more workgroups.
PROCESSORS = 132
EDGES = 1.04  # factor of the time of a product whose last tiles reach beyond its edges, as measured
ALONE = 1.06  # factor of the time of a workgroup that has a processor to itself, as measured
HALVES = 8  # half-precision numbers in a vector of 16 bytes
SUMS = 4  # float32 numbers in a vector of 16 bytes

# Rows, columns and inner dimension of the matrices that a matrix unit multiplies.
Unit = tuple[int, int, int]


@dataclass(frozen=True)
class _Block:
    """The block of a product that a workgroup computes.

    rows, columns: size of the block. inner: terms of each sum that are in workgroup memory at once.
    """

    rows: int
    columns: int
    inner: int

    most_terms: ClassVar[int] = MAX_INNER  # most terms of a running sum

    @property
    def resident(self) -> int:
        """Number of workgroups that keep a processor busy."""
        return 1

    def count(self, rows: int, columns: int) -> int:
        """Return the number of tiles that cover a product."""
        return -(-rows // self.rows) * -(-columns // self.columns)


@dataclass(frozen=True)
class Tile(_Block):
    """A tile of float32 kernels.

    thread_rows, thread_columns: size of each thread's block. All sizes of a tile are multiples of
    4. In each step, a thread also loads a multiple of 4 elements of a factor.
    """

    thread_rows: int
    thread_columns: int

    @property
    def threads(self) -> int:
        """Number of threads of a workgroup."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def term_cost(self) -> float:
        """Estimated time for one more term in the sums of all elements of the tile.

        The unit is the time of a tile of 128 threads with 64 elements each.
        """
        # Loads from workgroup memory take most of the time: an element of the right factor serves
        # `thread_rows` multiplications, an element of the left factor `thread_columns`.
        loads = 1 / self.thread_rows + 1 / self.thread_columns
        return self.rows * self.columns * (0.3 + 2.8 * loads) / (64 * 128)


@dataclass(frozen=True)
class MatrixTile(_Block):
    """A tile on matrix units.

    subgroup_rows, subgroup_columns: size of a subgroup's block.
    """

    subgroup_rows: int
    subgroup_columns: int

    most_terms = MAX_HALF_INNER

    @property
    def subgroups(self) -> int:
        """Number of subgroups of a workgroup."""
        return self.rows // self.subgroup_rows * (self.columns // self.subgroup_columns)

    @property
    def threads(self) -> int:
        return 32 * self.subgroups  # lanes of a subgroup on the devices that were measured

    @property
    def resident(self) -> int:
        # The registers of a processor hold one wide tile, two large ones, or three small ones.
        size = self.rows * self.columns
        return 1 if size > 128 * 128 else 2 if size >= 96 * 128 else 3

    @property
    def term_cost(self) -> float:
        # A large tile spends a third of its time on loading factors from the cache. Loads are
        # proportional to the borders of tiles.
        loads = 1 / self.rows + 1 / self.columns
        cost = self.rows * self.columns * (0.21 + 6.2 * loads) / (128 * 128)
        # A processor with a single workgroup is idle while the workgroup waits at a barrier.
        return cost * ALONE if self.resident == 1 else cost

    def together(self, unit: Unit) -> int:
        """Return how many adjacent result matrices of a subgroup are stored at once.

        Side by side, their rows fill at most one cache line. The number divides the number of
        matrices side by side in the subgroup's block.
        """
        return gcd(max(32 // unit[1], 1), self.subgroup_columns // unit[1])

    def vectors(self, unit: Unit) -> tuple[int, int]:
        """Return the sizes of workgroup memory for the left and right factor, in 16-byte vectors.

        Each step loads a part of each factor into its memory, transposed or not. At the end, sums
        pass through the left factor's memory, and also through the right factor's if they fit.
        Lines of factors are padded by one vector, lines of sums by two.
        """
        sums = self.subgroups * unit[0] * (self.together(unit) * unit[1] // SUMS + 2)
        left, right = (
            max(width * (self.inner + HALVES), self.inner * (width + HALVES)) // HALVES
            for width in (self.rows, self.columns)
        )
        return max(left, sums), right

    def memory(self, unit: Unit) -> int:
        """Return the size of a kernel's workgroup memory in bytes."""
        return 16 * sum(self.vectors(unit))

    def fits(self, unit: Unit, threads: int) -> bool:
        """Whether the tile divides evenly into matrices of a unit, and its loads among threads."""
        rows, columns, inner = unit
        vectors = (self.rows * self.inner // HALVES, self.columns * self.inner // HALVES)
        return not (
            self.subgroup_rows % rows
            or self.subgroup_columns % columns
            or self.inner % inner
            or any(number % threads for number in vectors)
        )


AnyTile = Tile | MatrixTile
TILES = (Tile(64, 128, 16, 8, 8), Tile(32, 32, 16, 4, 4))
# A CPU has few registers, and compiling long kernels for it takes seconds.
SOFTWARE_TILES = (Tile(64, 64, 8, 4, 8), Tile(32, 32, 8, 4, 4))


@dataclass(frozen=True)
class Tiling:
    """A tile, and the division of the inner dimension into parts.

    inner: terms that a workgroup adds, a multiple of `tile.inner`. parts: number of workgroups for
    each tile of the product; if more than 1, each computes partial sums.
    """

    tile: AnyTile
    inner: int
    parts: int


@cache  # a program has hundreds of products, but only dozens of shapes
def choose_tiling(
    tiles: Sequence[AnyTile], rows: int, columns: int, inner: int, *, processors: int, most: int
) -> Tiling:
    """Return the tiling of a product that is expected to be the fastest.

    processors: number of the device's processors. most: the largest number of partial sums.
    """
    most_parts = max(1, min(MAX_PARTS, most // (rows * columns), inner // 64))
    # Split long sums even if this takes more time, to make rounding errors smaller.
    least_parts = min(most_parts, -(-inner // tiles[0].most_terms))

    def cost(choice: tuple[AnyTile, int]) -> float:
        """Estimate the time of a product by a tile and a number of parts.

        The unit is the time in which a processor adds one term to each sum of a tile. The constants
        are measured: 20 for the start and end of a workgroup, 60 for a second kernel, and 0.0064
        for writing and reading a partial sum.
        """
        tile, parts = choice
        workgroups = tile.count(rows, columns) * parts
        # Processors run workgroups in rounds. In the last round, fewer than `resident` workgroups,
        # or small ones, leave a processor partly idle.
        last = -(-workgroups // processors) % tile.resident
        idle = 1 - last / tile.resident if last else 0
        rounds = max(-(-workgroups // processors) + idle, 128 / tile.threads)
        time = rounds * (inner / parts + 20) * tile.term_cost
        if rows % tile.rows or columns % tile.columns:
            time *= EDGES
        if parts > 1:
            time += 60 + 0.0064 * rows * columns * parts / processors
        return time

    tile, parts = min(product(tiles, range(least_parts, most_parts + 1)), key=cost)
    # A part consists of whole steps of the tile, so there may be fewer parts than chosen.
    part = -(-inner // (parts * tile.inner)) * tile.inner
    return Tiling(tile, part, -(-inner // part))
