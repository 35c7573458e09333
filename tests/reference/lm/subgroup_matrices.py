"""Subgroup matrices written out in plain WGSL, for adapters that have none.

A subgroup has one lane here. Factors are not loaded but read where they lie in workgroup memory;
sums lie in an array of the thread. A kernel for one lane then runs on every adapter, with any sizes
of matrices.
"""

from __future__ import annotations

import re

_ALIAS = re.compile(r"alias (\w+) = subgroup_matrix_(\w+)<f\d+, (\d+), (\d+)>;\n")
_SUM = re.compile(r"    var (sums_\d+_\d+): Sum;\n")
_LOAD = re.compile(r"subgroupMatrixLoad<(Left|Right), (row|col)_major>\(&\w+, ")
_LOAD_SUM = re.compile(r"(\w+) = subgroupMatrixLoad<Sum, row_major>\(&(\w+), (.*), dims\.y\);")
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
        body = body.replace(
            f"    var {name}: Sum;\n", f"    let {name} = {index * rows * columns}u;\n"
        )
    stored, loaded = set(_STORE.findall(body)), {array for _, array, _ in _LOAD_SUM.findall(body)}
    body = _LOAD_SUM.sub(r"load_\2(\3, \1, dims.y);", body)
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
    place, held = f"{array}[offset + i / {columns}u * stride + i % {columns}u]", "sums[first + i]"
    target, source = (held, place) if load else (place, held)
    return f"""fn {name}(offset: u32, first: u32, stride: u32) {{
    for (var i = 0u; i < {rows * columns}u; i++) {{
        {target} = {source};
    }}
}}
"""
