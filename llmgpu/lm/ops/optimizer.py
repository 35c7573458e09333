"""Gradient clipping and AdamW."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyOptimizer(NumpyRecorder):
    """The operations on arrays."""


class GpuOptimizer(GpuRecorder):
    """The operations as kernels."""
