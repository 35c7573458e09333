"""Rows of a table for token ids."""

from __future__ import annotations

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder


class NumpyEmbedding(NumpyRecorder):
    """The operations on arrays."""


class GpuEmbedding(GpuRecorder):
    """The operations as kernels."""
