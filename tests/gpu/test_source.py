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
from llmgpu.gpu.source import compose, kernel_names, read_wgsl
from llmgpu.lm.ops import block_codes, optimizer, optimizer_8bit
from llmgpu.lm.ops.hyper import HYPER
from tests.gpu.wgsl import shader_constants, struct_fields

WGSL = Path(__file__).parents[2] / "wgsl"
KERNELS = sorted(
    kernel
    for path in WGSL.rglob("*.wgsl")
    if "@compute" in path.read_text(encoding="utf-8")
    for kernel in kernel_names(str(path.relative_to(WGSL)))
)
HEADER_LINE = re.compile(r"^// binding (\d+)\s+(\w+)\s+(read_write|read|uniform)\b", re.MULTILINE)


def header(kernel: str) -> str:
    """The text that leads up to a kernel, from the end of the one before it in the file."""
    file, _, name = kernel.partition(":")
    text = read_wgsl(file)
    return (
        text
        if not name
        else text.split(f"fn {name}(")[0].rpartition("@compute")[0].rpartition("@compute")[2]
    )


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
    listed = [(int(i), name, access) for i, name, access in HEADER_LINE.findall(header(file))]
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
    assert shader_constants(optimizer.KERNELS)["NORM_PARTIALS"] == optimizer.NORM_PARTIALS
    assert shader_constants(optimizer_8bit.KERNELS)["BLOCK"] == block_codes.BLOCK


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DeviceError, match=r"wgsl/no/such\.wgsl is missing"):
        compose("no/such.wgsl", {})


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
