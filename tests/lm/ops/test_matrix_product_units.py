"""Matrix products on matrix units. Without units, loops compute the products of small matrices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import gcd
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.gpu.adapters import load_driver
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose
from llmgpu.lm.ops import linear
from llmgpu.lm.ops.matrix_tiling import SOFTWARE_TILES, TILES, MatrixTile, Tile, Tiling
from llmgpu.lm.ops.matrix_units import MATRIX_TILES, WIDE_TILE, MatrixUnits, matrix_units
from llmgpu.lm.ops.recording import dims
from llmgpu.lm.ops.tensor import Tensor
from tests.harness.kernels import kernel_of
from tests.reference.lm.subgroup_matrices import written_out

ALL_TILES = (*MATRIX_TILES, WIDE_TILE)
SMALL = MatrixTile(16, 32, 16, 8, 16)
NAMES = {
    (False, True): "linear",
    (False, False): "backward_input",
    (True, False): "backward_weight",
}


@dataclass(frozen=True)
class Product:
    """A kernel of lm/03_matrix_product_units.wgsl; inner: inner dimension of its product."""

    tile: MatrixTile
    units: MatrixUnits
    settings: dict[str, int]
    inner: int

    @cached_property
    def text(self) -> str:
        return compose("lm/03_matrix_product_units.wgsl", self.settings).text

    @cached_property
    def in_pairs(self) -> Product:
        """The same product, with lines loaded for two steps at once if `inner` allows it."""
        even = self.inner % (2 * self.tile.inner) == 0
        return replace(self, settings={**self.settings, "long_sums": even})

    @property
    def loads_pairs(self) -> bool:
        return "is_low" in self.text


def product_of(
    rows: int,
    columns: int,
    inner: int,
    transposed: tuple[bool, bool],
    *,
    tile: MatrixTile = SMALL,
    unit: tuple[int, int, int] = (8, 8, 8),
    lanes: int = 1,
    **changes: bool,
) -> Product:
    lines = (rows if transposed[0] else inner, inner if transposed[1] else columns)
    units = MatrixUnits(unit, lanes, (tile,))
    settings: dict[str, Any] = {
        "left_contiguous": not transposed[0],
        "left_vectors": lines[0] % 8 == 0,
        "right_contiguous": transposed[1],
        "right_vectors": lines[1] % 8 == 0,
        "whole_rows": rows % tile.rows == 0,
        "whole_columns": columns % tile.columns == 0,
        "aligned": columns % (8 if changes.get("half") else 4) == 0,
        "whole_inner": inner % tile.inner == 0,
        **dict.fromkeys(("accumulate", "residual", "half", "stacked", "symmetric"), False),
        **changes,
    }
    return Product(tile, units, {**units.settings(tile), **settings}, inner)


def turned(matrices: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(matrices.transpose(0, 2, 1))


@np.errstate(under="ignore")
def run(
    device: Device,
    made: Product,
    sizes: tuple[int, int, int],
    part: int = 0,
    stack: int = 1,
) -> None:
    """Compute a product into a poisoned buffer with room around it; compare it with float64.

    part: terms of each part of the inner dimension; 0: all. stack: number of products.
    """
    rows, columns, inner = sizes
    part = part or inner
    given = made.settings
    random = np.random.default_rng(rows * columns + inner)
    left, right = (
        random.standard_normal((stack, *s)).astype(np.float16)
        for s in ((rows, inner), (inner, columns))
    )
    if given["symmetric"]:
        right = turned(left)
    addend = random.standard_normal((rows, columns)).astype(np.float32)
    parts = stack if given["stacked"] else -(-inner // part)
    kind = np.float16 if given["half"] else np.float32
    room = np.full((parts * rows * columns + 64,), 6e4, kind)
    if given["accumulate"]:
        room[: rows * columns] = addend.reshape(-1)
    buffers = {
        "left": device.upload("left", left if given["left_contiguous"] else turned(left)),
        "right": device.upload("right", turned(right) if given["right_contiguous"] else right),
        "product": device.upload("product", room),
        "dims": device.create_buffer("dims", 16),
    }
    device.write(buffers["dims"], dims(rows, columns, inner, stack if given["stacked"] else part))
    if given["residual"]:
        buffers["residual"] = device.upload("residual", addend)
    text = written_out(made.text) if made.units.lanes == 1 else made.text
    if "enable f16" in text and "shader-f16" not in device.features:
        pytest.skip("the adapter has no half-precision numbers")
    kernel = kernel_of(device, text)
    commands = device.record()
    tiles = made.tile.count(rows, columns)
    if given["symmetric"]:
        assert rows == columns and made.tile.rows == made.tile.columns
        across = -(-rows // made.tile.rows)
        tiles = sum(range(1, across + 1))
    commands.dispatch(kernel.bind(**buffers), tiles * parts)
    commands.submit()
    found = device.read(buffers["product"], len(room), kind)
    assert (found[parts * rows * columns :] == kind(6e4)).all()
    sums = found[: parts * rows * columns].reshape(parts, rows, columns)
    for k in range(parts):
        own, terms = (k, slice(None)) if given["stacked"] else (0, slice(k * part, (k + 1) * part))
        expected = left[own, :, terms].astype(np.float64) @ right[own, terms]
        if given["accumulate"] or given["residual"]:
            expected += addend
        rtol = 1e-3 if given["half"] else 1e-4
        np.testing.assert_allclose(sums[k], expected, rtol=rtol, atol=1e-4 * np.sqrt(inner))


@pytest.mark.slow  # software drivers compile these for seconds
@pytest.mark.parametrize("transposed", NAMES, ids=NAMES.values())
@pytest.mark.parametrize(
    "sizes", [(16, 32, 32), (40, 48, 24), (9, 5, 11), (33, 36, 50), (8, 64, 3)]
)
def test_products_are_those_of_float64(
    device: Device, sizes: tuple[int, int, int], transposed: tuple[bool, bool]
) -> None:
    run(device, product_of(*sizes, transposed), sizes)


@pytest.mark.parametrize("changes", [{}, {"accumulate": True}, {"half": True}], ids=str)
def test_lines_are_loaded_for_two_steps(device: Device, changes: dict[str, bool]) -> None:
    sizes, tile, unit = (64, 128, 192), MatrixTile(32, 64, 32, 4, 8), (4, 8, 8)
    made = product_of(*sizes, (False, True), tile=tile, unit=unit, **changes).in_pairs
    assert made.loads_pairs
    run(device, made, sizes)


@pytest.mark.parametrize(
    ("sizes", "transposed", "changes"),
    [
        ((64, 128, 192), (False, False), {}),
        ((64, 128, 192), (True, True), {}),
        ((60, 128, 192), (False, True), {}),
        ((64, 120, 192), (False, True), {}),
        ((64, 128, 200), (False, True), {}),
        ((64, 128, 192), (False, True), {"stacked": True}),
        ((64, 128, 192), (False, True), {"tile": MatrixTile(64, 64, 64, 8, 8)}),
        ((64, 128, 192), (False, True), {"tile": MatrixTile(64, 64, 32, 16, 16)}),
    ],
)
def test_only_whole_lines_are_loaded_for_two_steps(
    sizes: tuple[int, int, int], transposed: tuple[bool, bool], changes: dict[str, Any]
) -> None:
    tile = {"tile": MatrixTile(64, 64, 32, 8, 8)}
    assert not product_of(*sizes, transposed, **{**tile, **changes}).in_pairs.loads_pairs


@pytest.mark.slow
@pytest.mark.parametrize("transposed", NAMES, ids=NAMES.values())
def test_neighbours_store_into_lines_apart(device: Device, transposed: tuple[bool, bool]) -> None:
    tile = MatrixTile(32, 32, 16, 8, 8)
    assert "% 4u * 2u" in product_of(32, 64, 40, (False, True), tile=tile).text
    run(device, product_of(32, 64, 40, transposed, tile=tile), (32, 64, 40))


def test_a_product_with_edges_is_that_of_float64(device: Device) -> None:
    tile = MatrixTile(8, 16, 8, 8, 8)
    run(device, product_of(9, 20, 11, (False, True), tile=tile), (9, 20, 11))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(16, 32, 32), (40, 48, 24), (9, 5, 11)])
@pytest.mark.parametrize("added", ["accumulate", "residual"])
def test_another_matrix_is_added(device: Device, sizes: tuple[int, int, int], added: str) -> None:
    run(device, product_of(*sizes, (False, True), **{added: True}), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(16, 32, 32), (40, 48, 24), (9, 6, 11)])
def test_a_product_is_rounded_to_half_precision(
    device: Device, sizes: tuple[int, int, int]
) -> None:
    run(device, product_of(*sizes, (False, True), half=True), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [64, 72])
def test_parts_of_the_inner_dimension_are_summed_apart(device: Device, inner: int) -> None:
    sizes = (24, 32, inner)
    run(device, product_of(*sizes, (True, False)), sizes, part=32)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", NAMES, ids=NAMES.values())
@pytest.mark.parametrize("sizes", [(16, 32, 32), (24, 48, 24), (9, 6, 11)])
@pytest.mark.parametrize("half", [False, True])
def test_products_of_stacks(
    device: Device, sizes: tuple[int, int, int], transposed: tuple[bool, bool], half: bool
) -> None:
    run(device, product_of(*sizes, transposed, stacked=True, half=half), sizes, stack=3)


@pytest.mark.parametrize("transposed", [(False, True), (True, False)], ids=str)
@pytest.mark.parametrize("size", [48, 41, 12])
@pytest.mark.parametrize("half", [False, True])
def test_symmetric_products(
    device: Device, size: int, transposed: tuple[bool, bool], half: bool
) -> None:
    if half and size % 2:
        pytest.skip("half-precision products have even columns")
    sizes, tile = (size, size, 24), MatrixTile(16, 16, 8, 8, 16)
    changes = {"symmetric": True, "stacked": True, "half": half, "tile": tile}
    run(device, product_of(*sizes, transposed, **changes), sizes, stack=2)


def test_a_matrix_times_its_transpose_is_symmetric() -> None:
    def is_symmetric(left: Tensor, right: Tensor, **changes: bool) -> bool:
        out = Tensor("", (256, 256), np.dtype(np.float32), None)
        return linear.Product("multiply", left, right, out, **changes).is_symmetric

    one, other = (Tensor("", (256, 256), np.dtype(np.float16), None) for _ in range(2))
    assert is_symmetric(one, one, right_transposed=True)
    assert is_symmetric(one, one, left_transposed=True)
    assert not is_symmetric(one, one)
    assert not is_symmetric(one, other, right_transposed=True)
    assert not is_symmetric(one, one, right_transposed=True, accumulate=True)


@pytest.mark.parametrize("transposed", NAMES, ids=NAMES.values())
def test_a_round_stores_what_it_loads(transposed: tuple[bool, bool]) -> None:
    text = product_of(32, 64, 64, transposed).text
    body = text[text.index("for (var term") :]
    body = body[: body.index("    subgroupMatrixStore")]
    places = [
        *(body.index(f"{side}_0 = load_{side}(") for side in ("left", "right")),
        body.index("subgroupMatrixMultiplyAccumulate"),
        body.rindex("subgroupMatrixMultiplyAccumulate"),
        body.index("workgroupBarrier"),
        *(body.index(f"] = {side}_0;") for side in ("left", "right")),
        body.rindex("workgroupBarrier"),
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_sums_go_by_way_of_the_factors_tiles(tile: MatrixTile) -> None:
    for transposed in NAMES:
        changes = {"tile": tile, "unit": (16, 16, 16), "lanes": 32, "half": True}
        text = product_of(130, 78, 45, transposed, **changes).text
        sizes = [int(size) for size in re.findall(r"_tile: array<vec4<u32>, (\d+)>", text)]
        line = gcd(tile.subgroup_columns, 32) // 4
        assert len(sizes) == 2 and sizes[0] >= tile.subgroups * 16 * (line + 2)
        assert 16 * sum(sizes) == tile.memory((16, 16, 16))
        stores = re.findall(r"subgroupMatrixStore<row_major>\(&(\w+)_tile", text)
        turns = ["left", "right"] if sizes[1] >= sizes[0] else ["left"]
        expected = [turns[k // (line // 4) % len(turns)] for k in range(len(stores))]
        assert stores == expected


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_each_multiplication_shares_a_matrix_with_the_one_before_it(tile: MatrixTile) -> None:
    made = product_of(256, 256, tile.inner, (False, True), tile=tile, unit=(16, 16, 16), lanes=32)
    found = re.findall(r"MultiplyAccumulate\(l(\d), r(\d)", made.text)
    steps = tile.inner // 16
    blocks = product(range(tile.subgroup_rows // 16), range(tile.subgroup_columns // 16))
    assert sorted(found) == sorted([(str(i), str(j)) for i, j in blocks] * steps)
    step = found[: len(found) // steps]
    assert found == step * steps
    assert all((a == c) != (b == d) for (a, b), (c, d) in pairwise(step))


@pytest.mark.parametrize(
    ("inner", "parts", "tile", "pairs"),
    [
        (768, 1, 0, True),
        (704, 1, 0, False),
        (800, 1, 0, False),
        (4096, 2, 0, False),
        (2048, 1, 1, False),
    ],
)
def test_long_sums_load_lines_for_two_steps(inner: int, parts: int, tile: int, pairs: bool) -> None:
    left, right, out = (
        Tensor("", shape, np.dtype(kind), None)
        for shape, kind in (((256, inner), "f2"), ((256, inner), "f2"), ((256, 256), "f4"))
    )
    tiling = Tiling(MATRIX_TILES[tile], inner // parts, parts)
    product = linear.Product("linear", left, right, out, right_transposed=True)
    units = MatrixUnits((16, 16, 16), 32, MATRIX_TILES)
    settings = linear._settings(product, tiling, units)
    assert settings["long_sums"] == pairs
    loads_pairs = "is_low" in compose("lm/03_matrix_product_units.wgsl", settings).text
    assert loads_pairs == pairs


@pytest.mark.parametrize("tile", ALL_TILES, ids=str)
def test_tint_compiles_every_kind(null_device: Any, tile: MatrixTile) -> None:
    for transposed in NAMES:
        for sizes in ((256, 256, 256), (130, 77, 45)):
            for added in (
                {},
                {"accumulate": True},
                {"residual": True},
                {"half": True},
                {"stacked": True},
                {"stacked": True, "symmetric": True},
                {"stacked": True, "symmetric": True, "half": True},
            ):
                changes = {"unit": (16, 16, 16), "lanes": 32, **added}
                made = product_of(*sizes, transposed, tile=tile, **changes)
                for each in (made, made.in_pairs) if made.in_pairs.loads_pairs else (made,):
                    load_driver("dawn").create_shader_module(null_device, each.text, "product")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("tile", (*TILES, *SOFTWARE_TILES), ids=str)
def test_tint_compiles_the_products_of_float32_kernels(
    null_device: Any, tile: Tile, half: bool
) -> None:
    for left, right, added in product((False, True), repeat=3):
        for vectors, whole in ((True, True), (False, False)):
            settings = {
                **vars(tile),
                "left_contiguous": left,
                "right_contiguous": right,
                **dict.fromkeys(("left_half", "right_half"), half),
                **dict.fromkeys(("left_vectors", "right_vectors", "vectors"), vectors),
                "whole_inner": whole,
                **dict.fromkeys(("accumulate", "stacked"), added),
                "residual": not added,
            }
            text = compose("lm/03_matrix_product.wgsl", settings).text
            load_driver("dawn").create_shader_module(null_device, text, "product")


@pytest.mark.parametrize("sizes", [(256, 384, 320), (200, 136, 72), (130, 77, 45), (9, 50, 3)])
@pytest.mark.parametrize(
    "added",
    [{}, {"accumulate": True}, {"residual": True}, {"half": True}, {"stacked": True}],
    ids=str,
)
def test_matrix_units_compute_what_float64_does(
    dawn_device: Device, sizes: tuple[int, int, int], added: dict[str, bool]
) -> None:
    units = matrix_units(dawn_device)
    if units is None:
        pytest.skip("Dawn's adapter has no matrix units")
    if "half" in added and sizes[1] % 2:
        pytest.skip("half-precision products have even columns")
    for transposed in NAMES:
        for tile in units.tiles + units.wide:
            changes = {"tile": tile, "unit": units.unit, "lanes": units.lanes, **added}
            made = product_of(*sizes, transposed, **changes)
            run(dawn_device, made, sizes, stack=3 if made.settings["stacked"] else 1)
            if made.in_pairs.loads_pairs:
                run(dawn_device, made.in_pairs, sizes)


@pytest.mark.parametrize("size", [384, 200, 77])
@pytest.mark.parametrize("half", [False, True])
def test_matrix_units_compute_symmetric_products(
    dawn_device: Device, size: int, half: bool
) -> None:
    units = matrix_units(dawn_device)
    if units is None:
        pytest.skip("Dawn's adapter has no matrix units")
    if half and size % 2:
        pytest.skip("half-precision products have even columns")
    sizes = (size, size, 320)
    changes = {"stacked": True, "symmetric": True, "half": half}
    for transposed in ((False, True), (True, False)):
        for tile in units.square_tiles:
            own = {"tile": tile, "unit": units.unit, "lanes": units.lanes}
            run(dawn_device, product_of(*sizes, transposed, **own, **changes), sizes, stack=3)
