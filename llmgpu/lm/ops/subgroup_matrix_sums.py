"""Writes the WGSL of what kernels on matrix units do with their sums.

Units store a matrix in pieces of 8 bytes a row and thread. So sums go by way of the factors' tiles
in workgroup memory, some matrices side by side, from which neighbours store neighbours: whole cache
lines, in vectors of 16 bytes where the product's lines allow it.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmgpu.lm.ops.subgroup_matrix_tiling import HALVES, SUMS, MatrixTile, SubgroupMatrixProduct

# What half precision does not hold, NaN too, becomes infinite: the overflow is to be seen.
TWO_HALVES = """fn two_halves(pair: vec2<f32>) -> u32 {
    return select(0x7c007c00u, pack2x16float(pair), all(abs(pair) < vec2<f32>(65520.0)));
}"""


def store_function(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the function that stores neighbours from a row and a column on, if they are inside."""
    if product.half:
        yield TWO_HALVES
    if product.aligned:
        yield from _store_vector(product)
    else:
        yield from _store_elements(product)


def start_sums(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the loads of what sums are added to, where matrices are loaded whole.

    They have a branch even where all are: without, products were measured to take 3 % longer.
    """
    if not product.aligned or not _addend(product):
        return
    yield f"    let whole = {_fits(product.tile)};"
    yield "    if (whole) {"
    for i, j in product.blocks:
        row, column = _corner(product, i, j)
        place = f"((part * dims.x + {row}) * dims.y + {column}) / {SUMS}u, dims.y / {SUMS}u"
        load = f"subgroupMatrixLoad<Sum, row_major>(&{_addend(product)}, {place})"
        yield f"    sums_{i}_{j} = {load};"
    yield "    }"


def store_sums(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the stores of matrices into workgroup memory, and from there of what is inside.

    If both tiles have room for sums, they take turns: a barrier is enough before what was stored is
    read, and by the next but one all have read it.
    """
    tile, (rows, columns, _) = product.tile, product.unit
    together, stride = tile.side_by_side(product.unit), tile.sum_stride(product.unit)
    size = rows * stride
    has_room = tile.vectors(product.unit)[1] >= tile.subgroups * size
    tiles = ("left_tile", "right_tile") if has_room else ("left_tile",)
    # The compiler can tell that this stays inside.
    yield f"    let own_sums = subgroup % {tile.subgroups}u * {size}u;"
    for turn, (i, j) in enumerate(product.blocks[::together]):
        if turn and len(tiles) == 1:
            yield "    workgroupBarrier();"
        name = tiles[turn % len(tiles)]
        for k in range(together):
            place = f"&{name}, own_sums + {k * columns // SUMS}u, sums_{i}_{j + k}, {stride}u"
            yield f"    subgroupMatrixStore<row_major>({place});"
        yield "    workgroupBarrier();"
        yield from _store_lines(product, name, _corner(product, i, j), together * columns)


def _store_lines(
    product: SubgroupMatrixProduct, name: str, corner: tuple[str, str], width: int
) -> Iterator[str]:
    """Write the stores of rows of `width` sums that are in a tile."""
    row, column = corner
    at_once = HALVES if product.half and product.aligned else SUMS
    line = width // at_once
    pieces, stride = product.unit[0] * line, product.tile.sum_stride(product.unit)
    yield f"    for (var n = 0u; n < {-(-pieces // product.lanes)}u; n++) {{"
    yield f"        let v = lane + n * {product.lanes}u;"
    if pieces % product.lanes:
        yield f"        if (v >= {pieces}u) {{ break; }}"
    vector = f"v % {line}u * {at_once // SUMS}u"
    yield f"        let first = own_sums + v / {line}u * {stride}u + {vector};"
    sums = [f"bitcast<vec4<f32>>({name}[first + {k}u])" for k in range(at_once // SUMS)]
    place = f"part, {row} + v / {line}u, {column} + v % {line}u * {at_once}u"
    late = ["whole"] if _adds_late(product) else []
    yield f"        store({', '.join([place, *sums, *late])});"
    yield "    }"


def _store_vector(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the function for lines that are multiples of 16 bytes."""
    sums = "low: vec4<f32>, high: vec4<f32>" if product.half else "sums: vec4<f32>"
    late = ", whole: bool" if _adds_late(product) else ""
    yield f"fn store(part: u32, row: u32, column: u32, {sums}{late}) {{"
    if product.edges:
        yield "    if (row >= dims.x || column >= dims.y) {"
        yield "        return;"
        yield "    }"
    at_once = HALVES if product.half else SUMS
    yield f"    let place = ((part * dims.x + row) * dims.y + column) / {at_once}u;"
    if product.half:
        pairs = (f"two_halves({four})" for four in ("low.xy", "low.zw", "high.xy", "high.zw"))
        yield f"    product[place] = vec4<u32>({', '.join(pairs)});"
    elif late:
        yield "    if (whole) {"
        yield "        product[place] = sums;"
        yield "    } else {"
        yield f"        product[place] = sums + {_addend(product)}[place];"
        yield "    }"
    else:
        yield "    product[place] = sums;"
    yield "}"


def _store_elements(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the function for other lines, which stores numbers, or pairs of halves, one by one."""
    yield "fn store(part: u32, row: u32, column: u32, sums: vec4<f32>) {"
    yield "    if (row >= dims.x) {"
    yield "        return;"
    yield "    }"
    yield "    let first = (part * dims.x + row) * dims.y + column;"
    step = 2 if product.half else 1
    for j in range(0, SUMS, step):
        yield f"    if (column + {j}u < dims.y) {{"
        if product.half:
            pair = f"two_halves(vec2<f32>(sums[{j}], sums[{j + 1}]))"
            yield f"        product[(first + {j}u) / 2u] = {pair};"
        else:
            added = f" + {_addend(product)}[first + {j}u]" if _addend(product) else ""
            yield f"        product[first + {j}u] = sums[{j}]{added};"
        yield "    }"
    yield "}"


def _addend(product: SubgroupMatrixProduct) -> str:
    """Return the name of what is added to sums, if anything is."""
    return "product" if product.accumulate else "residual" if product.residual else ""


def _adds_late(product: SubgroupMatrixProduct) -> bool:
    """Return whether what is added is still missing where tiles reach beyond the product."""
    return product.aligned and product.edges and bool(_addend(product))


def _corner(product: SubgroupMatrixProduct, i: int, j: int) -> tuple[str, str]:
    rows, columns, _ = product.unit
    return f"row0 + own_row + {i * rows}u", f"column0 + own_column + {j * columns}u"


def _fits(tile: MatrixTile) -> str:
    """Return whether a workgroup's tile is all inside the product."""
    return f"row0 + {tile.rows}u <= dims.x && column0 + {tile.columns}u <= dims.y"
