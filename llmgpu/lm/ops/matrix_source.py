"""Writes the WGSL of matrix products: a linear layer and its gradients.

::

    linear:                  out          = x weight^T (+ residual)
    linear_backward_input:   grad_x       = grad_out weight, or is added to
    linear_backward_weight:  grad_weight += grad_out^T x

x, grad_x (N, I); weight, grad_weight (O, I), f32 or f16; out, grad_out, residual (N, O). Products
and sums are always f32. Nearly all of a model's time goes here, so there is a kernel for each
layout, tile and kind of sizes.

- A workgroup computes a tile of the product, e.g. 64 x 128. It walks along the inner dimension in
  steps of e.g. 16 terms: both factors' parts of a step are copied to workgroup memory, then each
  thread adds the terms of its own 8 x 8 elements, so that one number out of workgroup memory serves
  8 multiplications. The next step's parts are loaded meanwhile.
- All sums of a thread must stay in registers. A local array that is indexed in a loop may live in
  memory instead, which costs a factor of ten, so everything that touches the sums is written out:
  one variable for each row and four columns.
- Where a product has few tiles, several workgroups take a part of the inner dimension each and
  leave partial sums (03_add_partials.wgsl).
- Products of stacks of matrices are computed at once, each whole.

Bindings: left (rows, inner), right (inner, columns), product (rows, columns), dims (rows, columns,
inner, inner of a part) and, if one is added, residual (rows, columns). Stacks have one more
dimension, and in dims the number of their matrices stands last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llmgpu.lm.ops.matrix_tiling import Tile

# Threads that run in step are a block of the tile, so that they share what they load of both sides.
_BLOCK_DOWN, _BLOCK_ACROSS = 4, 8
_BLOCK = _BLOCK_DOWN * _BLOCK_ACROSS


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
    whole_inner: whether the inner dimension is a multiple of the tile's, so that no load has to be
        compared with its end.
    accumulate: adds to what is in the product. residual: adds another matrix.
    stacked: products of matrices in stacks.
    """

    name: str
    tile: Tile
    left: Factor
    right: Factor
    vectors: bool
    whole_inner: bool
    accumulate: bool
    residual: bool
    stacked: bool = False


@dataclass(frozen=True)
class _Side:
    """One of the factors as a kernel's text has it.

    outer: component of `dims` that is not the inner dimension. first: variable with the tile's
    first row or column. width: rows or columns of the tile. stacked: see `MatrixProduct`.
    """

    name: str
    factor: Factor
    outer: str
    first: str
    width: int
    stacked: bool

    def line(self, index: str) -> str:
        """Return the index of a line in memory, from one within the factor."""
        lines = self.outer if self.factor.inner_contiguous else "z"
        return f"({index} + part * dims.{lines})" if self.stacked else index


def _sides(product: MatrixProduct) -> tuple[_Side, _Side]:
    tile, stacked = product.tile, product.stacked
    return (
        _Side("left", product.left, "x", "row0", tile.rows, stacked),
        _Side("right", product.right, "y", "column0", tile.columns, stacked),
    )


def part_of_product(*, stacked: bool) -> tuple[str, str, str]:
    """Return how many parts there are, and the first term and the end of the workgroup's part.

    The parts of a product of stacks are their matrices, with all terms.
    """
    if stacked:
        return "dims.w", "0u", "dims.z"
    return "(dims.z + dims.w - 1u) / dims.w", "part * dims.w", "min(part * dims.w + dims.w, dims.z)"


@cache
def matrix_product_source(product: MatrixProduct) -> str:
    """Return the text of a kernel."""
    left, right = _sides(product)
    lines = [
        *_bindings(product),
        *_workgroup_memory(product.tile),
        *_load_function(left),
        *_load_function(right),
        *_store_function(product),
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
    # Rows, columns, inner dimension, and how many of its terms a part adds, or a stack's matrices.
    yield "@group(0) @binding(3) var<uniform> dims: vec4<u32>;"
    if product.residual:
        yield f"@group(0) @binding(4) var<storage, read> residual: array<{out}>;"


def _workgroup_memory(tile: Tile) -> Iterator[str]:
    # term / 4, term % 4, element / 4: an index that is a plain number needs no bounds check.
    for name, width in (("left", tile.rows), ("right", tile.columns)):
        kind = f"array<array<vec4<f32>, {width // 4}>, 4>"
        yield f"var<workgroup> {name}_tile: array<{kind}, {tile.inner // 4}>;"


def _load_function(side: _Side) -> Iterator[str]:
    """Write the function that loads four neighbours of a factor, from a row's `column` on."""
    yield f"fn load_{side.name}(row_start: u32, column: u32) -> vec4<f32> {{"
    if side.factor.vectors:
        yield f"    return vec4<f32>({side.name}[(row_start + column) / 4u]);"
    else:
        last = f"dims.{'z' if side.factor.inner_contiguous else side.outer} - 1u"
        indices = [f"row_start + min(column + {j}u, {last})" for j in range(4)]
        loads = [f"f32({side.name}[{index}])" for index in indices]
        yield f"    return vec4<f32>({', '.join(loads)});"
    yield "}"


def _store_function(product: MatrixProduct) -> Iterator[str]:
    """Write the function that stores four neighbours of the product."""
    yield "fn store(part: u32, row: u32, column: u32, sums: vec4<f32>) {"
    yield "    let start = part * dims.x * dims.y + row * dims.y + column;"
    if product.vectors:
        yield from _store_one(product, "column", "start / 4u", "sums")
    else:
        for j, component in enumerate("xyzw"):
            yield from _store_one(product, f"column + {j}u", f"start + {j}u", f"sums.{component}")
    yield "}"


def _store_one(product: MatrixProduct, column: str, index: str, value: str) -> Iterator[str]:
    value += f" + product[{index}]" if product.accumulate else ""
    value += f" + residual[{index}]" if product.residual else ""
    yield f"    if (row < dims.x && {column} < dims.y) {{ product[{index}] = {value}; }}"


def _entry_point(product: MatrixProduct) -> Iterator[str]:
    tile = product.tile
    yield f"@compute @workgroup_size({tile.threads})"
    yield f"fn {product.name}("
    yield "    @builtin(workgroup_id) workgroup: vec3<u32>,"
    yield "    @builtin(num_workgroups) workgroups: vec3<u32>,"
    yield "    @builtin(local_invocation_index) local_index: u32,"
    yield ") {"
    parts, first, end = part_of_product(stacked=product.stacked)
    yield from _place(tile, parts)
    # The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    yield "if (part < parts) {"
    yield from _variables(product)
    yield f"    let first = {first};"
    yield f"    let end = {end};"
    yield from _load_tiles(product, "first")
    yield from _store_tiles(product)
    yield "    workgroupBarrier();"
    yield f"    for (var term = first; term < end; term += {tile.inner}u) {{"
    yield from _step(product)
    yield "    }"
    yield from _store_sums(tile)
    yield "}"
    yield "}"


def _place(tile: Tile, parts: str) -> Iterator[str]:
    """Write which block of the product is this workgroup's, and which of that this thread's.

    Workgroups that follow one another go along the dimension with fewer tiles, so that what they
    load of the other factor is shared.
    """
    yield "    let group = workgroup.y * workgroups.x + workgroup.x;"
    yield f"    let tiles_down = (dims.x + {tile.rows - 1}u) / {tile.rows}u;"
    yield f"    let tiles_across = (dims.y + {tile.columns - 1}u) / {tile.columns}u;"
    yield f"    let parts = {parts};"
    yield "    let part = group / (tiles_down * tiles_across);"
    yield "    let place = group % (tiles_down * tiles_across);"
    yield "    let down = tiles_down < tiles_across;"
    yield "    let tile_row = select(place / tiles_across, place % tiles_down, down);"
    yield "    let tile_column = select(place % tiles_across, place / tiles_down, down);"
    yield f"    let row0 = tile_row * {tile.rows}u;"
    yield f"    let column0 = tile_column * {tile.columns}u;"
    blocks = tile.threads_across // _BLOCK_ACROSS
    yield f"    let block = local_index / {_BLOCK}u;"
    yield f"    let lane = local_index % {_BLOCK}u;"
    yield f"    let thread_row = block / {blocks}u * {_BLOCK_DOWN}u + lane / {_BLOCK_ACROSS}u;"
    yield (
        f"    let thread_column = block % {blocks}u * {_BLOCK_ACROSS}u + lane % {_BLOCK_ACROSS}u;"
    )


def _variables(product: MatrixProduct) -> Iterator[str]:
    """Write the variables: sums, what is loaded of both factors, and the fixed part of where from.

    Beyond the product's last row or column, others inside are loaded: their sums are never stored.
    """
    tile = product.tile
    for i in range(tile.thread_rows):
        for j in range(tile.thread_columns // 4):
            yield f"    var sums_{i}_{j} = vec4<f32>();"
    for side in _sides(product):
        for q in range(_loads(tile, side)):
            outer, _ = _element(tile, side, q)
            yield f"    var {side.name}_{q} = vec4<f32>();"
            if side.factor.inner_contiguous:
                row = f"min({side.first} + {outer}, dims.{side.outer} - 1u)"
                yield f"    let {side.name}_row_{q} = {side.line(row)} * dims.z;"
            else:
                column = f"{side.first} + 4u * ({outer})"
                if side.factor.vectors:
                    column = f"min({column}, dims.{side.outer} - 4u)"
                yield f"    let {side.name}_column_{q} = {column};"


def _step(product: MatrixProduct) -> Iterator[str]:
    """Write a step of the loop: load what comes next, add what is there, store what was loaded."""
    yield f"    let next = term + {product.tile.inner}u;"
    yield "    if (next < end) {"
    yield from _load_tiles(product, "next")
    yield "    }"
    for term in range(product.tile.inner):
        yield from _add_term(product.tile, term)
    yield "    workgroupBarrier();"
    yield "    if (next < end) {"
    yield from _store_tiles(product)
    yield "    }"
    yield "    workgroupBarrier();"


def _loads(tile: Tile, side: _Side) -> int:
    """Return how many times each thread loads four elements of a tile."""
    return side.width * tile.inner // 4 // tile.threads


def _element(tile: Tile, side: _Side, q: int) -> tuple[str, str]:
    """Return the outer and the inner index of a thread's load `q`; the contiguous one in fours."""
    number = f"(local_index + {q * tile.threads}u)"
    if side.factor.inner_contiguous:
        return f"{number} / {tile.inner // 4}u", f"{number} % {tile.inner // 4}u"
    return f"{number} % {side.width // 4}u", f"{number} / {side.width // 4}u"


def _load_tiles(product: MatrixProduct, term: str) -> Iterator[str]:
    """Write the loads of both tiles from `term` on into left_Q and right_Q."""
    tile, whole = product.tile, product.whole_inner
    for side in _sides(product):
        for q in range(_loads(tile, side)):
            _, inner = _element(tile, side, q)
            if side.factor.inner_contiguous:
                column = f"{term} + 4u * ({inner})"
                if side.factor.vectors and not whole:
                    column = f"min({column}, dims.z - 4u)"
                place = f"{side.name}_row_{q}, {column}"
            else:
                row = f"({term} + {inner})" if whole else f"min({term} + {inner}, dims.z - 1u)"
                place = f"{side.line(row)} * dims.{side.outer}, {side.name}_column_{q}"
            yield f"    {side.name}_{q} = load_{side.name}({place});"
    if not whole:
        yield f"    if ({term} + {tile.inner}u > dims.z) {{"
        yield from _clear_beyond(product, term)
        yield "    }"


def _clear_beyond(product: MatrixProduct, term: str) -> Iterator[str]:
    """Write what makes zeros of elements beyond the last term, of both factors."""
    for side in _sides(product):
        for q in range(_loads(product.tile, side)):
            _, inner = _element(product.tile, side, q)
            inside = f"{term} + {inner} < dims.z"
            if side.factor.inner_contiguous:
                terms = f"{term} + 4u * ({inner}) + vec4<u32>(0u, 1u, 2u, 3u)"
                inside = f"{terms} < vec4<u32>(dims.z)"
            variable = f"{side.name}_{q}"
            yield f"    {variable} = select(vec4<f32>(), {variable}, {inside});"


def _store_tiles(product: MatrixProduct) -> Iterator[str]:
    """Write the stores of left_Q and right_Q into workgroup memory."""
    for side in _sides(product):
        for q in range(_loads(product.tile, side)):
            outer, inner = _element(product.tile, side, q)
            if side.factor.inner_contiguous:
                for j, component in enumerate("xyzw"):
                    element = f"[{inner}][{j}][({outer}) / 4u][({outer}) % 4u]"
                    yield f"    {side.name}_tile{element} = {side.name}_{q}.{component};"
            else:
                element = f"[({inner}) / 4u][({inner}) % 4u][{outer}]"
                yield f"    {side.name}_tile{element} = {side.name}_{q};"


def _add_term(tile: Tile, term: int) -> Iterator[str]:
    place = f"[{term // 4}][{term % 4}]"
    yield "    {"
    for i in range(tile.thread_rows // 4):
        yield f"    let l{i} = left_tile{place}[thread_row + {i * tile.threads_down}u];"
    for j in range(tile.thread_columns // 4):
        yield f"    let r{j} = right_tile{place}[thread_column + {j * tile.threads_across}u];"
    for i in range(tile.thread_rows):
        factor = f"vec4<f32>(l{i // 4}.{'xyzw'[i % 4]})"
        for j in range(tile.thread_columns // 4):
            yield f"    sums_{i}_{j} = fma({factor}, r{j}, sums_{i}_{j});"
    yield "    }"


def _store_sums(tile: Tile) -> Iterator[str]:
    for i in range(tile.thread_rows):
        row = f"row0 + 4u * (thread_row + {i // 4 * tile.threads_down}u) + {i % 4}u"
        for j in range(tile.thread_columns // 4):
            column = f"column0 + 4u * (thread_column + {j * tile.threads_across}u)"
            yield f"    store(part, {row}, {column}, sums_{i}_{j});"
