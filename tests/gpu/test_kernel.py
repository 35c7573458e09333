"""Compiling and binding: once for each set of constants, and errors that say where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmgpu.errors import DeviceError
from llmgpu.gpu import Device, Kernel
from llmgpu.gpu.source import compose, read_wgsl


def test_a_kernel_is_compiled_once_for_each_set_of_constants(any_device: Device) -> None:
    file = "recount/09_scan_pass1.wgsl"
    one = any_device.kernel(file, WORKGROUP_SIZE=64, SCAN_TILE=256)
    assert any_device.kernel(file, SCAN_TILE=256, WORKGROUP_SIZE=64) is one
    other = any_device.kernel(file, WORKGROUP_SIZE=128, SCAN_TILE=256)
    assert other is not one
    assert (one.workgroup_size, other.workgroup_size) == (64, 128)


def test_threads_get_the_same_kernels(any_device: Device) -> None:
    request = ("recount/03_find_max.wgsl", {"WORKGROUP_SIZE": 32})
    kernels = any_device.prepare([request] * 8)
    assert len({id(kernel) for kernel in kernels}) == 1
    assert kernels[0] is any_device.kernel("recount/03_find_max.wgsl", WORKGROUP_SIZE=32)


def test_bind_refuses_a_name_too_many(device: Device) -> None:
    kernel = device.kernel("recount/07_run_scan.wgsl")
    buffers = {name: device.create_buffer(name, 64) for name in ("run_starts", "state", "symbols")}
    with pytest.raises(TypeError, match=r"bpe_run_scan binds .*, not .*'symbols'\]"):
        kernel.bind(**buffers)


@pytest.mark.parametrize(
    ("file", "of", "right", "wrong"),
    [
        (
            "recount/05_setup_merge.wgsl",
            "recount/05_setup_merge.wgsl",
            "halt(TABLE_FULL)",
            "halt(NOTHING)",
        ),
        (
            "recount/00_word_boundary.wgsl",
            "common/workgroup.wgsl",
            "return workgroup.y",
            "return nix.y",
        ),
    ],
)
def test_a_compiler_error_names_file_and_line(
    device: Device, file: str, of: str, right: str, wrong: str
) -> None:
    source = compose(file, device.source_choices)
    text = source.text.replace(right, wrong)
    lines = read_wgsl(of).splitlines()
    number = next(k for k, line in enumerate(lines, 1) if right in line)
    with pytest.raises(DeviceError, match=rf"does not compile at wgsl/{of}:{number}: "):
        Kernel(device, replace(source, text=text), {})
