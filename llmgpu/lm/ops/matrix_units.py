"""The matrix units of a device: the size of matrices that kernels multiply, and their tiles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from llmgpu.lm.ops.matrix_tiling import HALVES, MatrixTile, Unit

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

MATRIX_TILES = (
    MatrixTile(128, 128, 32, 64, 64),
    MatrixTile(96, 128, 32, 48, 64),
    MatrixTile(128, 64, 32, 64, 32),
    MatrixTile(64, 64, 64, 32, 32),
    MatrixTile(32, 32, 32, 16, 16),
)
# A tile for products whose factors are both contiguous along the inner dimension, or both along the
# other one. Other products are slower with it: docs/recorded/kernels/nvidia-h200-tiles.json.
WIDE_TILE = MatrixTile(128, 192, 64, 64, 48)
# A workgroup adds up at most this many columns of the gradients of keys and values, unless a head
# can't be divided into sets of whole matrices of both halves.
COLUMN_SET = 64


def _unit_settings(unit: Unit, lanes: int) -> dict[str, int]:
    """Return the settings of lm/matrix_units.wgsl, and the lanes of a subgroup."""
    names = ("unit_rows", "unit_columns", "unit_inner", "lanes")
    return dict(zip(names, (*unit, lanes), strict=True))


@dataclass(frozen=True)
class MatrixUnits:
    """The matrix units of a device, for products of matrices.

    lanes: threads of a subgroup. tiles: those of `MATRIX_TILES` that the device can compute.
    wide: WIDE_TILE, if the device can compute it.
    """

    unit: Unit
    lanes: int
    tiles: tuple[MatrixTile, ...]
    wide: tuple[MatrixTile, ...] = ()

    @property
    def square_tiles(self) -> tuple[MatrixTile, ...]:
        """The tiles of symmetric products, of which only half is computed."""
        return tuple(tile for tile in self.tiles if tile.rows == tile.columns)

    def settings(self, tile: MatrixTile) -> dict[str, int]:
        """Return the settings of a tile for lm/03_matrix_product_units.wgsl."""
        left, right = tile.vectors(self.unit)
        sizes = {"left_size": left, "right_size": right, "together": tile.together(self.unit)}
        return {**vars(tile), **sizes, **_unit_settings(self.unit, self.lanes)}


# Tiles of attention: rows, step and subgroup_rows of `AttentionUnits`. The first is the fastest:
# docs/recorded/kernels/nvidia-h100-attention.json.
ATTENTION_TILES = (128, 16, 32), (64, 32, 16), (32, 32, 16)


@dataclass(frozen=True)
class AttentionUnits:
    """The matrix units of a device, for attention, and the division of scores among subgroups.

    rows: number of queries of a workgroup. subgroup_rows: rows of each subgroup. step: number of
    keys that a workgroup loads at a time. In the kernel for the gradients of keys and values, keys
    and queries are exchanged.
    lanes: threads of a subgroup. head_dim: width of the heads.
    """

    rows: int
    step: int
    subgroup_rows: int
    unit: Unit
    lanes: int
    head_dim: int

    @property
    def threads(self) -> int:
        """Number of threads of a workgroup."""
        return self.rows // self.subgroup_rows * self.lanes

    @property
    def fits(self) -> bool:
        """Whether tile and heads consist of whole matrices, and threads share them evenly."""
        rows, columns, inner = self.unit
        # In the kernels of gradients, `row_threads` threads share a row of scores.
        row_threads = self.lanes // self.subgroup_rows
        return not (
            self.subgroup_rows % rows
            or rows % HALVES
            or self.rows % self.step
            or columns % HALVES
            or inner % HALVES
            or any(
                width % size for width in (self.step, self.head_dim) for size in (columns, inner)
            )
            or self.lanes % self.subgroup_rows
            or self.step % (HALVES * row_threads)
            or self.step // row_threads % inner
        )

    @property
    def column_sets(self) -> int:
        """Number of workgroups that share the columns of the gradients of keys and values.

        A set has whole matrices of both halves of a head, unless it has all columns.
        """
        width, pair = self.head_dim, 2 * self.unit[1]
        even = (sets for sets in range(1, width + 1) if width % (sets * pair) == 0)
        return next((n for n in even if width // n <= COLUMN_SET or width // n == pair), 1)

    @property
    def settings(self) -> dict[str, int]:
        """Settings of lm/05_attention_units.wgsl and of lm/10_attention_backward_*_units.wgsl."""
        tile = {"rows": self.rows, "step": self.step, "subgroup_rows": self.subgroup_rows}
        heads = {"head_dim": self.head_dim, "column_sets": self.column_sets}
        return {**tile, **_unit_settings(self.unit, self.lanes), **heads}

    def memory(self, *, gradients: bool) -> int:
        """Return the most bytes of workgroup memory of a kernel that computes scores."""
        own = 12 * self.step if gradients else self.rows * (2 * self.step + 16) + 4
        return self._shared + own

    @property
    def stored_memory(self) -> int:
        """Bytes of workgroup memory of lm/10_attention_backward_kv_stored_units.wgsl."""
        return self._shared + self.step * (4 * self.rows + 16)

    @property
    def _shared(self) -> int:
        """Bytes of workgroup memory for a step's rows of two inputs, and for scores."""
        inputs = 2 * self.step * (2 * self.head_dim + 16)
        return inputs + self.rows * (4 * self.step + 16)


def matrix_units(device: Device) -> MatrixUnits | None:
    """Return the matrix units that multiply half-precision matrices with float32 sums, or None.

    The largest matrix size of the device that divides a tile of `MATRIX_TILES` is chosen.
    """
    lanes = device.subgroup_size

    def fits(tile: MatrixTile, unit: Unit) -> bool:
        threads = tile.subgroups * lanes
        return tile.fits(unit, threads) and _holds(device, threads, tile.memory(unit))

    for unit in _units(device):
        tiles, wide = (
            tuple(tile for tile in each if fits(tile, unit))
            for each in (MATRIX_TILES, (WIDE_TILE,))
        )
        units = MatrixUnits(unit, lanes, tiles, wide)
        if units.square_tiles:
            return units
    return None


def attention_units(device: Device, head_dim: int, *, gradients: bool) -> AttentionUnits | None:
    """Return the matrix units that compute attention, or its gradients; None if there are none.

    The largest matrix size of the device that divides a tile of `ATTENTION_TILES` is chosen.
    """
    for unit, tile in product(_units(device), ATTENTION_TILES):
        made = AttentionUnits(*tile, unit, device.subgroup_size, head_dim)
        if made.fits and _holds(device, made.threads, made.memory(gradients=gradients)):
            return made
    return None


def trains_on_units(device: Device | None, head_dim: int) -> bool:
    """Whether matrix units compute both products and attention for heads `head_dim` wide.

    device: None is the CPU, which has no matrix units.
    """
    return (
        device is not None
        and "shader-f16" in device.features
        and matrix_units(device) is not None
        and attention_units(device, head_dim, gradients=True) is not None
    )


def _units(device: Device) -> list[Unit]:
    """Return the sizes of half-precision products with float32 sums, the largest first."""
    if not device.subgroup_size:
        return []
    shapes = [each for each in device.matrix_shapes if (each.operand, each.sum) == ("f16", "f32")]
    units = [(each.rows, each.columns, each.inner) for each in shapes]
    return sorted(units, key=lambda unit: (unit[0] * unit[1] * unit[2], unit), reverse=True)


def _holds(device: Device, threads: int, memory: int) -> bool:
    """Whether the device's limits allow a workgroup of `threads` threads and `memory` bytes."""
    return (
        threads <= device.limits["max-compute-invocations-per-workgroup"]
        and memory <= device.limits["max-compute-workgroup-storage-size"]
    )
