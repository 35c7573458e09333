"""Of a file with several kernels, one gets only what it uses."""

from __future__ import annotations

import pytest

from llmgpu.errors import DeviceError
from llmgpu.gpu.declarations import Line, keep_used, split
from llmgpu.gpu.source import kernel_source

TEXT = """
// Two kernels, one of which needs half precision.
enable f16;

override WORKGROUP_SIZE: u32 = 64u;  // threads
const UNUSED: u32 = 3u;

struct Pair {
    a: f32,  // half { of
    b: f32,
}

@group(0) @binding(0) var<storage, read> wide: array<f32>;
@group(0) @binding(0) var<storage, read> narrow: array<f16>;
@group(0) @binding(1) var<storage, read_write> out: array<Pair>;

fn twice(x: f32) -> f32 {
    return 2.0 * x;  // not narrow
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn from_wide(@builtin(local_invocation_index) i: u32) {
    out[i].a = twice(wide[i]);
}

@compute @workgroup_size(WORKGROUP_SIZE)
fn from_narrow(
    @builtin(local_invocation_index) i: u32,
) {
    out[i].b = f32(narrow[i]);
}
"""
LINES = [Line(text, "two.wgsl", number) for number, text in enumerate(TEXT.splitlines(), 1)]


def test_declarations_are_found() -> None:
    names = [declaration.name for declaration in split(LINES)]
    assert names == [
        "",
        "WORKGROUP_SIZE",
        "UNUSED",
        "Pair",
        "wide",
        "narrow",
        "out",
        "twice",
        "from_wide",
        "from_narrow",
    ]


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("from_wide", ["WORKGROUP_SIZE", "Pair", "wide", "out", "twice", "from_wide"]),
        ("from_narrow", ["", "WORKGROUP_SIZE", "Pair", "narrow", "out", "from_narrow"]),
    ],
)
def test_a_kernel_keeps_what_it_uses(entry: str, kept: list[str]) -> None:
    lines = keep_used(LINES, entry)
    assert [declaration.name for declaration in split(lines)] == kept
    assert all(TEXT.splitlines()[line.number - 1] == line.text for line in lines)


def test_bindings_are_the_kernel_s_own() -> None:
    source = kernel_source(LINES, "from_narrow", "two.wgsl")
    assert [(b.index, b.name, b.access) for b in source.bindings] == [
        (0, "narrow", "read"),
        (1, "out", "read_write"),
    ]


def test_a_kernel_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"has no kernel sideways; it has from_wide, from_narrow"):
        kernel_source(LINES, "sideways", "two.wgsl")
    with pytest.raises(DeviceError, match="has 2 entry points instead of one"):
        kernel_source(LINES, "", "two.wgsl")
