"""What of a device's matrix units products use: one size of matrices, and tiles made of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from llmgpu.lm.ops.subgroup_attention_parts import AttentionTile, SubgroupAttention
from llmgpu.lm.ops.subgroup_matrix_tiling import MatrixTile

if TYPE_CHECKING:
    from llmgpu.gpu import Device

MATRIX_TILES = (
    MatrixTile(128, 128, 32, 64, 64),
    MatrixTile(128, 64, 32, 64, 32),
    MatrixTile(64, 64, 64, 32, 32),
    MatrixTile(32, 32, 32, 16, 16),
)
ATTENTION_TILES = (AttentionTile(64, 32, 16), AttentionTile(32, 32, 16))


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
    for unit in _units(device):
        tiles = tuple(tile for tile in MATRIX_TILES if _fits(tile, unit, device))
        if tiles:
            return MatrixUnits(unit, device.subgroup_size, tiles)
    return None


def attention_units(device: Device, head_dim: int, *, gradients: bool) -> SubgroupAttention | None:
    """Return how attention, or its gradients, is computed on matrix units; None: it can't be.

    Units are taken as in `matrix_units`.
    """
    threads = device.limits["max-compute-invocations-per-workgroup"]
    memory = device.limits["max-compute-workgroup-storage-size"]
    for unit, tile in product(_units(device), ATTENTION_TILES):
        made = SubgroupAttention(tile, unit, device.subgroup_size, head_dim)
        if made.fits and made.threads <= threads and made.memory(gradients=gradients) <= memory:
            return made
    return None


def trains_on_units(device: Device | None, head_dim: int) -> bool:
    """Whether matrix units compute all of a step: products, and attention of heads `head_dim` wide.

    device: None is the CPU, which has none.
    """
    return (
        device is not None
        and "shader-f16" in device.features
        and matrix_units(device) is not None
        and attention_units(device, head_dim, gradients=True) is not None
    )


def _units(device: Device) -> list[tuple[int, int, int]]:
    """Return the sizes of half-precision products with float32 sums, the largest first."""
    if not device.subgroup_size:
        return []
    shapes = [each for each in device.matrix_shapes if (each.operand, each.sum) == ("f16", "f32")]
    units = [(each.rows, each.columns, each.inner) for each in shapes]
    return sorted(units, key=lambda unit: (unit[0] * unit[1] * unit[2], unit), reverse=True)


def _fits(tile: MatrixTile, unit: tuple[int, int, int], device: Device) -> bool:
    threads, limits = tile.subgroups * device.subgroup_size, device.limits
    return (
        tile.fits(unit, threads)
        and threads <= limits["max-compute-invocations-per-workgroup"]
        and tile.memory(unit) <= limits["max-compute-workgroup-storage-size"]
    )
