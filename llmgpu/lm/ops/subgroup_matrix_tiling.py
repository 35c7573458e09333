"""Tiles of matrix products on matrix units, and what a kernel of them is made for."""

from __future__ import annotations

from dataclasses import dataclass

PADDING = 8  # halves after each line in workgroup memory
HALVES = 8  # in a vector of 16 bytes


@dataclass(frozen=True)
class MatrixTile:
    """The block of a product that a workgroup computes on matrix units.

    rows, columns: of the block. inner: terms of its sums that are in workgroup memory at once.
    subgroup_rows, subgroup_columns: of the part that a subgroup computes.
    """

    rows: int
    columns: int
    inner: int
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

    def memory(self, unit: tuple[int, int, int]) -> int:
        """Return the bytes of workgroup memory that a kernel takes at most."""
        sums = 4 * self.subgroups * unit[0] * unit[1]  # by way of either factor's tile
        left = max(self.rows * (self.inner + PADDING), self.inner * (self.rows + PADDING))
        right = max(self.columns * (self.inner + PADDING), self.inner * (self.columns + PADDING))
        return max(2 * left, sums) + max(2 * right, sums)

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

    def count(self, rows: int, columns: int) -> int:
        """Return how many tiles cover a product."""
        return -(-rows // self.rows) * -(-columns // self.columns)


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
    tile's. aligned: the product's columns are a multiple of 4, so that the units can store it.
    accumulate: adds to what is in the product. residual: adds another matrix. half: the product is
    in half precision, two numbers per word; its columns are even, and nothing is added. stacked:
    products of matrices in stacks.
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
