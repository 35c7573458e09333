"""Causal attention."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyAttention(NumpyRecorder):
    """The operations on arrays."""


class GpuAttention(GpuRecorder):
    """The operations as kernels."""
