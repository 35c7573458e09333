"""What is on disk: every kernel compiles, its header is true, and the host knows its structs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from llmgpu.bpe.plain import greedy_gpu as encode_gpu
from llmgpu.bpe.plain import recount_gpu as train_recount
from llmgpu.errors import DeviceError
from llmgpu.gpu import Device
from llmgpu.gpu.commands import MAX_GROUPS
from llmgpu.gpu.source import Line, compose, kernel_source, read_wgsl
from llmgpu.lm.ops import optimizer
from llmgpu.lm.ops.hyper import HYPER
from llmgpu.lm.optimizers import adamw_8bit
from tests.gpu.wgsl import shader_constants, struct_fields

WGSL = Path(__file__).parents[2] / "wgsl"
KERNELS = sorted(
    path.relative_to(WGSL).as_posix()
    for path in WGSL.rglob("*.wgsl")
    if "@compute" in path.read_text(encoding="utf-8")
)
HEADER_LINE = re.compile(r"^// binding (\d+)\s+(\w+)\s+(read_write|read|uniform)\b", re.MULTILINE)


def uses_half_precision(kernel: str) -> bool:
    return "enable f16;" in compose(kernel, {"scan": "common/scan_shared.wgsl"}).text


@pytest.mark.parametrize("file", KERNELS)
def test_every_kernel_compiles(any_device: Device, file: str) -> None:
    if "probe_subgroups" in file and not any_device.subgroup_size:
        pytest.skip("asks for subgroups")
    if uses_half_precision(file) and "shader-f16" not in any_device.features:
        pytest.skip("asks for half precision")
    kernel = any_device.kernel(file)
    assert kernel is any_device.kernel(file)


@pytest.mark.parametrize("file", KERNELS)
def test_headers_list_the_bindings(file: str) -> None:
    source = compose(file, {"scan": "common/scan_shared.wgsl"})
    declared = [(b.index, b.name, b.access) for b in source.bindings]
    listed = [(int(i), name, access) for i, name, access in HEADER_LINE.findall(read_wgsl(file))]
    assert listed == declared
    assert [index for index, _, _ in declared] == list(range(len(declared)))


def test_kernels_keep_to_webgpu_s_default_number_of_storage_buffers() -> None:
    for file in KERNELS:
        source = compose(file, {"scan": "common/scan_shared.wgsl"})
        assert sum(binding.access != "uniform" for binding in source.bindings) <= 8, file


def test_structs_are_those_of_the_host() -> None:
    assert struct_fields("recount/iter_state.wgsl", "IterState") == list(
        train_recount.STATE.names or ()
    )
    assert struct_fields("trie/params.wgsl", "TrieParams") == list(encode_gpu.PARAMS.names or ())
    assert struct_fields("lm/hyper.wgsl", "Hyper") == list(HYPER.names or ())
    assert HYPER.itemsize % 16 == 0


def test_constants_are_those_of_the_host() -> None:
    shader = shader_constants("recount/iter_state.wgsl")
    byte_offsets = [name for name in shader if name.startswith("ARGS_") and name != "ARGS_COUNT_OF"]
    assert len(byte_offsets) == shader["ARGS_COUNT_OF"] == 6
    for name in byte_offsets:
        assert 12 * shader[name] == getattr(train_recount, name)
    for file in ("recount/iter_state.wgsl", "trie/00_chunk_entry.wgsl"):
        assert shader_constants(file)["MAX_GROUPS"] == MAX_GROUPS
    for name in ("RUNNING", "FINISHED", "TABLE_FULL"):
        assert shader[name] == getattr(train_recount, name)
    shader = shader_constants("trie/params.wgsl")
    for name in ("STATE_CARRY", "STATE_TOTAL", "STATE_UNMATCHED", "STATE_UNMATCHED_BYTE"):
        assert shader[name] == getattr(encode_gpu, name)
    assert sum(name.startswith("STATE_") for name in shader) == encode_gpu.STATE_WORDS
    for name in ("NO_TOKEN", "NO_BYTE"):
        assert shader[name] == encode_gpu.NONE
    shader = shader_constants("trie/01_long_exit.wgsl")
    assert shader["MAX_CHUNK"] == encode_gpu.MAX_CHUNK_BYTES
    shader = shader_constants("lm/12_reduce_norm_sq.wgsl")
    assert shader["NORM_PARTIALS"] == optimizer.NORM_PARTIALS
    assert shader_constants("lm/adamw_8bit.wgsl")["BLOCK"] == adamw_8bit.BLOCK


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DeviceError, match=r"wgsl/no/such\.wgsl is missing"):
        compose("no/such.wgsl", {})


@pytest.mark.parametrize("name", ["half", "lookup"])
def test_a_file_without_a_kernel_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=rf"wgsl/lm/{name}.wgsl has 0 entry points"):
        compose(f"lm/{name}.wgsl", {})


def test_a_text_of_two_kernels_is_refused() -> None:
    text = "@compute @workgroup_size(1)\nfn one() {}\n@compute @workgroup_size(1)\nfn two() {}"
    lines = [Line(line, "two.wgsl", number) for number, line in enumerate(text.splitlines(), 1)]
    with pytest.raises(DeviceError, match=r"wgsl/two.wgsl has 2 entry points instead of one"):
        kernel_source(lines, "two.wgsl")


def test_an_unknown_constant_does_not_compile(device: Device) -> None:
    with pytest.raises(DeviceError, match="bpe_setup_merge does not compile"):
        device.kernel("recount/05_setup_merge.wgsl", NO_SUCH_CONSTANT=1)


def test_constants_beyond_the_adapter_s_limits_are_refused(portable_device: Device) -> None:
    with pytest.raises(DeviceError, match=r"max-compute-workgroup-storage-size of 32768"):
        portable_device.kernel("recount/02_pair_count.wgsl", LOCAL_TABLE_SIZE=4096)
    with pytest.raises(DeviceError, match=r"invocations-per-workgroup of 512.* has 256"):
        portable_device.kernel("recount/09_scan_pass1.wgsl", WORKGROUP_SIZE=512)


def test_probe_numbers_lanes_in_order(device: Device) -> None:
    if "subgroup" in device.features:
        assert device.subgroup_size in (4, 8, 16, 32, 64, 128)
        assert np.log2(device.subgroup_size) % 1 == 0
