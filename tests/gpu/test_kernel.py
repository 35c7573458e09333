"""Compiling and binding: once for each set of constants, and errors that say where."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from llmgpu.errors import DeviceError
from llmgpu.gpu.device import Device
from llmgpu.gpu.kernel import Kernel
from llmgpu.kernel_source import compose, read_wgsl
from tests.harness.kernels import kernel_of


def test_a_kernel_is_compiled_once_for_each_set_of_constants(any_device: Device) -> None:
    file = "recount/09_scan_blocks.wgsl"
    one = any_device.kernel(file, WORKGROUP_SIZE=64, COUNT_TILE=256)
    assert any_device.kernel(file, COUNT_TILE=256, WORKGROUP_SIZE=64) is one
    other = any_device.kernel(file, WORKGROUP_SIZE=128, COUNT_TILE=256)
    assert other is not one
    assert (one.workgroup_size, other.workgroup_size) == (64, 128)


def test_threads_get_the_same_kernels(any_device: Device) -> None:
    file, constants = "recount/03_find_max.wgsl", {"WORKGROUP_SIZE": 32}
    kernels = [any_device.begin_kernel(file, constants) for _ in range(8)]
    assert {kernel.result() for kernel in kernels} == {any_device.kernel(file, **constants)}


def test_kernels_of_a_pipeline_take_the_constants_that_they_declare(any_device: Device) -> None:
    constants = {"WORKGROUP_SIZE": 32, "LOCAL_TABLE_SIZE": 64}
    files = dict.fromkeys(("recount/03_find_max", "recount/02_pair_count"), constants)
    kernels = any_device.prepare(files)
    assert [*kernels] == ["find_max", "pair_count"]
    assert kernels["find_max"] is any_device.kernel("recount/03_find_max.wgsl", WORKGROUP_SIZE=32)
    assert kernels["pair_count"] is any_device.kernel("recount/02_pair_count.wgsl", **constants)
    files["recount/03_find_max"] = {"TILE": 1}
    with pytest.raises(DeviceError, match=r"no kernel of recount/03_.*02_pair_count declares TILE"):
        any_device.prepare(files)


def test_threads_compile_a_kernel_once_and_again_only_if_it_failed(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []
    make, waits = device._make_kernel, threading.Event()

    def make_kernel(*arguments: Any) -> Kernel:
        compiled.append(threading.get_ident())
        asks.release()
        assert waits.wait(20)
        if len(compiled) == 1:
            raise DeviceError("out of memory")
        return make(*arguments)

    def request() -> Kernel:
        sizes = {"WORKGROUP_SIZE": 16}
        kernel = device.begin_kernel("recount/03_find_max.wgsl", sizes, in_thread=False)
        asks.release()
        return kernel.result()

    asks = threading.Semaphore(0)
    monkeypatch.setattr(device, "_make_kernel", make_kernel)
    for errors, times in ((3, 1), (0, 2)):
        with ThreadPoolExecutor(3) as threads:
            kernels = [threads.submit(request) for _ in range(3)]
            assert all(asks.acquire(timeout=20) for _ in range(3))
            waits.set()
        assert len([1 for kernel in kernels if kernel.exception()]) == errors
        assert len(compiled) == times


def test_bind_refuses_a_name_too_many(device: Device) -> None:
    kernel = device.kernel("recount/06_run_reduce.wgsl")
    names = ("run_starts", "state", "symbols", "valid_mask")
    buffers = {name: device.create_buffer(name, 64) for name in names}
    with pytest.raises(TypeError, match=r"bpe_run_reduce binds .*, not .*'valid_mask'\]"):
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
        Kernel(device, replace(source, text=text))


TEXT = """
var<workgroup> sums: array<array<array<vec4<f32>, 16>, 4>, 8>;
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64)
fn sum(@builtin(local_invocation_index) i: u32) {
    sums[i % 8u][0][0] = vec4<f32>(1.0);
    out[i] = sums[i % 8u][0][0].x;
}
"""


def test_a_kernel_is_named_after_its_entry_point(any_device: Device) -> None:
    kernel = kernel_of(any_device, TEXT)
    assert (kernel.label, kernel.workgroup_size) == ("sum", 64)


def test_arrays_of_arrays_count_as_workgroup_memory(portable_device: Device) -> None:
    with pytest.raises(DeviceError, match=r"workgroup-storage-size of 32768"):
        kernel_of(portable_device, TEXT.replace("4>, 8>", "4>, 32>"))


def test_errors_of_a_text_name_the_line(device: Device) -> None:
    with pytest.raises(DeviceError, match=r"sum does not compile at wgsl/text:7: "):
        kernel_of(device, TEXT.replace("out[i]", "nowhere[i]"))


def test_begun_kernels_are_compiled_in_threads_and_at_once_in_a_limited_address_space(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    make = device._make_kernel

    def make_kernel(*arguments: Any) -> Kernel:
        threads.append(threading.get_ident())
        return make(*arguments)

    monkeypatch.setattr(device, "_make_kernel", make_kernel)
    file = "recount/03_find_max.wgsl"
    kernel = device.begin_kernel(file, {"WORKGROUP_SIZE": 8}).result()
    assert kernel is device.kernel(file, WORKGROUP_SIZE=8)
    monkeypatch.setattr("llmgpu.gpu.device.has_limited_address_space", lambda: True)
    assert device.begin_kernel(file, {"WORKGROUP_SIZE": 4}).done()
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, True]


def test_a_kernel_is_compiled_here_if_no_thread_starts(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert device.begin_kernel("recount/03_find_max.wgsl", {"WORKGROUP_SIZE": 2}).done()
