"""What of a device's matrix units products use: one size of matrices, and tiles made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgpu.lm.ops.subgroup_matrix_source import MatrixTile

if TYPE_CHECKING:
    from llmgpu.gpu import Device

MATRIX_TILES = (
    MatrixTile(128, 128, 32, 64, 64),
    MatrixTile(128, 64, 32, 64, 32),
    MatrixTile(64, 64, 64, 32, 32),
    MatrixTile(32, 32, 32, 16, 16),
)


@dataclass(frozen=True)
class MatrixUnits:
    """unit: rows, columns and inner dimension of a product. lanes: of a subgroup."""

    unit: tuple[int, int, int]
    lanes: int
    tiles: tuple[MatrixTile, ...]


def matrix_units(device: Device) -> MatrixUnits | None:
    """Return what multiplies half-precision matrices with float32 sums; None: nothing does.

    Of the products that the device lists the largest is taken which a tile can be made of.
    """
    if not device.subgroup_size:
        return None
    shapes = [each for each in device.matrix_shapes if (each.operand, each.sum) == ("f16", "f32")]
    units = [(each.rows, each.columns, each.inner) for each in shapes]
    for unit in sorted(units, key=lambda unit: (unit[0] * unit[1] * unit[2], unit), reverse=True):
        tiles = tuple(tile for tile in MATRIX_TILES if _fits(tile, unit, device))
        if tiles:
            return MatrixUnits(unit, device.subgroup_size, tiles)
    return None


def _fits(tile: MatrixTile, unit: tuple[int, int, int], device: Device) -> bool:
    threads, limits = tile.subgroups * device.subgroup_size, device.limits
    return (
        tile.fits(unit, threads)
        and threads <= limits["max-compute-invocations-per-workgroup"]
        and tile.memory(unit) <= limits["max-compute-workgroup-storage-size"]
    )
