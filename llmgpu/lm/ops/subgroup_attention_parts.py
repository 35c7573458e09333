"""What the kernels of attention on matrix units share, see `subgroup_attention_source`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from llmgpu.kernel_source import read_wgsl
from llmgpu.lm.ops.subgroup_matrix_sums import TWO_HALVES
from llmgpu.lm.ops.subgroup_matrix_tiling import HALVES

LOWEST = "-3.0e38"  # the score of what is not to be seen
COLUMN_SET = 64  # columns of the gradients of keys and values that a workgroup sums up, at most


@dataclass(frozen=True)
class AttentionTile:
    """rows: own rows of a workgroup, `subgroup_rows` each subgroup. step: rows of the others."""

    rows: int
    step: int
    subgroup_rows: int

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.rows // self.subgroup_rows


@dataclass(frozen=True)
class SubgroupAttention:
    """A kernel's sizes.

    unit: rows, columns and inner dimension of the units' matrices. lanes: of a subgroup.
    """

    tile: AttentionTile
    unit: tuple[int, int, int]
    lanes: int
    head_dim: int

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.tile.subgroups * self.lanes

    @property
    def row_threads(self) -> int:
        """Threads that share a row of scores in the gradients' kernels."""
        return self.lanes // self.tile.subgroup_rows

    @property
    def fits(self) -> bool:
        """Whether rows, steps and heads can be divided evenly among matrices and threads."""
        (rows, columns, inner), tile = self.unit, self.tile
        return not (
            tile.subgroup_rows % rows
            or tile.rows % tile.step
            or columns % HALVES
            or inner % HALVES
            or any(
                width % size for width in (tile.step, self.head_dim) for size in (columns, inner)
            )
            or self.lanes % tile.subgroup_rows
            or tile.step % (HALVES * self.row_threads)
            or tile.step // self.row_threads % inner
            or tile.subgroups * rows > 2 * tile.step
        )

    @property
    def column_sets(self) -> int:
        """Workgroups that share the columns of the gradients of keys and values."""
        width, columns = self.head_dim, self.unit[1]
        even = (sets for sets in range(1, width + 1) if width % (sets * columns) == 0)
        return next(
            sets for sets in even if width // sets <= COLUMN_SET or width // sets == columns
        )

    @property
    def part_quads(self) -> int:
        """Vectors of four scores that a thread has in the gradients' kernels."""
        return self.tile.step // 4 // self.row_threads

    def memory(self, *, gradients: bool) -> int:
        """Return the bytes of workgroup memory that the kernels take at most."""
        tile = self.tile
        tiles = 2 * tile.step * (2 * self.head_dim + 16)
        scores = tile.rows * (4 * tile.step + 16)
        others = 12 * tile.step if gradients else tile.rows * (2 * tile.step + 16)
        return tiles + scores + others

    @property
    def down(self) -> range:
        """Numbers of the matrices of a subgroup's rows."""
        return range(self.tile.subgroup_rows // self.unit[0])

    @property
    def depth(self) -> range:
        """Numbers of the matrices that a head's width is divided into as an inner dimension."""
        return range(self.head_dim // self.unit[2])

    def across(self, width: int) -> range:
        """Return the numbers of the matrices of some columns."""
        return range(width // self.unit[1])


def text_of(*parts: Iterable[str]) -> str:
    """Return the lines of all parts as a text."""
    return "\n".join(line for part in parts for line in part) + "\n"


# Declarations


def declarations(
    a: SubgroupAttention, inputs: Sequence[str], arrays: Mapping[str, str]
) -> Iterator[str]:
    """Write types, constants, inputs, and arrays of workgroup memory.

    arrays: "scores", "weights" or both, with the type of their elements.
    """
    rows, columns, inner = a.unit
    tile, vectors = a.tile, a.head_dim // HALVES
    # Lines are 16 bytes longer than what they hold, so that rows lie in different banks.
    score_stride, weight_stride = tile.step // 4 + 1, tile.step // HALVES + 1
    yield "enable f16;"
    yield f"alias Left = subgroup_matrix_left<f16, {inner}, {rows}>;"
    yield f"alias Right = subgroup_matrix_right<f16, {columns}, {inner}>;"
    yield f"alias Sum = subgroup_matrix_result<f32, {columns}, {rows}>;"
    yield f"const VECTORS: u32 = {vectors}u;"  # of a row of a head
    yield f"const STRIDE: u32 = {vectors + 1}u;"
    yield f"const SCORE_STRIDE: u32 = {score_stride}u;"
    yield f"const WEIGHT_STRIDE: u32 = {weight_stride}u;"
    yield f"const ROWS: u32 = {tile.rows}u;"
    yield f"const STEP: u32 = {tile.step}u;"
    yield f"const THREADS: u32 = {a.threads}u;"
    yield "const FOUR: vec4<u32> = vec4<u32>(0u, 1u, 2u, 3u);"
    yield from read_wgsl("lm/attention_sizes.wgsl").splitlines()
    for index, name in enumerate(inputs, 1):
        yield f"@group(0) @binding({index}) var<storage, read> {name}: array<vec4<u32>>;"
        yield from _load_function(name)
    yield f"var<workgroup> tiles: array<vec4<u32>, {2 * tile.step * (vectors + 1)}>;"
    strides = {"scores": score_stride, "weights": weight_stride}
    for name, element in arrays.items():
        size = tile.rows * strides[name]
        yield f"var<workgroup> {name}: array<{element}, {size}>;"
    yield TWO_HALVES
    yield _EIGHT_HALVES


_EIGHT_HALVES = """fn halves_of(first: vec4<f32>, second: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        two_halves(first.xy), two_halves(first.zw), two_halves(second.xy), two_halves(second.zw)
    );
}"""


def _load_function(name: str) -> Iterator[str]:
    """Write the function that loads 8 numbers of a row of a head, zeros beyond the sequence."""
    heads = "kv_heads" if name in ("k", "v") else "heads"
    yield f"fn load_{name}(sequence: u32, head: u32, row: u32, vector: u32) -> vec4<u32> {{"
    yield "    if (row >= params.seq) { return vec4<u32>(); }"
    yield f"    return {name}[((sequence + row) * params.{heads} + head) * VECTORS + vector];"
    yield "}"


# What a workgroup has


def entry_point(a: SubgroupAttention, name: str, place: Iterable[str]) -> Iterator[str]:
    """Write the head of a kernel, up to the rows that are a subgroup's."""
    yield f"@compute @workgroup_size({a.threads})"
    yield f"fn {name}("
    yield "    @builtin(workgroup_id) workgroup: vec3<u32>,"
    yield "    @builtin(num_workgroups) workgroups: vec3<u32>,"
    yield "    @builtin(local_invocation_index) local_index: u32,"
    yield "    @builtin(subgroup_id) subgroup: u32,"
    yield ") {"
    yield "    let group = workgroup.y * workgroups.x + workgroup.x;"
    yield "    let blocks = (params.seq + ROWS - 1u) / ROWS;"
    yield "    let columns = params.workgroups / blocks;"
    yield "    let group_size = params.heads / params.kv_heads;"
    # The last workgroups of a dispatch that is split over two dimensions may have nothing to do.
    yield "    if (group < params.workgroups) {"
    yield from place
    # The compiler can tell that both stay inside.
    yield f"    let own_subgroup = subgroup % {a.tile.subgroups}u;"
    yield f"    let own_row = own_subgroup * {a.tile.subgroup_rows}u;"
    # Products start from it: drivers were seen to leave a variable of a loop as it was before.
    yield "    var zero: Sum;"


# A block of queries of a head, the longest ones first; and the keys that they see.
QUERY_PLACE = (
    "    let head = group % params.heads;",
    "    let other_head = head / group_size;",
    "    let sequence = group % columns / params.heads * params.seq;",
    "    let own_first = (blocks - 1u - group / columns) * ROWS;",
)
KEYS = ("begin", "min(own_first + ROWS, params.seq)")
QUERIES = ("own_first", "params.seq")  # those that see a block of keys


def key_place(a: SubgroupAttention) -> Iterator[str]:
    """Write the place of a block of keys, and the columns of its gradients, the longest first."""
    sets = a.column_sets
    yield f"    let column0 = group % {sets}u * {a.head_dim // sets}u;"
    yield f"    let head = group % columns / {sets}u % params.kv_heads;"
    yield f"    let sequence = group % columns / {sets}u / params.kv_heads * params.seq;"
    yield "    let own_first = group / columns * ROWS;"


def own_matrices(a: SubgroupAttention, names: Sequence[str]) -> Iterator[str]:
    """Write the loads of a subgroup's rows into matrices, by way of workgroup memory."""
    rows, _, inner = a.unit
    for name, i in product(names, a.down):
        yield f"    for (var n = local_index; n < {a.tile.subgroups * rows}u * VECTORS;"
        yield "        n += THREADS) {"
        yield "        let line = n / VECTORS;"
        yield f"        let row = line / {rows}u * {a.tile.subgroup_rows}u + line % {rows}u;"
        yield "        tiles[line * STRIDE + n % VECTORS] = "
        place = f"own_first + row + {i * rows}u, n % VECTORS"
        yield f"            load_{name}(sequence, head, {place});"
        yield "    }"
        yield "    workgroupBarrier();"
        for d in a.depth:
            offset = f"own_subgroup * {rows}u * STRIDE + {d * inner // HALVES}u"
            load = f"subgroupMatrixLoad<Left, row_major>(&tiles, {offset}, STRIDE)"
            yield f"    let {name}_{i}_{d} = {load};"
        yield "    workgroupBarrier();"


def sum_variables(a: SubgroupAttention, names: Sequence[str], width: int) -> Iterator[str]:
    """Write the matrices that are summed up."""
    for name, i, j in product(names, a.down, a.across(width)):
        yield f"    var {name}_{i}_{j}: Sum;"


# The walk over the rows of the other side


@dataclass(frozen=True)
class Numbers:
    """What a walk loads with the rows from `next` on, and stores; `end` may leave the loop."""

    variables: Sequence[str]
    loads: Sequence[str]
    stores: Sequence[str]
    end: Sequence[str]


def walk(
    a: SubgroupAttention,
    others: Sequence[str],
    bounds: tuple[str, str],
    step: Iterable[str],
    numbers: Numbers | None = None,
) -> Iterator[str]:
    """Write the loop; `others`: what a step loads, besides `numbers`.

    What a round loads it also stores, as in `subgroup_matrix_source`.
    """
    vectors = a.tile.step * a.head_dim // HALVES
    loads = range(-(-vectors // a.threads))
    # A thread's vectors, and the condition under which there is one.
    pieces = [
        (side, name, f"next_{side}_{j}", f"(local_index + {j * a.threads}u)")
        for side, name in enumerate(others)
        for j in loads
    ]
    guard = "" if vectors % a.threads == 0 else f"if ({{}} < {vectors}u) "

    def load() -> Iterator[str]:
        for _, name, variable, n in pieces:
            place = f"next + {n} / VECTORS, {n} % VECTORS"
            yield f"    {variable} = load_{name}(sequence, other_head, {place});"
        yield from numbers.loads if numbers else ()

    def store() -> Iterator[str]:
        for side, _, variable, n in pieces:
            place = f"({side * a.tile.step}u + {n} / VECTORS) * STRIDE + {n} % VECTORS"
            inside = guard.format(n)
            yield f"    {inside}{{ tiles[{place}] = {variable}; }}"
        yield from numbers.stores if numbers else ()
        yield "    workgroupBarrier();"

    yield f"    var next = {bounds[0]};"
    yield from (f"    var {variable} = vec4<u32>();" for _, _, variable, _ in pieces)
    yield from numbers.variables if numbers else ()
    yield from load()
    yield from store()
    yield f"    for (var first = next; first < {bounds[1]}; first = next) {{"
    yield "    next = first + STEP;"
    yield from load()
    yield from step
    yield "    workgroupBarrier();"
    yield from numbers.end if numbers else ()
    yield from store()
    yield "    }"


def write_scores(a: SubgroupAttention, own: str, side: int) -> Iterator[str]:
    """Write the products of own rows and those of one side of a step, into `scores`."""
    rows, columns, inner = a.unit
    for j in a.across(a.tile.step):
        yield "    {"
        for d in a.depth:
            offset = f"{side * a.tile.step + j * columns}u * STRIDE + {d * inner // HALVES}u"
            load = f"subgroupMatrixLoad<Right, col_major>(&tiles, {offset}, STRIDE)"
            yield f"    let r{d} = {load};"
            for i in a.down:
                target, addend = (f"block{i}",) * 2 if d else (f"var block{i}", "zero")
                factors = f"{own}_{i}_{d}, r{d}, {addend}"
                yield f"    {target} = subgroupMatrixMultiplyAccumulate({factors});"
        for i in a.down:
            place = f"(own_row + {i * rows}u) * SCORE_STRIDE + {j * columns // 4}u"
            stored = f"&scores, {place}, block{i}, SCORE_STRIDE"
            yield f"    subgroupMatrixStore<row_major>({stored});"
        yield "    }"


def add_weighted(
    a: SubgroupAttention, place: Callable[[str, int], str], side: int, sums: str, width: int
) -> Iterator[str]:
    """Write the products of weights and columns of one side of a step, added to `sums`.

    place: array, offset and stride of the weights of a matrix, by its first row and column.
    """
    rows, columns, inner = a.unit
    column0 = "" if width == a.head_dim else f"column0 / {HALVES}u + "
    for t in range(a.tile.step // inner):
        yield "    {"
        for i in a.down:
            weights = place(f"(own_row + {i * rows}u)", t * inner)
            yield f"    let w{i} = subgroupMatrixLoad<Left, row_major>({weights});"
        for j in a.across(width):
            line = f"{side * a.tile.step + t * inner}u * STRIDE"
            offset = f"{line} + {column0}{j * columns // HALVES}u"
            load = f"subgroupMatrixLoad<Right, row_major>(&tiles, {offset}, STRIDE)"
            yield f"    let r{j} = {load};"
            for i in a.down:
                name = f"{sums}_{i}_{j}"
                yield f"    {name} = subgroupMatrixMultiplyAccumulate(w{i}, r{j}, {name});"
        yield "    }"


def chunks(a: SubgroupAttention, width: int) -> Iterator[tuple[int, int]]:
    """Yield first column and number of columns of what `scores` holds of sums at a time."""
    for first in range(0, width, a.tile.step):
        yield first, min(a.tile.step, width - first)


def through_scores(
    a: SubgroupAttention, sums: str, chunk: tuple[int, int], *, back: bool = False
) -> Iterator[str]:
    """Write the stores of some columns of sums into `scores`, or their loads from there."""
    rows, columns, _ = a.unit
    first, width = chunk
    for i, j in product(a.down, a.across(width)):
        name = f"{sums}_{i}_{first // columns + j}"
        place = f"&scores, (own_row + {i * rows}u) * SCORE_STRIDE + {j * columns // 4}u"
        if back:
            yield f"    {name} = subgroupMatrixLoad<Sum, row_major>({place}, SCORE_STRIDE);"
        else:
            yield f"    subgroupMatrixStore<row_major>({place}, {name}, SCORE_STRIDE);"
    yield "    workgroupBarrier();"
