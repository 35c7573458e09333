"""Rotary position embedding."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyRotary(NumpyRecorder):
    """The operations on arrays."""


class GpuRotary(GpuRecorder):
    """The operations as kernels."""
