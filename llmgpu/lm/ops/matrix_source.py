"""Writes the WGSL of matrix products, whose sums must be named variables.

A thread computes a block of the product, and all of the block's sums are to stay in registers. A
local array that is indexed in a loop may live in memory instead, which costs a factor of ten, so
everything that touches the sums is written out here: one variable a row and four columns. What is
computed is said in wgsl/lm/03_linear.wgsl.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llmgpu.lm.ops.matrix_tiling import Tile

_WARP_ROWS, _WARP_COLUMNS = 4, 8  # neighbouring threads share what they load of both factors


@dataclass(frozen=True)
class Factor:
    """How the left factor (rows, inner) or the right one (inner, columns) lies in memory.

    inner_contiguous: whether neighbours in memory follow one another along the inner dimension.
    half: elements are half-precision numbers.
    vectors: four neighbours are loaded at once; their dimension is a multiple of 4.
    """

    inner_contiguous: bool
    half: bool
    vectors: bool

    @property
    def element(self) -> str:
        """What the binding is an array of."""
        scalar = "f16" if self.half else "f32"
        return f"vec4<{scalar}>" if self.vectors else scalar


@dataclass(frozen=True)
class MatrixProduct:
    """A kernel.

    name: its entry point.
    vectors: whether four neighbours of the product are stored at once.
    whole_rows, whole_columns, whole_inner: whether these dimensions are multiples of the tile's,
        so that nothing has to be compared with them.
    accumulate: adds to what is in the product. residual: adds another matrix.
    """

    name: str
    tile: Tile
    left: Factor
    right: Factor
    vectors: bool
    whole_rows: bool
    whole_columns: bool
    whole_inner: bool
    accumulate: bool
    residual: bool


@cache
def matrix_product_source(product: MatrixProduct) -> str:
    """Return the text of a kernel."""
    lines = [
        *_bindings(product),
        *_workgroup_memory(product.tile),
        *_load(product, "left"),
        *_load(product, "right"),
        *_store(product),
        *_entry_point(product),
    ]
    return "\n".join(lines) + "\n"


def _bindings(product: MatrixProduct) -> Iterator[str]:
    if product.left.half or product.right.half:
        yield "enable f16;"
    out = "vec4<f32>" if product.vectors else "f32"
    yield f"@group(0) @binding(0) var<storage, read> left: array<{product.left.element}>;"
    yield f"@group(0) @binding(1) var<storage, read> right: array<{product.right.element}>;"
    yield f"@group(0) @binding(2) var<storage, read_write> product: array<{out}>;"
    # Rows, columns, inner dimension, and how many of its terms a part adds.
    yield "@group(0) @binding(3) var<uniform> dims: vec4<u32>;"
    if product.residual:
        yield f"@group(0) @binding(4) var<storage, read> residual: array<{out}>;"


def _workgroup_memory(tile: Tile) -> Iterator[str]:
    # stage, term / 4, term % 4, element / 4: whatever is indexed by a number needs no bounds check.
    for side, width in (("left", tile.rows), ("right", tile.columns)):
        quads = (width + tile.padding) // 4
        kind = f"array<array<array<vec4<f32>, {quads}>, 4>, {tile.inner // 4}>"
        yield f"var<workgroup> {side}_tile: array<{kind}, {tile.stages}>;"


def _load(product: MatrixProduct, side: str) -> Iterator[str]:
    """Write the function that loads four neighbours of a factor, zeros beyond its last term.

    Rows and columns beyond the product's are loaded from inside: nobody stores what comes of them.
    """
    factor = product.left if side == "left" else product.right
    outer = "x" if side == "left" else "y"
    row, column = (outer, "z") if factor.inner_contiguous else ("z", outer)
    yield f"fn load_{side}(row: u32, column: u32) -> vec4<f32> {{"
    yield f"    let start = min(row, dims.{row} - 1u) * dims.{column};"
    if factor.vectors:
        yield f"    let index = (start + min(column, dims.{column} - 4u)) / 4u;"
        yield f"    let loaded = vec4<f32>({side}[index]);"
    else:
        for j in range(4):
            yield f"    let index_{j} = start + min(column + {j}u, dims.{column} - 1u);"
        loads = ", ".join(f"f32({side}[index_{j}])" for j in range(4))
        yield f"    let loaded = vec4<f32>({loads});"
    if product.whole_inner:
        yield "    return loaded;"
    elif factor.inner_contiguous:
        inside = "column + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(dims.z)"
        yield f"    return select(vec4<f32>(), loaded, {inside});"
    else:
        yield "    return select(vec4<f32>(), loaded, row < dims.z);"
    yield "}"


def _store(product: MatrixProduct) -> Iterator[str]:
    """Write the function that stores four neighbours of the product."""
    yield "fn store(part: u32, row: u32, column: u32, sums: vec4<f32>) {"
    yield "    let start = part * dims.x * dims.y + row * dims.y + column;"
    inside = [] if product.whole_rows else ["row < dims.x"]
    if product.vectors:
        inside += [] if product.whole_columns else ["column < dims.y"]
        yield from _store_one(product, inside, "start / 4u", "sums")
    else:
        for j, component in enumerate("xyzw"):
            here = [*inside, f"column + {j}u < dims.y"]
            yield from _store_one(product, here, f"start + {j}u", f"sums.{component}")
    yield "}"


def _store_one(product: MatrixProduct, inside: list[str], index: str, value: str) -> Iterator[str]:
    value += f" + product[{index}]" if product.accumulate else ""
    value += f" + residual[{index}]" if product.residual else ""
    yield f"    if ({' && '.join(inside) or 'true'}) {{ product[{index}] = {value}; }}"


def _entry_point(product: MatrixProduct) -> Iterator[str]:
    tile = product.tile
    yield f"@compute @workgroup_size({tile.threads})"
    yield f"fn {product.name}("
    yield "    @builtin(workgroup_id) workgroup: vec3<u32>,"
    yield "    @builtin(num_workgroups) workgroups: vec3<u32>,"
    yield "    @builtin(local_invocation_index) local_index: u32,"
    yield ") {"
    yield from _place(tile)
    # The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    yield "if (part < parts) {"
    yield from _sums(tile)
    yield "    let first = part * dims.w;"
    yield "    let end = min(first + dims.w, dims.z);"
    yield "    var stage = 0u;"
    yield from _load_tiles(product, "first", "let", "")
    yield from _store_tiles(product, "0u", "")
    yield "    workgroupBarrier();"
    yield f"    for (var term = first; term < end; term += {tile.inner}u) {{"
    yield f"        let next = term + {tile.inner}u;"
    yield from _step(product)
    yield "    }"
    yield from _store_sums(tile)
    yield "}"
    yield "}"


def _place(tile: Tile) -> Iterator[str]:
    """Write which block of the product is this workgroup's, and which of that this thread's.

    Workgroups that follow one another go along the dimension with fewer tiles, so that what they
    load of the other factor is shared.
    """
    yield "    let group = workgroup.y * workgroups.x + workgroup.x;"
    yield f"    let tile_rows = (dims.x + {tile.rows - 1}u) / {tile.rows}u;"
    yield f"    let tile_columns = (dims.y + {tile.columns - 1}u) / {tile.columns}u;"
    yield "    let parts = (dims.z + dims.w - 1u) / dims.w;"
    yield "    let part = group / (tile_rows * tile_columns);"
    yield "    let place = group % (tile_rows * tile_columns);"
    yield "    let down = tile_rows < tile_columns;"
    yield "    let tile_row = select(place / tile_columns, place % tile_rows, down);"
    yield "    let tile_column = select(place % tile_columns, place / tile_rows, down);"
    yield f"    let row0 = tile_row * {tile.rows}u;"
    yield f"    let column0 = tile_column * {tile.columns}u;"
    across, down = tile.columns // tile.thread_columns, tile.rows // tile.thread_rows
    if across % _WARP_COLUMNS or down % _WARP_ROWS:
        yield f"    let thread_row = local_index / {across}u;"
        yield f"    let thread_column = local_index % {across}u;"
        return
    warp, lane = (
        f"local_index / {_WARP_ROWS * _WARP_COLUMNS}u",
        f"local_index % {_WARP_ROWS * _WARP_COLUMNS}u",
    )
    warps = across // _WARP_COLUMNS
    yield f"    let warp = {warp};"
    yield f"    let lane = {lane};"
    yield f"    let thread_row = warp / {warps}u * {_WARP_ROWS}u + lane / {_WARP_COLUMNS}u;"
    yield f"    let thread_column = warp % {warps}u * {_WARP_COLUMNS}u + lane % {_WARP_COLUMNS}u;"


def _sums(tile: Tile) -> Iterator[str]:
    for i in range(tile.thread_rows):
        for j in range(tile.thread_columns // 4):
            yield f"    var sums_{i}_{j} = vec4<f32>();"


def _step(product: MatrixProduct) -> Iterator[str]:
    """Write a step of the loop: load what comes next, add what is there, store what was loaded."""
    tile = product.tile
    for side, width in (("left", tile.rows), ("right", tile.columns)):
        for q in range(_loads(tile, width)):
            yield f"        var {side}_{q} = vec4<f32>();"
    yield "        if (next < end) {"
    yield from _load_tiles(product, "next", "", "        ")
    yield "        }"
    for term in range(tile.inner):
        yield from _add_term(tile, term)
    if tile.stages == 1:
        yield "        workgroupBarrier();"
    else:
        yield "        stage ^= 1u;"
    yield "        if (next < end) {"
    yield from _store_tiles(product, "stage", "        ")
    yield "        }"
    yield "        workgroupBarrier();"


def _loads(tile: Tile, width: int) -> int:
    """Return how many times each thread loads four elements of a tile."""
    return width * tile.inner // 4 // tile.threads


def _load_tiles(product: MatrixProduct, term: str, declare: str, indent: str) -> Iterator[str]:
    """Write the loads of both tiles from `term` on into variables left_Q and right_Q."""
    tile = product.tile
    sides = (
        ("left", product.left, "row0", tile.rows),
        ("right", product.right, "column0", tile.columns),
    )
    for side, factor, outer0, width in sides:
        for q in range(_loads(tile, width)):
            outer, inner = _element(tile, factor, width, q)
            if factor.inner_contiguous:
                place = f"{outer0} + {outer}, {term} + 4u * ({inner})"
            else:
                place = f"{term} + {inner}, {outer0} + 4u * ({outer})"
            yield f"    {indent}{declare} {side}_{q} = load_{side}({place});"


def _element(tile: Tile, factor: Factor, width: int, q: int) -> tuple[str, str]:
    """Return which outer and inner index the thread's load `q` has; the contiguous one in fours."""
    number = f"(local_index + {q * tile.threads}u)"
    if factor.inner_contiguous:
        return f"{number} / {tile.inner // 4}u", f"{number} % {tile.inner // 4}u"
    return f"{number} % {width // 4}u", f"{number} / {width // 4}u"


def _store_tiles(product: MatrixProduct, stage: str, indent: str) -> Iterator[str]:
    """Write the stores of left_Q and right_Q into workgroup memory, as (term, element)."""
    tile = product.tile
    for side, factor, width in (
        ("left", product.left, tile.rows),
        ("right", product.right, tile.columns),
    ):
        for q in range(_loads(tile, width)):
            outer, inner = _element(tile, factor, width, q)
            target = f"{side}_tile[{stage}]"
            if factor.inner_contiguous:
                for j, component in enumerate("xyzw"):
                    element = f"[{inner}][{j}][({outer}) / 4u][({outer}) % 4u]"
                    yield f"    {indent}{target}{element} = {side}_{q}.{component};"
            else:
                element = f"[({inner}) / 4u][({inner}) % 4u][{outer}]"
                yield f"    {indent}{target}{element} = {side}_{q};"


def _add_term(tile: Tile, term: int) -> Iterator[str]:
    across, down = tile.columns // tile.thread_columns, tile.rows // tile.thread_rows
    place = f"[stage][{term // 4}][{term % 4}]"
    yield "        {"
    for i in range(tile.thread_rows // 4):
        yield f"            let l{i} = left_tile{place}[thread_row + {i * down}u];"
    for j in range(tile.thread_columns // 4):
        yield f"            let r{j} = right_tile{place}[thread_column + {j * across}u];"
    for i in range(tile.thread_rows):
        factor = f"vec4<f32>(l{i // 4}.{'xyzw'[i % 4]})"
        for j in range(tile.thread_columns // 4):
            yield f"            sums_{i}_{j} = fma({factor}, r{j}, sums_{i}_{j});"
    yield "        }"


def _store_sums(tile: Tile) -> Iterator[str]:
    across, down = tile.columns // tile.thread_columns, tile.rows // tile.thread_rows
    for i in range(tile.thread_rows):
        row = f"row0 + 4u * (thread_row + {i // 4 * down}u) + {i % 4}u"
        for j in range(tile.thread_columns // 4):
            column = f"column0 + 4u * (thread_column + {j * across}u)"
            yield f"    store(part, {row}, {column}, sums_{i}_{j});"
