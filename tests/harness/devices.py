"""Devices that tests open themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from llmgpu.gpu.adapters import OpenedAdapter, select_adapter
from llmgpu.gpu.device import Device


def open_device(limits: Mapping[str, int] | None = None) -> Device:
    """Open the best adapter with all its features; limits: WebGPU limits below the adapter's."""
    return Device(OpenedAdapter(select_adapter(), limits=limits))


@contextmanager
def workgroups_of(device: Device, threads: int) -> Iterator[Device]:
    """Let the kernels of `Device.prepare` have workgroups of another size in the block."""
    before = device.workgroup_size
    device.workgroup_size = threads
    try:
        yield device
    finally:
        device.workgroup_size = before
