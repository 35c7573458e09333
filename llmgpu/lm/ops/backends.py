"""The two implementations of `Operations`, each put together from all kinds of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.lm.ops.attention import GpuAttention, NumpyAttention
from llmgpu.lm.ops.embedding import GpuEmbedding, NumpyEmbedding
from llmgpu.lm.ops.generating import GpuGenerating, NumpyGenerating
from llmgpu.lm.ops.layers import GpuLayers, NumpyLayers
from llmgpu.lm.ops.linear import GpuLinear, NumpyLinear
from llmgpu.lm.ops.loss import GpuLoss, NumpyLoss
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import GpuOptimizer, NumpyOptimizer
from llmgpu.lm.ops.products import FixedProducts

if TYPE_CHECKING:
    from llmgpu.gpu import Device


class NumpyOperations(
    NumpyAttention,
    NumpyEmbedding,
    NumpyGenerating,
    NumpyLayers,
    NumpyLinear,
    NumpyLoss,
    NumpyOptimizer,
):
    """All operations, in NumPy."""


class GpuOperations(
    GpuAttention, GpuEmbedding, GpuGenerating, GpuLayers, GpuLinear, GpuLoss, GpuOptimizer
):
    """All operations, as kernels."""


def open_operations(device: Device | None, *, fixed_products: bool = False) -> Operations:
    """Return the operations on a device, or in NumPy if there is none.

    fixed_products: whether NumPy's matrix products have the same bits with any number of threads.
    """
    if device is not None:
        return GpuOperations(device)
    return NumpyOperations(FixedProducts() if fixed_products else None)
