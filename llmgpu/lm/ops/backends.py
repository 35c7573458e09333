"""The two implementations of `Operations`, each put together from all kinds of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.cpu.library import library
from llmgpu.lm.ops.attention import GpuAttention, NumpyAttention
from llmgpu.lm.ops.c_operations import COperations
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


class EngineOperations(COperations, NumpyOperations):
    """All operations, in C where the CPU engine has them."""


class GpuOperations(
    GpuAttention, GpuEmbedding, GpuGenerating, GpuLayers, GpuLinear, GpuLoss, GpuOptimizer
):
    """All operations, as kernels."""


def open_operations(
    device: Device | None, *, fixed_products: bool = False, in_c: bool | None = None
) -> Operations:
    """Return the operations on a device, or on the CPU if there is none.

    fixed_products: whether NumPy's matrix products have the same bits with any number of threads.
    in_c: whether the CPU engine, which must be there, computes what it can; None: with
        `fixed_products` where it is in use.
    """
    if device is not None:
        return GpuOperations(device)
    if in_c or (in_c is None and fixed_products and library() is not None):
        return EngineOperations(FixedProducts())
    return NumpyOperations(FixedProducts() if fixed_products else None)
