"""Subgroup matrices written out in plain WGSL, for adapters that have none.

A subgroup has one lane here. Factors are not loaded but read where they lie in workgroup memory;
sums lie in an array of the thread. A kernel for one lane then runs on every adapter, with any sizes
of matrices.
"""

from __future__ import annotations

import re

_ALIAS = re.compile(r"alias (\w+) = subgroup_matrix_(\w+)<f\d+, (\d+), (\d+)>;\n")
_SUM = re.compile(r" *var (sums_\d+_\d+): Sum;\n")
_LOAD = re.compile(r"subgroupMatrixLoad<(Left|Right), (row|col)_major>\(&\w+, ")
_LOAD_SUM = re.compile(
    r"(\w+) = subgroupMatrixLoad<Sum, row_major>\(&(\w+), (.*), (dims\.y / 4u)\);"
)
_MULTIPLY = re.compile(r"\w+ = subgroupMatrixMultiplyAccumulate\(")
_STORE = re.compile(r"subgroupMatrixStore<row_major>\(&(\w+), ")
_BUILTINS = re.compile(r"    @builtin\(subgroup_(?:invocation_)?id\) \w+: u32,\n")


def written_out(text: str) -> str:
    """Return a kernel for subgroups of one lane without subgroup matrices."""
    sizes = {kind: (int(rows), int(columns)) for kind, _, columns, rows in _ALIAS.findall(text)}
    rows, columns = sizes["Sum"]
    names = _SUM.findall(text)
    body = _BUILTINS.sub("", _ALIAS.sub("", text)).replace("enable f16;\n", "")
    for index, name in enumerate(names):
        body = body.replace(f"var {name}: Sum;\n", f"let {name} = {index * rows * columns}u;\n")
    stored, loaded = set(_STORE.findall(body)), {found[1] for found in _LOAD_SUM.findall(body)}
    body = _LOAD_SUM.sub(r"load_\2(\3, \1, \4);", body)
    body = _LOAD.sub(lambda found: f"Factor({'true' if found[2] == 'row' else 'false'}, ", body)
    body = _STORE.sub(r"store_\1(", _MULTIPLY.sub("multiply(", body))
    body = body.replace(
        "    let group = ", "    let subgroup = local_index;\n    let lane = 0u;\n    let group = "
    )
    return "".join(
        (
            "enable f16;\n" if "array<f16>" in body else "",
            f"var<private> sums: array<f32, {len(names) * rows * columns}>;\n",
            "struct Factor { row_major: bool, offset: u32, stride: u32 }\n",
            _element("left"),
            _element("right"),
            _multiply(sizes["Left"][1], rows, columns),
            *(_copy(f"store_{array}", array, rows, columns, load=False) for array in stored),
            *(_copy(f"load_{array}", array, rows, columns, load=True) for array in loaded),
            body,
        )
    )


def _element(side: str) -> str:
    """Return a function that reads an element; offset and stride count vectors of 8 halves."""
    return f"""fn {side}_element(m: Factor, row: u32, column: u32) -> f32 {{
    let line = select(column, row, m.row_major);
    let i = (m.offset + line * m.stride) * 8u + select(row, column, m.row_major);
    return unpack2x16float({side}_tile[i / 8u][i % 8u / 2u])[i % 2u];
}}
"""


def _multiply(inner: int, rows: int, columns: int) -> str:
    return f"""fn multiply(left: Factor, right: Factor, first: u32) {{
    for (var i = 0u; i < {rows * columns}u; i++) {{
        for (var k = 0u; k < {inner}u; k++) {{
            let l = left_element(left, i / {columns}u, k);
            sums[first + i] += l * right_element(right, k, i % {columns}u);
        }}
    }}
}}
"""


def _copy(name: str, array: str, rows: int, columns: int, *, load: bool) -> str:
    # Offset and stride count vectors.
    place = f"{array}[offset + i / {columns}u * stride + i % {columns}u / 4u][i % 4u]"
    held = "bitcast<u32>(sums[first + i])" if array.endswith("_tile") else "sums[first + i]"
    target, source = (held, place) if load else (place, held)
    return f"""fn {name}(offset: u32, first: u32, stride: u32) {{
    for (var i = 0u; i < {rows * columns}u; i++) {{
        {target} = {source};
    }}
}}
"""


_ARRAY = re.compile(r"var<workgroup> (\w+): array<vec4<([fu]32)>, [^>]+>;")
_MATRIX_VARIABLE = re.compile(r"( *)var (\w+): Sum;")
_MATRIX_LOAD = re.compile(
    r"( *)(?:let )?(\w+) = subgroupMatrixLoad<(\w+), (row|col)_major>\(&(\w+), (.*)\);"
)
_MATRIX_STORE = re.compile(r"( *)subgroupMatrixStore<row_major>\(&(\w+), (.*)\);")
_MATRIX_MULTIPLY = re.compile(
    r"( *)(?:var )?(\w+) = subgroupMatrixMultiplyAccumulate\((\w+), (\w+), (\w+)\);"
)


def by_first_lanes(text: str, lanes: int) -> str:
    """Return a kernel whose matrices are in workgroup memory, computed by the first lane of each.

    It runs on every adapter, in subgroups of any number of lanes. Arrays have vectors of 4 numbers
    or of 8 halves, which offsets and strides count.
    """
    sizes = {kind: (int(rows), int(columns)) for kind, _, columns, rows in _ALIAS.findall(text)}
    scalars = dict(_ARRAY.findall(text))
    loads = {(kind, order, array) for _, _, kind, order, array, _ in _MATRIX_LOAD.findall(text)}
    stores = {array for _, array, _ in _MATRIX_STORE.findall(text)}
    sums = {name for _, name in _MATRIX_VARIABLE.findall(text)}
    products = {name for _, name, *_ in _MATRIX_MULTIPLY.findall(text)}
    names = sorted(sums | products | {name for _, name, *_ in _MATRIX_LOAD.findall(text)})
    threads = int(re.findall(r"@workgroup_size\((\d+)\)", text)[0])
    size = max(rows * columns for rows, columns in sizes.values())
    body = _BUILTINS.sub("", _ALIAS.sub("", text)).replace("enable f16;\n", "")
    body = _MATRIX_VARIABLE.sub(r"\1if (leads) { zero(m_\2); }", body)
    body = _MATRIX_LOAD.sub(r"\1if (leads) { load_\3_\4_\5(m_\2, \6); }", body)
    body = _MATRIX_STORE.sub(r"\1if (leads) { store_\2(\3); }", body)
    body = _MATRIX_MULTIPLY.sub(r"\1if (leads) { multiply(m_\3, m_\4, m_\5, m_\2); }", body)
    for name in names:  # as arguments, matrices are where they begin
        body = re.sub(rf"(?<=[(,] )({name})(?=[,)])|(?<=\()({name})(?=,)", f"m_{name}", body)
    body = body.replace("subgroupShuffleXor(", "shuffled(local_index, ")
    first = [
        f"    let subgroup = local_index / {lanes}u;",
        f"    let lane = local_index % {lanes}u;",
        f"    let leads = local_index % {lanes}u == 0u;",
    ]
    for index, name in enumerate(names):
        first.append(f"    let m_{name} = (subgroup * {len(names)}u + {index}u) * {size}u;")
    body = body.replace("    let group = ", "\n".join([*first, "    let group = "]))
    head = f"var<workgroup> matrices: array<f32, {threads // lanes * len(names) * size}>;\n"
    head += f"var<workgroup> lane_values: array<f32, {threads}>;\n"
    functions = (
        # No compiler can tell how many rounds this makes of a loop.
        "fn rounds(n: u32) -> u32 { return min(n, params.seq + n); }\n",
        _SHUFFLE,
        _multiply_matrices(*sizes["Sum"], sizes["Left"][1]),
        f"fn zero(m: u32) {{\n{_rounds('i', size)}matrices[m + i] = 0.0; }}\n}}\n",
        *(_load_matrix(*load, *sizes[load[0]]) for load in sorted(loads)),
        *(_store_matrix(array, *sizes["Sum"], scalars[array]) for array in sorted(stores)),
    )
    return (
        head + body[: body.index("@compute")] + "".join(functions) + body[body.index("@compute") :]
    )


_SHUFFLE = """fn shuffled(local_index: u32, value: f32, mask: u32) -> f32 {
    lane_values[local_index] = value;
    workgroupBarrier();
    let other = lane_values[local_index ^ mask];
    workgroupBarrier();
    return other;
}
"""


def _rounds(name: str, count: int) -> str:
    return f"    for (var {name} = 0u; {name} < rounds({count}u); {name}++) {{ "


def _multiply_matrices(rows: int, columns: int, inner: int) -> str:
    return f"""fn multiply(left: u32, right: u32, addend: u32, sum: u32) {{
{_rounds("n", rows * columns)}
        var term = left + n / {columns}u * {inner}u;
        var other = right + n % {columns}u;
        var total = matrices[addend + n];
    {_rounds("k", inner)}
            total = fma(matrices[term + k], matrices[other + k * {columns}u], total);
        }}
        matrices[sum + n] = total;
    }}
}}
"""


def _load_matrix(kind: str, order: str, array: str, rows: int, columns: int) -> str:
    line, place = (f"n / {columns}u", f"n % {columns}u")
    if order == "col":
        line, place = place, line
    width = 4 if kind == "Sum" else 8
    value = f"{array}[at / {width}u]"
    if kind == "Sum":
        value = f"bitcast<f32>({value}[at % 4u])"
    else:
        value = f"unpack2x16float({value}[at % 8u / 2u])[at % 2u]"
    return f"""fn load_{kind}_{order}_{array}(m: u32, offset: u32, stride: u32) {{
{_rounds("n", rows * columns)}
        let at = (offset + {line} * stride) * {width}u + {place};
        matrices[m + n] = {value};
    }}
}}
"""


def _store_matrix(array: str, rows: int, columns: int, scalar: str) -> str:
    return f"""fn store_{array}(offset: u32, m: u32, stride: u32) {{
{_rounds("n", rows * columns)}
        let at = (offset + n / {columns}u * stride) * 4u + n % {columns}u;
        {array}[at / 4u][at % 4u] = bitcast<{scalar}>(matrices[m + n]);
    }}
}}
"""
