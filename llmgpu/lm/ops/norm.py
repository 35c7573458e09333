"""Root-mean-square normalisation."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyNorm(NumpyRecorder):
    """The operations on arrays."""


class GpuNorm(GpuRecorder):
    """The operations as kernels."""
