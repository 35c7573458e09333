"""Matrix products."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyLinear(NumpyRecorder):
    """The operations on arrays."""


class GpuLinear(GpuRecorder):
    """The operations as kernels."""
