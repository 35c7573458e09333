"""Cross-entropy."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyLoss(NumpyRecorder):
    """The operations on arrays."""


class GpuLoss(GpuRecorder):
    """The operations as kernels."""
