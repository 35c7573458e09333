"""The WGSL files: every kernel compiles, its head is true, structs and constants are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu import kernel_source as sources
from llmgpu.errors import DeviceError
from llmgpu.gpu.commands import MAX_GROUPS
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import compose, constant, kernel_source, read_wgsl, struct_dtype
from llmgpu.lm.ops import optimizer
from llmgpu.lm.ops.optimizer import HYPER
from llmgpu.lm.optimizers import adamw

WGSL = Path(__file__).parents[1] / "wgsl"
KERNELS = sorted(
    path.relative_to(WGSL).as_posix()
    for path in WGSL.rglob("*.wgsl")
    if "@compute" in path.read_text(encoding="utf-8")
)
# Settings besides the defaults, with which kernels that have directives are compiled, too.
PRODUCTS = (
    {"rows": 64, "columns": 128, "thread_rows": 8, "thread_columns": 8, "vectors": 1},
    {"left_contiguous": 0, "left_vectors": 1, "whole_inner": 1, "residual": 0, "accumulate": 1},
    {"right_contiguous": 0, "right_vectors": 1, "residual": 0, "stacked": 1, "inner": 8},
    {"left_half": 1, "right_half": 1, "left_vectors": 1},
)
WHOLE = dict.fromkeys(
    ("left_vectors", "right_vectors", "aligned", "whole_rows", "whole_columns", "whole_inner"), 1
)
PRODUCTS_ON_UNITS = (
    {**WHOLE, "long_sums": 1},
    {**WHOLE, "residual": 0, "accumulate": 1},
    {**WHOLE, "residual": 0, "half": 1, "left_contiguous": 0},
    {"residual": 0, "half": 1, "stacked": 1, "right_contiguous": 0},
    {"aligned": 1, "unit_columns": 8, "together": 4, "left_size": 640},
)
ATTENTION_ON_UNITS = ({"head_dim": 128, "column_sets": 2, "rows": 64}, {"head_dim": 16, "step": 16})
GRADIENTS_ON_UNITS = (*ATTENTION_ON_UNITS, *({**each, "packed": 1} for each in ATTENTION_ON_UNITS))
WEIGHTS_IN_HALF = (
    "01_embed_lookup",
    "01_embed_lookup_rows",
    "03_linear_few_rows",
    "03_linear_few_rows_fours",
    "13_normed_gated",
    "13_normed_heads",
)
VECTORS = ("04_split_heads", "06_gated_half", "09_gated_backward_half")
IN_REGISTERS = ("02_rms_norm_backward_half", "02_rms_norm_half")
WITH_HALF_COPY = ("adamw_8bit_update", "adamw_update", "adamw_update_rows", "muon_update")
WITH_SYMBOLS = (
    "bench/pair_count_global",
    "recount/00_word_boundary",
    "recount/02_pair_count",
    "recount/06_run_reduce",
    "recount/08_merge_reduce",
    "recount/12_finalize_compact",
)
SETTINGS: dict[str, tuple[Mapping[str, int], ...]] = {
    "lm/01_embed_lookup_positions.wgsl": ({"four": 1},),
    "lm/03_add_partials.wgsl": ({"parts": 3, "numbers": 1},),
    "lm/03_add_columns.wgsl": ({"numbers": 1},),
    "lm/08_cast_f16_to_f32.wgsl": ({"vectors": 1},),
    "lm/12_newton_schulz.wgsl": ({"half": 1},),
    "lm/08_cast_f32_to_f16.wgsl": ({"vectors": 1},),
    "lm/08_round_to_half.wgsl": ({"vectors": 1},),
    "bench/multiply_matrices.wgsl": ({"unit_columns": 8, "lanes": 64},),
    **{f"{name}.wgsl": ({"symbols_per_word": 1},) for name in WITH_SYMBOLS},
    **{f"lm/{name}.wgsl": ({"half": 1},) for name in WEIGHTS_IN_HALF},
    **{f"lm/{name}.wgsl": ({"fours": 2},) for name in VECTORS},
    **{f"lm/{name}.wgsl": ({"vectors": 1},) for name in IN_REGISTERS},
    **{f"lm/12_{name}.wgsl": ({"half_copy": 1},) for name in WITH_HALF_COPY},
    "lm/03_matrix_product.wgsl": PRODUCTS,
    "lm/03_matrix_product_units.wgsl": PRODUCTS_ON_UNITS,
    "lm/05_attention_units.wgsl": ATTENTION_ON_UNITS,
    "lm/10_attention_backward_q_units.wgsl": (*GRADIENTS_ON_UNITS, {"stores": 1}),
    "lm/10_attention_backward_kv_units.wgsl": GRADIENTS_ON_UNITS,
    "lm/10_attention_backward_kv_stored_units.wgsl": GRADIENTS_ON_UNITS,
}
COMPILED = [(file, settings) for file in KERNELS for settings in ({}, *SETTINGS.get(file, ()))]
SCAN = {"scan": "common/scan_shared.wgsl"}
OVERRIDE = re.compile(r"^override (\w+):", re.MULTILINE)
HEADER_LINE = re.compile(r"^// binding (\d+)\s+(\w+)\s+(read_write|read|uniform)\b", re.MULTILINE)


@cache
def source_of(file: str, **settings: int) -> sources.KernelSource:
    """Compose a kernel with its settings once."""
    return compose(file, {**SCAN, **settings})


def test_kernels_with_directives_are_compiled_with_several_settings() -> None:
    of_directives = {
        file
        for file in KERNELS
        if source_of(file).settings - set(OVERRIDE.findall(source_of(file).text))
    }
    assert set(SETTINGS) == of_directives
    for file, settings in COMPILED:
        assert set(settings) <= source_of(file).settings, file


@pytest.mark.parametrize(("file", "settings"), COMPILED, ids=str)
def test_every_kernel_compiles(any_device: Device, file: str, settings: Mapping[str, int]) -> None:
    text = source_of(file, **settings).text
    if "probe_subgroups" in file and not any_device.subgroup_size:
        pytest.skip("asks for subgroups")
    if "subgroup_matrix" in text and not any_device.matrix_shapes:
        pytest.skip("asks for matrix units")
    if "enable f16;" in text and "shader-f16" not in any_device.features:
        pytest.skip("asks for half precision")
    if "atomic<f32>" in text:
        pytest.skip("asks for a feature that only tests/bench/test_ideas.py requests")
    kernel = any_device.kernel(file, **settings)
    assert kernel is any_device.kernel(file, **settings)


@pytest.mark.parametrize("file", KERNELS)
def test_headers_list_the_bindings(file: str) -> None:
    listed = [(int(i), name, access) for i, name, access in HEADER_LINE.findall(read_wgsl(file))]
    assert [index for index, _, _ in listed] == list(range(len(listed)))
    found = set()
    for settings in ({}, *SETTINGS.get(file, ())):
        source = source_of(file, **settings)
        declared = [(b.index, b.name, b.access) for b in source.bindings]
        assert declared == listed[: len(declared)]
        found |= set(declared)
    assert found == set(listed)


def test_kernels_keep_to_webgpu_s_default_number_of_storage_buffers() -> None:
    for file, settings in COMPILED:
        source = source_of(file, **settings)
        assert sum(binding.access != "uniform" for binding in source.bindings) <= 8, file


def test_uniform_structs_fill_whole_vectors() -> None:
    assert HYPER.itemsize % 16 == 0


def test_constants_are_those_of_the_host() -> None:
    for file in ("recount/iter_state.wgsl", "trie/00_chunk_entry.wgsl"):
        assert constant(file, "MAX_GROUPS") == MAX_GROUPS
    assert constant("lm/squares.wgsl", "NORM_PARTIALS") == optimizer.NORM_PARTIALS
    assert constant("lm/adamw_8bit.wgsl", "BLOCK") == adamw.BLOCK


DECLARATIONS = """
override ROWS: u32 = 3u; // rows of a tile
const SLOTS: u32 = ROWS * 4u + 0x10u;
const SCALE: f32 = 0.5;

struct Point {
    position: vec3<f32>, // 12 bytes, at multiples of 16
    weight: f32,
    pair: vec2<u32>,
}

// struct Hidden { x: u32, }
struct Tile {
    count: atomic<u32>, // so: many
    points: array<Point, ROWS>,
    counts: array<atomic<u32>, SLOTS>,
    last: u32,
}

struct Broken {
    gap: array<vec3<u32>, 2>,
}

struct Endless {
    rest: array<u32>,
}
"""


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with the declarations above."""
    monkeypatch.setattr(sources, "read_wgsl", lambda name: DECLARATIONS)
    yield "declared.wgsl"
    sources._declared.cache_clear()


def offsets(struct: np.dtype[np.void]) -> list[int]:
    """Bytes before each field, in order."""
    assert struct.fields is not None
    return [struct.fields[name][1] for name in struct.names or ()]


def test_structs_are_laid_out_as_wgsl_says(declared: str) -> None:
    point, tile = struct_dtype(declared, "Point"), struct_dtype(declared, "Tile")
    assert point.names == ("position", "weight", "pair") and point.itemsize == 32
    assert offsets(point) == [0, 12, 16]
    assert tile.names == ("count", "points", "counts", "last") and tile.itemsize == 240
    assert offsets(tile) == [0, 16, 112, 224]
    one = np.zeros(1, tile)
    one["points"][0, 2]["pair"] = 5, 7
    assert one.view(np.uint32)[(16 + 2 * 32 + 16) // 4 :][:2].tolist() == [5, 7]


def test_constants_are_read_and_computed(declared: str) -> None:
    assert (constant(declared, "ROWS"), constant(declared, "SLOTS")) == (3, 28)


def joined(parts: tuple[tuple[str, str], str, tuple[str, str]]) -> tuple[str, str]:
    """Return two operands in parentheses with an operator between them, in WGSL and in Python."""
    (left, python_left), operator, (right, python_right) = parts
    spelled = "//" if operator == "/" else operator
    return f"(({left}) {operator} ({right}))", f"int(({python_left}) {spelled} ({python_right}))"


NUMBERS = {"0": "0", "1": "1", "7u": "7", "0x2Fu": "0x2F", "ROWS": "ROWS", "4096u": "4096"}
OPERATORS = ("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or")
ARITHMETIC = st.recursive(
    st.sampled_from(sorted(NUMBERS.items())),
    lambda parts: (
        st.tuples(parts, st.sampled_from(OPERATORS), parts).map(joined)
        | st.tuples(parts, st.sampled_from(("+", " - ", "*")), parts).map(
            lambda three: (
                three[0][0] + three[1] + three[2][0],
                three[0][1] + three[1] + three[2][1],
            )
        )
        | parts.map(lambda part: (f"(not ({part[0]}))", f"int(({part[1]}) == 0)"))
    ),
)


@given(ARITHMETIC)
def test_arithmetic_is_that_of_python(expression: tuple[str, str]) -> None:
    declared = sources._Declared("const ROWS: u32 = 3u;")
    wgsl, python = expression
    try:
        expected = eval(python, {"ROWS": 3})
    except ZeroDivisionError:
        with pytest.raises(ValueError, match=r"division|modulo"):
            declared.evaluate(wgsl)
    else:
        assert declared.evaluate(wgsl) == expected


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3 < 7 + 1", 1),
        ("1 or 0 and 0", 1),
        ("2 - 1 - 1", 0),
        ("not 0 and 2 == 2", 1),
        ("not 1 == 1", 0),
        ("1 << 2", 4),
        ("7 / 2 * 2", 6),
    ],
)
def test_operators_bind_as_in_python(expression: str, value: int) -> None:
    assert sources._Declared("").evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "(1", "1)", "1 2", "ROW", "!1", "1 && 1", "f(1)", "1.5", "1 / 0", "()", "'1'"],
)
def test_what_is_no_plain_arithmetic_is_an_error(expression: str) -> None:
    declared = sources._Declared("const ROWS: u32 = 3u;")
    with pytest.raises(ValueError, match=f"compute {re.escape(repr(expression))} in WGSL"):
        declared.evaluate(expression)


def test_several_threads_evaluate_at_a_time() -> None:
    expressions = [
        f"({number} + 2u) * 3 == {3 * number + 6} and not {number}" for number in range(99)
    ]
    with ThreadPoolExecutor(8) as threads:
        values = [*threads.map(sources._Declared("").evaluate, expressions * 20)]
    assert values == ([1] + [0] * 98) * 20


def test_what_a_file_does_not_declare_is_an_error(declared: str) -> None:
    with pytest.raises(ValueError, match=r"can't compute 'SCALE' in WGSL: name 'SCALE' is not"):
        constant(declared, "SCALE")
    with pytest.raises(DeviceError, match=r"the WGSL type Hidden has no layout"):
        struct_dtype(declared, "Hidden")
    for name, kind in (("Broken", "array<vec3<u32>, 2>"), ("Endless", "array<u32>")):
        with pytest.raises(DeviceError, match=f"WGSL type {kind} has no layout"):
            struct_dtype(declared, name)


def test_structs_of_the_loops_have_the_expected_sizes() -> None:
    """Written down apart from the parser, as the kernels' arrays are strided by them."""
    sizes = {"Pair": 16, "Entry": 20, "Unit": 8, "Link": 8, "Member": 16}
    for name, size in sizes.items():
        assert struct_dtype("batched/state.wgsl", name).itemsize == size
    state = struct_dtype("batched/state.wgsl", "BatchState")
    assert offsets(state)[-1] == 31 * 4 and state.itemsize == 31 * 4 + 128 * 16
    assert struct_dtype("recount/iter_state.wgsl", "IterState").itemsize == 44
    assert struct_dtype("words/state.wgsl", "WordState").itemsize == 60
    names = [f"STATE_{name}" for name in ("CARRY", "TOTAL", "UNMATCHED", "UNMATCHED_BYTE")]
    assert [constant("trie/params.wgsl", name) for name in names] == [0, 1, 2, 3]


KERNEL = """//!override rows = 2
//!override name = sums
//!include parts.wgsl
//!include parts.wgsl
//!let size = {rows * 4}
//!let size = 1 if rows > 3
//!block terms
  //!for j in 0..rows
    {sum} += left_{j}; // {sum}
  //!end
//!end
// {a comment}
@compute @workgroup_size({size})
fn {name}() {
//!for side other in left right, right left
  //!let kind_{side} = a {other}
    let {side} = {kind_{side}} { x };
//!end
//!if rows == 2 and size != 1
//!let sum = first
//!include terms
//!else
    none;
//!end
//!let sum = second
//!include terms
}
"""


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files below wgsl/, empty but for one part."""
    files = {"parts.wgsl": "const PART: u32 = {rows}u;"}
    monkeypatch.setattr(sources, "read_wgsl", files.__getitem__)
    return files


def test_directives_write_the_text(texts: dict[str, str]) -> None:
    texts["kernel.wgsl"] = KERNEL
    source = compose("kernel.wgsl", {})
    assert source.text.splitlines() == [
        "const PART: u32 = 2u;",
        "// {a comment}",
        "@compute @workgroup_size(8)",
        "fn sums() {",
        "    let left = a right { x };",
        "    let right = a left { x };",
        "    first += left_0; // first",
        "    first += left_1; // first",
        "    second += left_0; // second",
        "    second += left_1; // second",
        "}",
    ]
    assert (source.entry, source.settings) == ("sums", {"rows", "name"})
    assert source.lines[0] == ("parts.wgsl", 1) and source.lines[-2] == ("kernel.wgsl", 9)
    assert source.workgroup() == (8, 0)


def test_the_host_gives_other_settings(texts: dict[str, str]) -> None:
    texts["kernel.wgsl"] = KERNEL
    given = {"rows": 5, "name": "terms", "PART": 7}
    lines = compose("kernel.wgsl", given).text.splitlines()
    assert lines[0] == "const PART: u32 = 5u;" and lines[2:4] == [
        "@compute @workgroup_size(1)",
        "fn terms() {",
    ]
    assert lines[6] == "    none;" and lines[-2] == "    second += left_4; // second"
    assert compose("kernel.wgsl", {"rows": True}).text.startswith("const PART: u32 = 1u;")


def test_the_host_gives_values_of_overrides(texts: dict[str, str]) -> None:
    texts["kernel.wgsl"] = "override SIZE: u32 = 4u; // {size}\n" + KERNEL
    assert compose("kernel.wgsl", {}).text.startswith("override SIZE: u32 = 4u; // {size}\n")
    source = compose("kernel.wgsl", {"SIZE": 9, "rows": 1})
    assert source.text.startswith("override SIZE: u32 = 9; // {size}\nconst PART: u32 = 1u;")
    assert source.settings == {"SIZE", "rows", "name"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("//!for i in 0..2\n//!end\n//!end", r":3: //!end has no meaning here"),
        ("//!for i in 0..2\n//!else\n//!end", r":2: //!else has no meaning here"),
        ("//!unless 1", r":1: //!unless 1 has no meaning here"),
        ("\n//!if 1\n//!else", r":2: //!if has no //!end"),
        ("//!for i j in 0 1, 2\n//!end", r":1: zip\(\)"),
        ("\nlet x = {rows}u;", r":2: the host can't compute 'rows'"),
        ("//!let a = {1 +}\n{a}", r"kernel.wgsl has 0 entry points"),
        ("//!if 1 +\n//!end", r":1: the host can't compute '1 \+'"),
        ("//!let rows", r":1: not enough values"),
    ],
)
def test_a_wrong_directive_is_named(texts: dict[str, str], text: str, message: str) -> None:
    texts["kernel.wgsl"] = text
    with pytest.raises(DeviceError, match=f"^wgsl/{message}|^wgsl/kernel.wgsl{message}"):
        compose("kernel.wgsl", {})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DeviceError, match=r"wgsl/no/such\.wgsl is missing"):
        compose("no/such.wgsl", {})


@pytest.mark.parametrize("name", ["half", "lookup"])
def test_a_file_without_a_kernel_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=rf"wgsl/lm/{name}.wgsl has 0 entry points"):
        compose(f"lm/{name}.wgsl", {})


def test_a_text_of_two_kernels_is_refused() -> None:
    text = "@compute @workgroup_size(1)\nfn one() {}\n@compute @workgroup_size(1)\nfn two() {}"
    lines = [(line, "two.wgsl", number) for number, line in enumerate(text.splitlines(), 1)]
    with pytest.raises(DeviceError, match=r"wgsl/two.wgsl has 2 entry points instead of one"):
        kernel_source(lines, "two.wgsl")


def test_an_unknown_constant_does_not_compile(device: Device) -> None:
    with pytest.raises(DeviceError, match="bpe_setup_merge does not compile"):
        device.kernel("recount/05_setup_merge.wgsl", NO_SUCH_CONSTANT=1)


def test_constants_beyond_the_adapter_s_limits_are_refused(portable_device: Device) -> None:
    with pytest.raises(DeviceError, match=r"max-compute-workgroup-storage-size of 32768"):
        portable_device.kernel("recount/02_pair_count.wgsl", LOCAL_TABLE_SIZE=4096)
    with pytest.raises(DeviceError, match=r"invocations-per-workgroup of 512.* has 256"):
        portable_device.kernel("recount/09_scan_blocks.wgsl", WORKGROUP_SIZE=512)


def test_probe_numbers_lanes_in_order(device: Device) -> None:
    if "subgroup" in device.features:
        assert device.subgroup_size in (4, 8, 16, 32, 64, 128)
        assert np.log2(device.subgroup_size) % 1 == 0
