"""Writes the WGSL of matrix products on matrix units: a linear layer and its gradients.

The same products as those of `matrix_source`, of half-precision factors with float32 sums, for
devices that multiply small matrices, one a subgroup (WGSL's subgroup matrices; Vulkan's cooperative
matrices, tensor cores).

- A workgroup computes a tile of the product, and each of its subgroups a block of that, kept in
  subgroup matrices of sums. In steps of the inner dimension, both factors' parts go to workgroup
  memory as they lie in memory: a transposed factor is read column by column by the units.
- The next step's parts are loaded into registers while this one's are multiplied.
- Lines in workgroup memory are 16 bytes longer than what they hold, so that the rows of a matrix
  lie in different banks.
- Sums are stored by way of workgroup memory, a line of neighbours at once.

Bindings: left, right, product (16 bytes an element, or 1 number where a line is not a multiple),
dims (rows, columns, inner, inner of a part) and, if one is added, residual; of stacks of matrices
as in `matrix_source`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llmgpu.lm.ops.matrix_source import part_of_product
from llmgpu.lm.ops.subgroup_matrix_sums import start_sums, store_function, store_sums
from llmgpu.lm.ops.subgroup_matrix_tiling import (
    BANKS,
    HALVES,
    PADDING,
    HalfFactor,
    MatrixTile,
    SubgroupMatrixProduct,
)

BAND = 8  # rows of tiles that workgroups go down before they move to the next column


@dataclass(frozen=True)
class _Side:
    """One of the factors as a kernel's text has it.

    outer: component of `dims` that is not the inner dimension. first: variable with the tile's
    first row or column. width: rows or columns of the tile, and `inner` its terms. whole: the
    outer dimension is a multiple of the tile's. stacked: see `SubgroupMatrixProduct`.
    """

    name: str
    factor: HalfFactor
    outer: str
    first: str
    width: int
    inner: int
    whole: bool
    stacked: bool

    @property
    def lines(self) -> int:
        """Lines in workgroup memory."""
        return self.width if self.factor.inner_contiguous else self.inner

    @property
    def vectors(self) -> int:
        """Vectors of 8 halves that a line holds."""
        return (self.inner if self.factor.inner_contiguous else self.width) // HALVES

    @property
    def stride(self) -> int:
        """Vectors from one line to the next."""
        return self.vectors + PADDING // HALVES

    def line(self, index: str) -> str:
        """Return the index of a line in memory, from one within the factor."""
        lines = self.outer if self.factor.inner_contiguous else "z"
        return f"({index} + part * dims.{lines})" if self.stacked else index


def _sides(product: SubgroupMatrixProduct) -> tuple[_Side, _Side]:
    tile, stacked = product.tile, product.stacked
    rows, columns = (tile.rows, tile.inner), (tile.columns, tile.inner)
    return (
        _Side("left", product.left, "x", "row0", *rows, product.whole_rows, stacked),
        _Side("right", product.right, "y", "column0", *columns, product.whole_columns, stacked),
    )


@cache
def subgroup_matrix_source(product: SubgroupMatrixProduct) -> str:
    """Return the text of a kernel.

    Raises:
        ValueError: the tile can't be divided evenly among the threads or the units' matrices.
    """
    if not product.tile.fits(product.unit, product.threads):
        raise ValueError(f"{product.tile} has no even parts of {product.unit}")
    lines = [
        *_declarations(product),
        *(line for side in _sides(product) for line in _load_function(side) if not product.pairs),
        *store_function(product),
        *_entry_point(product),
    ]
    return "\n".join(lines) + "\n"


def _declarations(product: SubgroupMatrixProduct) -> Iterator[str]:
    rows, columns, inner = product.unit
    yield "enable f16;"
    yield f"alias Left = subgroup_matrix_left<f16, {inner}, {rows}>;"
    yield f"alias Right = subgroup_matrix_right<f16, {columns}, {inner}>;"
    yield f"alias Sum = subgroup_matrix_result<f32, {columns}, {rows}>;"
    for index, side in enumerate(_sides(product)):
        element = "vec4<u32>" if side.factor.vectors else "f16"
        yield f"@group(0) @binding({index}) var<storage, read> {side.name}: array<{element}>;"
    element = "u32" if product.half else "f32"
    if product.aligned:
        element = f"vec4<{element}>"
    yield f"@group(0) @binding(2) var<storage, read_write> product: array<{element}>;"
    # Rows, columns, inner dimension, and how many of its terms a part adds, or a stack's matrices.
    yield "@group(0) @binding(3) var<uniform> dims: vec4<u32>;"
    if product.residual:
        yield f"@group(0) @binding(4) var<storage, read> residual: array<{element}>;"
    for side, size in zip(_sides(product), product.tile.vectors(product.unit), strict=True):
        yield f"var<workgroup> {side.name}_tile: array<vec4<u32>, {size}>;"


def _load_function(side: _Side) -> Iterator[str]:
    """Write the function that loads 8 neighbours of a factor, from a line's `column` on."""
    yield f"fn load_{side.name}(line_start: u32, column: u32) -> vec4<u32> {{"
    if side.factor.vectors:
        yield f"    return {side.name}[(line_start + column) / {HALVES}u];"
    else:
        last = f"dims.{'z' if side.factor.inner_contiguous else side.outer} - 1u"
        loads = [
            f"f32({side.name}[line_start + min(column + {j}u, {last})])" for j in range(HALVES)
        ]
        pairs = [
            f"pack2x16float(vec2<f32>({loads[j]}, {loads[j + 1]}))" for j in range(0, HALVES, 2)
        ]
        yield f"    return vec4<u32>({', '.join(pairs)});"
    yield "}"


def _entry_point(product: SubgroupMatrixProduct) -> Iterator[str]:
    tile = product.tile
    yield f"@compute @workgroup_size({product.threads})"
    yield f"fn {product.name}("
    yield "    @builtin(workgroup_id) workgroup: vec3<u32>,"
    yield "    @builtin(num_workgroups) workgroups: vec3<u32>,"
    yield "    @builtin(local_invocation_index) local_index: u32,"
    yield "    @builtin(subgroup_id) subgroup: u32,"
    yield "    @builtin(subgroup_invocation_id) lane: u32,"
    yield ") {"
    parts, begin, end = part_of_product(stacked=product.stacked)
    yield from _place(tile, parts)
    # The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    yield "if (part < parts) {"
    yield f"    let begin = {begin};"
    yield f"    let end = {end};"
    for i, j in product.blocks:
        yield f"    var sums_{i}_{j}: Sum;"
    yield from start_sums(product)
    yield from _pairs_of_steps(product) if product.pairs else _steps(product)
    yield from store_sums(product)
    yield "}"
    yield "}"


def _steps(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the loop over the inner dimension.

    What a round loads it also stores: compilers move loads to the round that uses them, where
    nothing would hide how long they take.
    """
    step = product.tile.inner
    yield from _variables(product)
    yield from _load_tiles(product, "begin")
    yield from _store_tiles(product)
    yield "    workgroupBarrier();"
    yield f"    for (var term = begin; term < end; term += {step}u) {{"
    yield f"    let next = term + {step}u;"
    yield "    if (next < end) {"
    yield from _load_tiles(product, "next")
    yield "    }"
    yield from _multiply(product)
    yield "    workgroupBarrier();"
    yield "    if (next < end) {"
    yield from _store_tiles(product)
    yield "    }"
    yield "    workgroupBarrier();"
    yield "    }"


def _pairs_of_steps(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the loop over the inner dimension by two steps, for which lines are loaded at once.

    A line of one step is half of a cache line, and looking for it takes as long as for a whole one.
    So eight threads load a line of both steps. Those of the first half and of the second change
    places at every other load of a thread: of two loads it has the first step's part of one line,
    and the second step's of another, and all threads store for either step.
    """
    step = 2 * product.tile.inner
    yield from _pair_variables(product)
    yield from _load_pairs(product, "begin")
    yield from _store_halves(product, first=True)
    yield "    workgroupBarrier();"
    yield f"    for (var term = begin; term < end; term += {step}u) {{"
    yield from _multiply(product)
    yield "    workgroupBarrier();"
    # It always is: without a branch here, compilers mix the steps, which take 1 to 2 % longer then.
    yield f"    if (term + {product.tile.inner}u < end) {{"
    yield from _store_halves(product, first=False)
    yield "    }"
    yield "    workgroupBarrier();"
    yield f"    let next = term + {step}u;"
    yield "    if (next < end) {"
    yield from _load_pairs(product, "next")
    yield "    }"
    yield from _multiply(product)
    yield "    workgroupBarrier();"
    yield "    if (next < end) {"
    yield from _store_halves(product, first=True)
    yield "    }"
    yield "    workgroupBarrier();"
    yield "    }"


def _pair_loads(product: SubgroupMatrixProduct, side: _Side) -> range:
    """Return the numbers of a thread's loads for two steps."""
    return range(2 * _loads(product, side))


def _pair_variables(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write what is loaded for two steps, where from, and the lines of what is stored.

    The two lines that a thread loads from, and eight threads store into, are so far from one
    another that their vectors lie in different banks.
    """
    lines = product.threads // BANKS
    yield f"    let is_low = local_index % {BANKS}u < {BANKS // 2}u;"
    yield f"    let even_line = local_index / {BANKS}u;"
    yield f"    let odd_line = (even_line ^ {BANKS // 2}u) + {lines}u;"
    yield "    let first_line = select(odd_line, even_line, is_low);"
    yield "    let second_line = select(even_line, odd_line, is_low);"
    for side in _sides(product):
        for q in _pair_loads(product, side):
            line, vector = "even_line", f"local_index % {BANKS}u"
            if q % 2:
                line, vector = "odd_line", f"(({vector}) ^ {BANKS // 2}u)"
            row = f"({side.first} + {line} + {q // 2 * 2 * lines}u)"
            yield f"    var {side.name}_{q} = vec4<u32>();"
            yield f"    let {side.name}_start_{q} = {row} * (dims.z / {HALVES}u) + {vector};"


def _load_pairs(product: SubgroupMatrixProduct, term: str) -> Iterator[str]:
    """Write the loads of both factors' lines for two steps."""
    for side in _sides(product):
        for q in _pair_loads(product, side):
            place = f"{side.name}_start_{q} + {term} / {HALVES}u"
            yield f"    {side.name}_{q} = {side.name}[{place}];"


def _store_halves(product: SubgroupMatrixProduct, *, first: bool) -> Iterator[str]:
    """Write the stores of what was loaded for the first or the second of two steps."""
    line = "first_line" if first else "second_line"
    lines = product.threads // BANKS
    for side in _sides(product):
        for q in _pair_loads(product, side)[::2]:
            low, high = (q, q + 1) if first else (q + 1, q)
            value = f"select({side.name}_{high}, {side.name}_{low}, is_low)"
            index = f"({line} + {q * lines}u) * {side.stride}u + local_index % {BANKS // 2}u"
            yield f"    {side.name}_tile[{index}] = {value};"


def _place(tile: MatrixTile, parts: str) -> Iterator[str]:
    """Write which tile of the product is this workgroup's, and which part of that the subgroup's.

    Workgroups that follow one another go down a band of rows, so that what they load is shared.
    """
    across = tile.columns // tile.subgroup_columns
    yield "    let group = workgroup.y * workgroups.x + workgroup.x;"
    yield f"    let tiles_down = (dims.x + {tile.rows - 1}u) / {tile.rows}u;"
    yield f"    let tiles_across = (dims.y + {tile.columns - 1}u) / {tile.columns}u;"
    yield f"    let parts = {parts};"
    yield "    let part = group / (tiles_down * tiles_across);"
    yield "    let place = group % (tiles_down * tiles_across);"
    yield f"    let band_row = place / ({BAND}u * tiles_across) * {BAND}u;"
    yield f"    let band_rows = min({BAND}u, tiles_down - band_row);"
    yield f"    let in_band = place % ({BAND}u * tiles_across);"
    yield f"    let row0 = (band_row + in_band % band_rows) * {tile.rows}u;"
    yield f"    let column0 = in_band / band_rows * {tile.columns}u;"
    down = tile.rows // tile.subgroup_rows  # the compiler can tell that both stay inside
    yield f"    let own_row = subgroup / {across}u % {down}u * {tile.subgroup_rows}u;"
    yield f"    let own_column = subgroup % {across}u * {tile.subgroup_columns}u;"


def _loads(product: SubgroupMatrixProduct, side: _Side) -> int:
    """Return how many vectors of a tile each thread loads."""
    return side.lines * side.vectors // product.threads


def _vector(product: SubgroupMatrixProduct, side: _Side, q: int) -> tuple[str, str]:
    """Return the line and the vector in it of a thread's load `q`.

    Where all loads of a thread have one place in their lines, the text says so: the compiler then
    keeps one address for all of them.
    """
    if product.threads % side.vectors == 0:
        line = f"({side.name}_line + {q * product.threads // side.vectors}u)"
        return line, f"local_index % {side.vectors}u"
    number = f"(local_index + {q * product.threads}u)"
    return f"{number} / {side.vectors}u", f"{number} % {side.vectors}u"


def _first_lines(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the lines of a thread's first loads.

    A quarter of a subgroup stores at once. Where it stores into several lines, these are so far
    from one another that their vectors lie in different banks.
    """
    for side in _sides(product):
        line, vectors = f"local_index / {side.vectors}u", side.vectors
        together = BANKS // vectors
        if together > 1 and product.threads % (vectors * BANKS) == 0:
            line = (
                f"{line} / {BANKS}u * {BANKS}u + {line} % {together}u * {vectors}u"
                f" + {line} / {together}u % {vectors}u"
            )
        yield f"    let {side.name}_line = {line};"


def _variables(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the variables: what is loaded of both factors, and the fixed part of where from.

    Beyond the product's last row or column, others inside are loaded: their sums are never stored.
    """
    yield from _first_lines(product)
    for side in _sides(product):
        for q in range(_loads(product, side)):
            line, vector = _vector(product, side, q)
            yield f"    var {side.name}_{q} = vec4<u32>();"
            if side.factor.inner_contiguous:
                row = f"({side.first} + {line})"
                if not side.whole:
                    row = f"min({row}, dims.{side.outer} - 1u)"
                yield f"    let {side.name}_start_{q} = {side.line(row)} * dims.z;"
            else:
                column = f"{side.first} + {vector} * {HALVES}u"
                if side.factor.vectors and not side.whole:
                    column = f"min({column}, dims.{side.outer} - {HALVES}u)"
                yield f"    let {side.name}_start_{q} = {column};"


def _load_tiles(product: SubgroupMatrixProduct, term: str) -> Iterator[str]:
    """Write the loads of both tiles from `term` on into left_Q and right_Q."""
    whole = product.whole_inner
    for side in _sides(product):
        for q in range(_loads(product, side)):
            line, vector = _vector(product, side, q)
            half = f"{vector} * {HALVES}u"
            variable = f"{side.name}_{q}"
            if side.factor.inner_contiguous:
                column = f"{term} + {half}"
                inside = f"{column} < dims.z"
                if side.factor.vectors and not whole:
                    column = f"min({column}, dims.z - {HALVES}u)"
                place = f"{side.name}_start_{q}, {column}"
            else:
                row = f"{term} + {line}"
                inside = f"{row} < dims.z"
                row = f"({row})" if whole else f"min({row}, dims.z - 1u)"
                place = f"{side.line(row)} * dims.{side.outer}, {side.name}_start_{q}"
            yield f"    {variable} = load_{side.name}({place});"
            if whole:
                continue
            yield f"    {variable} = select(vec4<u32>(), {variable}, {inside});"
            if side.factor.inner_contiguous and not side.factor.vectors:
                yield f"    {variable} = {_without_rest(variable, f'{term} + {half}')};"


def _without_rest(variable: str, column: str) -> str:
    """Return a vector from `column` on without the halves beyond the last term."""
    words = []
    for word, component in enumerate("xyzw"):
        masks = (
            f"select(0u, {mask}, {column} + {2 * word + half}u < dims.z)"
            for half, mask in enumerate(("0xffffu", "0xffff0000u"))
        )
        words.append(f"{variable}.{component} & ({' | '.join(masks)})")
    return f"vec4<u32>({', '.join(words)})"


def _store_tiles(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the stores of left_Q and right_Q into workgroup memory."""
    for side in _sides(product):
        for q in range(_loads(product, side)):
            line, vector = _vector(product, side, q)
            index = f"{line} * {side.stride}u + {vector}"
            yield f"    {side.name}_tile[{index}] = {side.name}_{q};"


def _multiply(product: SubgroupMatrixProduct) -> Iterator[str]:
    """Write the products of what is in workgroup memory."""
    unit_rows, unit_columns, unit_inner = product.unit
    left, right = _sides(product)
    rows = sorted({i for i, _ in product.blocks})
    columns = sorted({j for _, j in product.blocks})
    # To and fro along the rows, so that each multiplication shares a matrix with the one before it.
    blocks = sorted(product.blocks, key=lambda block: (block[0], block[1] * (-1) ** block[0]))
    for term in range(0, product.tile.inner, unit_inner):
        yield "    {"
        for i in rows:
            first = f"(own_row + {i * unit_rows}u)"
            yield f"    let l{i} = {_load_matrix('Left', left, first, term)};"
        for j in columns:
            first = f"(own_column + {j * unit_columns}u)"
            yield f"    let r{j} = {_load_matrix('Right', right, first, term)};"
        for i, j in blocks:
            sums = f"sums_{i}_{j}"
            yield f"    {sums} = subgroupMatrixMultiplyAccumulate(l{i}, r{j}, {sums});"
        yield "    }"


def _load_matrix(kind: str, side: _Side, first: str, term: int) -> str:
    """Return the load of a matrix that begins at an outer index and at a term of the step."""
    if side.factor.inner_contiguous:
        offset = f"{term // HALVES}u + {first} * {side.stride}u"
    else:
        offset = f"{term * side.stride}u + {first} / {HALVES}u"
    order = "row" if side.factor.inner_contiguous == (kind == "Left") else "col"
    return f"subgroupMatrixLoad<{kind}, {order}_major>(&{side.name}_tile, {offset}, {side.stride}u)"
