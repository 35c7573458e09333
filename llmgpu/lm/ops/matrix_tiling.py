"""How a matrix product is divided: tiles of workgroups and threads, parts of the inner sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

MAX_INNER = 8_192  # of one part: rounding errors of a running sum grow with its length
MAX_PARTS = 32
PROCESSORS = 132  # of a large device; smaller ones lose little by more workgroups than they need


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
    @abstractmethod
    def resident(self) -> int:
        """Workgroups that a processor needs to be busy."""

    @property
    @abstractmethod
    def term_cost(self) -> float:
        """Time to add a term to each element, see `Tile.term_cost`."""

    def count(self, rows: int, columns: int) -> int:
        """Return how many tiles cover a product."""
        return -(-rows // self.rows) * -(-columns // self.columns)


@dataclass(frozen=True)
class Tile(AnyTile):
    """A tile of float32 kernels.

    thread_rows, thread_columns: the part of each thread. These and the block's sizes are multiples
        of 4, and so is the number of elements that each thread loads of either factor for a step.
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
        """Threads of a workgroup."""
        return self.threads_down * self.threads_across

    @property
    def resident(self) -> int:
        """Workgroups that a processor needs to be busy."""
        return 1

    @property
    def term_cost(self) -> float:
        """Time to add a term to each element, with 1 for 64 elements a thread and 128 threads.

        Loads of workgroup memory take most of it: one for `thread_rows` multiplications of the
        right factor, one for `thread_columns` of the left one.
        """
        loads = 1 / self.thread_rows + 1 / self.thread_columns
        return self.rows * self.columns * (0.3 + 2.8 * loads) / (64 * 128)


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
