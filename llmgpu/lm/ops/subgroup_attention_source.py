"""Writes the WGSL of attention on matrix units: the forward pass and both kernels of its gradients.

The same sums as those of lm/05_attention.wgsl and lm/10_attention_backward_*.wgsl, of queries,
keys, values and gradients in half precision, with float32 scores and sums.

- A workgroup owns `rows` rows (queries, or keys in the gradients of keys and values), which its
  subgroups hold as matrices, and walks over the rows of the other side in steps.
- Products of own rows and those of a step, scores, go to workgroup memory. Of these each thread
  makes half-precision weights, which are the left factors of the sums.
- The forward pass divides exponentials by that of the largest score of a row. Sums in matrices
  can't be scaled row by row, so this score is replaced only when a row has one `SLACK` powers of
  two larger; the sums then take the way through workgroup memory (as in FlashAttention-4).
- The next step's rows are loaded into registers while this one's are multiplied.

Rows beyond the sequence count as zeros in what is read. Sums have a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from llmgpu.lm.ops.subgroup_attention_parts import (
    KEYS,
    LOWEST,
    QUERIES,
    QUERY_PLACE,
    Numbers,
    SubgroupAttention,
    add_weighted,
    chunks,
    declarations,
    entry_point,
    key_place,
    own_matrices,
    sum_variables,
    text_of,
    through_scores,
    walk,
    write_scores,
)
from llmgpu.lm.ops.subgroup_matrix_tiling import HALVES

SLACK = "8.0"  # weights are at most 2^8, far from the largest half-precision number


@cache
def attention_source(a: SubgroupAttention) -> str:
    """Return the text of the forward pass.

    Bindings: params, q, k, v and out (8 halves an element), log_sum_exp, starts.
    """
    return text_of(
        declarations(a, ("q", "k", "v"), {"scores": "vec4<f32>", "weights": "vec4<u32>"}),
        _FORWARD_DECLARATIONS,
        entry_point(a, "attention", QUERY_PLACE),
        own_matrices(a, ("q",)),
        (f"    var largest = {LOWEST};", "    var sum = 0.0;", "    atomicStore(&grown, 0u);"),
        _FORWARD_STARTS,
        sum_variables(a, ("out",), a.head_dim),
        walk(a, ("k", "v"), KEYS, _forward_step(a)),
        _store_out(a),
        ("    }", "}"),
    )


@cache
def attention_backward_q_source(a: SubgroupAttention) -> str:
    """Return the text of the gradient of queries.

    Bindings: params, q, k, v and grad_out (8 halves an element), log_sum_exp, delta, grad_q.
    """
    step = (
        *_weights(a, ("q", "grad_out"), _query_weights),
        *add_weighted(a, _slopes(a), 0, "grad_q", a.head_dim),
    )
    return text_of(
        declarations(a, ("q", "k", "v", "grad_out"), {"scores": "vec4<u32>"}),
        _gradient_declarations(("grad_q",)),
        entry_point(a, "attention_backward_q", QUERY_PLACE),
        own_matrices(a, ("q", "grad_out")),
        _part_of_row(a),
        _QUERY_NUMBERS,
        sum_variables(a, ("grad_q",), a.head_dim),
        walk(a, ("k", "v"), KEYS, step),
        _store_gradient(a, "grad_q", a.head_dim),
        ("    }", "}"),
    )


@cache
def attention_backward_kv_source(a: SubgroupAttention) -> str:
    """Return the text of the gradients of keys and values.

    Bindings: as those of the gradient of queries, with grad_k and grad_v in place of grad_q.
    """
    width = a.head_dim // a.column_sets
    step = (
        *_weights(a, ("k", "v"), _key_weights),
        *add_weighted(a, _probabilities(a), 1, "grad_v", width),
        *add_weighted(a, _slopes(a), 0, "grad_k", width),
    )
    return text_of(
        declarations(a, ("q", "k", "v", "grad_out"), {"scores": "vec4<u32>"}),
        _gradient_declarations(("grad_k", "grad_v")),
        (f"var<workgroup> {name}: array<vec4<f32>, {a.tile.step // 4}>;" for name in _NUMBERS),
        entry_point(a, "attention_backward_kv", key_place(a)),
        own_matrices(a, ("k", "v")),
        _part_of_row(a),
        sum_variables(a, ("grad_k", "grad_v"), width),
        ("    for (var member = 0u; member < group_size; member++) {",),
        ("    let other_head = head * group_size + member;",),
        walk(a, ("q", "grad_out"), QUERIES, step, _query_numbers(a)),
        ("    }",),
        _store_gradient(a, "grad_k", width),
        _store_gradient(a, "grad_v", width),
        ("    }", "}"),
    )


# The forward pass


def _forward_step(a: SubgroupAttention) -> Iterator[str]:
    yield from write_scores(a, "q", 0)
    yield "    workgroupBarrier();"
    yield "    var factor = 1.0;"
    yield "    if (local_index < ROWS) {"
    quads = range(a.tile.step // 4)
    for c in quads:
        score = f"scores[local_index * SCORE_STRIDE + {c}u]"
        yield f"    let keys{c} = first + {4 * c}u + FOUR;"
        seen = f"(keys{c} <= vec4<u32>(own_first + local_index)) & (keys{c} >= own_start)"
        yield f"    let s{c} = select(vec4<f32>({LOWEST}), {score}, {seen});"
    yield "    var four = s0;"
    yield from (f"    four = max(four, s{c});" for c in quads[1:])
    yield "    let top = max(max(four.x, four.y), max(four.z, four.w));"
    yield f"    if (params.log2_scale * (top - largest) > {SLACK}) {{"
    yield "        factor = exp2(params.log2_scale * (largest - top));"
    yield "        largest = top;"
    yield "        atomicStore(&grown, first + 1u);"
    yield "    }"
    # exp(scale * (score - largest)); the difference first, since large scores have few digits.
    yield "    var total = vec4<f32>();"
    for c in quads:
        yield f"    let p{c} = exp2(params.log2_scale * (s{c} - largest));"
        yield f"    total += p{c};"
        if c % 2:
            place = f"weights[local_index * WEIGHT_STRIDE + {c // 2}u]"
            yield f"    {place} = halves_of(p{c - 1}, p{c});"
    yield "    sum = fma(sum, factor, (total.x + total.y) + (total.z + total.w));"
    yield "    }"
    # The first step has no sums yet. Loading this also waits for all weights.
    yield "    if (workgroupUniformLoad(&grown) == first + 1u && first > begin) {"
    for chunk in chunks(a, a.head_dim):
        yield from through_scores(a, "out", chunk)
        yield f"    for (var c = 0u; c < {chunk[1] // 4}u && local_index < ROWS; c++) {{"
        yield "        scores[local_index * SCORE_STRIDE + c] *= factor;"
        yield "    }"
        yield "    workgroupBarrier();"
        yield from through_scores(a, "out", chunk, back=True)
    yield "    }"
    yield from add_weighted(a, _exponentials, 1, "out", a.head_dim)


def _exponentials(row: str, column: int) -> str:
    return f"&weights, {row} * WEIGHT_STRIDE + {column // HALVES}u, WEIGHT_STRIDE"


def _store_out(a: SubgroupAttention) -> Iterator[str]:
    yield "    let row = own_first + local_index;"
    yield "    let is_inside = local_index < ROWS && row < params.seq;"
    yield "    let number = (sequence + row) * params.heads + head;"
    yield "    if (is_inside) {"
    yield "        log_sum_exp[number] = params.scale * largest + log(sum);"
    yield "    }"
    for first, width in chunks(a, a.head_dim):
        yield from through_scores(a, "out", (first, width))
        yield f"    for (var c = 0u; c < {width // HALVES}u && is_inside; c++) {{"
        yield "        let i = local_index * SCORE_STRIDE + 2u * c;"
        yield f"        out[number * VECTORS + {first // HALVES}u + c] ="
        yield "            halves_of(scores[i] / sum, scores[i + 1u] / sum);"
        yield "    }"
        yield "    workgroupBarrier();"


_FORWARD_DECLARATIONS = (
    "@group(0) @binding(4) var<storage, read_write> out: array<vec4<u32>>;",
    "@group(0) @binding(5) var<storage, read_write> log_sum_exp: array<f32>;",
    "@group(0) @binding(6) var<storage, read> starts: array<u32>;",
    "var<workgroup> grown: atomic<u32>;",
)
# A row may see nothing of its first steps: what it sums up there is finite, and multiplied by 0 at
# the first score that it sees.
_FORWARD_STARTS = (
    "    let begin = starts[sequence + own_first] / STEP * STEP;",
    "    let last_row = params.seq - 1u;",
    "    let own_start = vec4<u32>(starts[sequence + min(own_first + local_index, last_row)]);",
)

_PROBABILITY = """fn probabilities(
    scores: vec4<f32>, logs: vec4<f32>, keys: vec4<u32>, queries: vec4<u32>, firsts: vec4<f32>
) -> vec4<f32> {
    let after = vec4<f32>(keys) >= firsts;
    let seen = (keys <= queries) & after & (queries < vec4<u32>(params.seq));
    return select(vec4<f32>(), exp2(params.log2_scale * (scores - logs)), seen);
}"""


# The gradients


def _part_of_row(a: SubgroupAttention) -> Iterator[str]:
    """Write which row of scores is a thread's, and the first four of its columns."""
    yield f"    let part_row = local_index / {a.row_threads}u;"
    yield f"    let part_quad = local_index % {a.row_threads}u * {a.part_quads}u;"
    yield "    let row = own_first + part_row;"


_QUERY_NUMBERS = (
    "    let number = (sequence + min(row, params.seq - 1u)) * params.heads + head;",
    "    let own_log = vec4<f32>(log_sum_exp[number] / params.scale);",
    "    let own_delta = delta[number];",
    "    let own_start = vec4<f32>(delta[params.starts + sequence + min(row, params.seq - 1u)]);",
    "    let begin = u32(delta[params.starts + sequence + own_first]) / STEP * STEP;",
)
_NUMBERS = {"logs": "log_sum_exp", "deltas": "delta", "firsts": "delta"}


def _query_numbers(a: SubgroupAttention) -> Numbers:
    """Return how the numbers of a step's queries are loaded.

    If the next queries do not see these keys, later ones do not either.
    """
    loaders = f"    if (local_index < {a.tile.step // 4}u) {{"
    loads = [
        "    let next_first = delta[params.starts + sequence + min(next, params.seq - 1u)];",
        loaders,
        "        let queries = min(next + 4u * local_index + FOUR, vec4<u32>(params.seq - 1u));",
        "        let i = (sequence + queries) * params.heads + other_head;",
        "        let start = params.starts + sequence + queries;",
    ]
    for name, source in _NUMBERS.items():
        index = "start" if name == "firsts" else "i"
        four = ", ".join(f"{source}[{index}.{component}]" for component in "xyzw")
        scale = " / params.scale" if name == "logs" else ""
        loads.append(f"        next_{name} = vec4<f32>({four}){scale};")
    return Numbers(
        variables=[f"    var next_{name} = vec4<f32>();" for name in _NUMBERS],
        loads=[*loads, "    }"],
        stores=[loaders, *(f"        {n}[local_index] = next_{n};" for n in _NUMBERS), "    }"],
        end=["    if (next_first >= f32(own_first + ROWS)) { break; }"],
    )


def _weights(
    a: SubgroupAttention, own: tuple[str, str], weights: Callable[[int], Iterator[str]]
) -> Iterator[str]:
    """Write both products of own rows and those of a step, and the weights made of them.

    There is one array for all of that, so that two workgroups find room on a processor: a thread
    has its scores in variables before their slopes take the place of these, and then puts the
    weights there, first the probabilities, then the gradients of scores.
    """
    quads = a.part_quads
    place = "scores[part_row * SCORE_STRIDE + part_quad + {}u]"
    yield from write_scores(a, own[0], 0)
    yield "    workgroupBarrier();"
    for q in range(quads):
        yield f"    let s{q} = bitcast<vec4<f32>>({place.format(q)});"
    yield "    workgroupBarrier();"
    yield from write_scores(a, own[1], 1)
    yield "    workgroupBarrier();"
    for q in range(quads):
        yield f"    let slope{q} = bitcast<vec4<f32>>({place.format(q)});"
        yield f"    let at{q} = first + 4u * (part_quad + {q}u) + FOUR;"
        yield from weights(q)
    for q in range(0, quads, 2):
        yield f"    {place.format(q // 2)} = halves_of(p{q}, p{q + 1});"
        yield f"    {place.format((quads + q) // 2)} = halves_of(ds{q}, ds{q + 1});"
    yield "    workgroupBarrier();"


def _query_weights(q: int) -> Iterator[str]:
    yield f"    let p{q} = probabilities(s{q}, own_log, at{q}, vec4<u32>(row), own_start);"
    yield f"    let ds{q} = p{q} * (slope{q} - own_delta);"


def _key_weights(q: int) -> Iterator[str]:
    numbers = f"logs[part_quad + {q}u], vec4<u32>(row), at{q}, firsts[part_quad + {q}u]"
    yield f"    let p{q} = probabilities(s{q}, {numbers});"
    yield f"    let ds{q} = p{q} * (slope{q} - deltas[part_quad + {q}u]);"


def _probabilities(a: SubgroupAttention, skipped: int = 0) -> Callable[[str, int], str]:
    """Return where probabilities are; skipped: vectors of a thread before those wanted."""
    width = 4 * a.part_quads  # columns of a thread

    def place(row: str, column: int) -> str:
        part, rest = divmod(column, width)
        vector = part * a.part_quads + skipped + rest // HALVES
        return f"&scores, {row} * SCORE_STRIDE + {vector}u, SCORE_STRIDE"

    return place


def _slopes(a: SubgroupAttention) -> Callable[[str, int], str]:
    return _probabilities(a, a.part_quads // 2)


def _store_gradient(a: SubgroupAttention, name: str, width: int) -> Iterator[str]:
    heads = "heads" if name == "grad_q" else "kv_heads"
    factor = "" if name == "grad_v" else "params.scale * "
    column0 = "" if width == a.head_dim else "column0 / 4u + "
    for first, columns in chunks(a, width):
        quads = columns // 4
        yield from through_scores(a, name, (first, columns))
        yield f"    for (var n = local_index; n < ROWS * {quads}u; n += THREADS) {{"
        yield f"        let line = n / {quads}u;"
        yield "        if (own_first + line < params.seq) {"
        yield f"            let i = (sequence + own_first + line) * params.{heads} + head;"
        place = f"i * {a.head_dim // 4}u + {column0}{first // 4}u + n % {quads}u"
        value = f"bitcast<vec4<f32>>(scores[line * SCORE_STRIDE + n % {quads}u])"
        yield f"            {name}[{place}] = {factor}{value};"
        yield "        }"
        yield "    }"
        yield "    workgroupBarrier();"


def _gradient_declarations(outputs: Sequence[str]) -> Iterator[str]:
    yield "@group(0) @binding(5) var<storage, read> log_sum_exp: array<f32>;"
    yield "@group(0) @binding(6) var<storage, read> delta: array<f32>;"
    for index, name in enumerate(outputs, 7):
        yield f"@group(0) @binding({index}) var<storage, read_write> {name}: array<vec4<f32>>;"
    yield _PROBABILITY
