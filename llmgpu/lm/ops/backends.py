"""The two implementations of `Operations`, each put together from all kinds of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.lm.ops.activation import GpuActivation, NumpyActivation
from llmgpu.lm.ops.attention import GpuAttention, NumpyAttention
from llmgpu.lm.ops.cast import GpuCast, NumpyCast
from llmgpu.lm.ops.embedding import GpuEmbedding, NumpyEmbedding
from llmgpu.lm.ops.linear import GpuLinear, NumpyLinear
from llmgpu.lm.ops.loss import GpuLoss, NumpyLoss
from llmgpu.lm.ops.norm import GpuNorm, NumpyNorm
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import GpuOptimizer, NumpyOptimizer
from llmgpu.lm.ops.rotary import GpuRotary, NumpyRotary

if TYPE_CHECKING:
    from llmgpu.gpu import Device


class NumpyOperations(
    NumpyActivation,
    NumpyAttention,
    NumpyCast,
    NumpyEmbedding,
    NumpyLinear,
    NumpyLoss,
    NumpyNorm,
    NumpyOptimizer,
    NumpyRotary,
):
    """All operations, in NumPy."""


class GpuOperations(
    GpuActivation,
    GpuAttention,
    GpuCast,
    GpuEmbedding,
    GpuLinear,
    GpuLoss,
    GpuNorm,
    GpuOptimizer,
    GpuRotary,
):
    """All operations, as kernels."""


def open_operations(device: Device | None) -> Operations:
    """Return the operations on a device, or in NumPy if there is none."""
    return NumpyOperations() if device is None else GpuOperations(device)
