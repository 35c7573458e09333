"""Conversions between single and half precision."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyCast(NumpyRecorder):
    """The operations on arrays."""


class GpuCast(GpuRecorder):
    """The operations as kernels."""
