"""Kernels of texts that are in no file."""

from __future__ import annotations

from llmgpu.gpu.device import Device
from llmgpu.gpu.kernel import Kernel
from llmgpu.kernel_source import kernel_source


def kernel_of(device: Device, text: str) -> Kernel:
    """Compile a text; the messages of errors name its lines as those of wgsl/text."""
    lines = [(line, "text", number) for number, line in enumerate(text.splitlines(), 1)]
    return device._make_kernel(device, kernel_source(lines, "text"))
