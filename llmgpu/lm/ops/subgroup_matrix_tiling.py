"""Tiles of matrix products on matrix units, and what a kernel of them is made for."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from llmgpu.lm.ops.matrix_tiling import AnyTile

PADDING = 8  # halves after each line in workgroup memory
HALVES = 8  # in a vector of 16 bytes
SUMS = 4  # in a vector
BANKS = 8  # of workgroup memory, as wide as a vector
LINE = 32  # sums of a row that a subgroup stores at once: a cache line
SUM_PADDING = 2  # vectors after each line of sums, so that rows of a matrix lie in different banks


@dataclass(frozen=True)
class MatrixTile(AnyTile):
    """A tile on matrix units; subgroup_rows, subgroup_columns: of the part of a subgroup."""

    subgroup_rows: int
    subgroup_columns: int

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.rows // self.subgroup_rows * (self.columns // self.subgroup_columns)

    @property
    def threads(self) -> int:
        """Threads of a workgroup, if a subgroup has 32 lanes."""
        return 32 * self.subgroups

    @property
    def term_cost(self) -> float:
        """Time to add a term to each element, see `Tile.term_cost`.

        A third of a large tile's is the way of its factors from the cache, which grows with the
        borders of tiles.
        """
        loads = 1 / self.rows + 1 / self.columns
        return self.rows * self.columns * (0.21 + 6.2 * loads) / (128 * 128)

    @property
    def resident(self) -> int:
        """Workgroups that a processor needs to be busy: its registers hold two large tiles."""
        return 2 if self.rows * self.columns >= 128 * 128 else 3

    def side_by_side(self, unit: tuple[int, int, int]) -> int:
        """Return how many of a subgroup's matrices of sums are stored at once."""
        return gcd(max(LINE // unit[1], 1), self.subgroup_columns // unit[1])

    def sum_stride(self, unit: tuple[int, int, int]) -> int:
        """Return the vectors from one line of these to the next in workgroup memory."""
        return self.side_by_side(unit) * unit[1] // SUMS + SUM_PADDING

    def vectors(self, unit: tuple[int, int, int]) -> tuple[int, int]:
        """Return how many vectors of workgroup memory each factor's tile takes at most.

        Sums go by way of the left one, and of the right one, too, if there is room.
        """
        sums = self.subgroups * unit[0] * self.sum_stride(unit)
        left, right = (
            max(width * (self.inner + PADDING), self.inner * (width + PADDING)) // HALVES
            for width in (self.rows, self.columns)
        )
        return max(left, sums), right

    def memory(self, unit: tuple[int, int, int]) -> int:
        """Return the bytes of workgroup memory that a kernel takes."""
        return 16 * sum(self.vectors(unit))

    def fits(self, unit: tuple[int, int, int], threads: int) -> bool:
        """Whether it can be divided evenly among matrices of a unit, and copied by threads."""
        rows, columns, inner = unit
        vectors = (self.rows * self.inner // HALVES, self.columns * self.inner // HALVES)
        return not (
            self.subgroup_rows % rows
            or self.subgroup_columns % columns
            or self.inner % inner
            or any(number % threads for number in vectors)
        )


@dataclass(frozen=True)
class HalfFactor:
    """How the left factor (rows, inner) or the right one (inner, columns) lies in memory.

    inner_contiguous: whether neighbours in memory follow one another along the inner dimension.
    vectors: lines are multiples of 8 halves, which are loaded at once.
    """

    inner_contiguous: bool
    vectors: bool


@dataclass(frozen=True)
class SubgroupMatrixProduct:
    """A kernel.

    name: its entry point. unit: rows, columns and inner dimension of the units' matrices. lanes: of
    a subgroup. whole_rows, whole_columns, whole_inner: which dimensions are multiples of the
    tile's. aligned: the product's lines are multiples of 16 bytes, which are stored at once.
    accumulate: adds to what is in the product. residual: adds another matrix. half: the product is
    in half precision, two numbers per word; its columns are even, and nothing is added. stacked:
    products of matrices in stacks. pairs: lines are loaded for two steps at
    once, see `can_pair`.
    """

    name: str
    tile: MatrixTile
    unit: tuple[int, int, int]
    lanes: int
    left: HalfFactor
    right: HalfFactor
    whole_rows: bool
    whole_columns: bool
    aligned: bool
    whole_inner: bool
    accumulate: bool
    residual: bool
    half: bool = False
    stacked: bool = False
    pairs: bool = False

    @property
    def can_pair(self) -> bool:
        """Whether both factors' lines can be loaded for two steps at once.

        Whoever makes a kernel of it sees to it that its sums have no parts, and even steps.
        """
        sides = (self.left, self.right)
        return (
            all(side.inner_contiguous and side.vectors for side in sides)
            and not (self.edges or self.stacked)
            and self.whole_inner
            and 2 * self.tile.inner == BANKS * HALVES  # a line of two steps is for eight threads
            and self.threads % (BANKS * BANKS) == 0
        )

    @property
    def edges(self) -> bool:
        """Whether some tiles reach beyond the product."""
        return not (self.whole_rows and self.whole_columns)

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.tile.subgroups * self.lanes

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Rows and columns of the sums of a subgroup, in matrices."""
        tile, (rows, columns, _) = self.tile, self.unit
        down, across = tile.subgroup_rows // rows, tile.subgroup_columns // columns
        return [(i, j) for i in range(down) for j in range(across)]
