"""The operations of which models consist, on each backend.

The model, its training and its generation use a backend only through `Operations`. `Operations`
computes with NumPy, and its methods declare the operations. `EngineOperations` calls the CPU
engine, in C, for the operations that the engine has. `GpuOperations` has a kernel for each
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from llmgpu.cpu.library import CThreads, library
from llmgpu.lm.ops.activations import (
    SWIGLU,
    ActivationTensors,
    Inner,
)
from llmgpu.lm.ops.attention import AttentionOperations, GpuAttention
from llmgpu.lm.ops.generating import GenerationOperations, GpuGenerating
from llmgpu.lm.ops.ids import GpuIds, IdOperations
from llmgpu.lm.ops.linear import Product
from llmgpu.lm.ops.optimizer import (
    GpuUpdates,
    UpdateOperations,
    WeightState,
    WeightUpdate,
    piece_of_norm,
)
from llmgpu.lm.ops.products import FixedProducts, sgemm
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    Losses,
    Norm,
    Rotation,
    Tensor,
)

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

QUERIES = 64  # queries whose scores are in memory at a time, as in products.c
NORM_ROWS = 64  # rows of one partial sum of a norm's gradient, as in rows.c

P = ParamSpec("P")
# The name of an operation of the engine, then its arguments: tensors, numbers or None.
Call = tuple[Any, ...]


class Operations(
    GenerationOperations,  # activations, layers and products included
    AttentionOperations,
    IdOperations,
    UpdateOperations,
):
    """Tensors, programs, and the operations that programs consist of.

    Calling an operation computes nothing: the call appends the operation to the program being
    recorded, which `run` executes any number of times. Shape letters are those of `llmgpu.lm.ops`;
    numbers are float32 unless stated otherwise.
    """


class GpuOperations(GpuGenerating, GpuAttention, GpuIds, GpuUpdates, Operations):
    """All operations, as GPU kernels."""


def called_in_c(
    call_of: Callable[Concatenate[EngineOperations, P], Call | None],
) -> Callable[Concatenate[EngineOperations, P], None]:
    """Decorator of an operation that the CPU engine may compute.

    call_of: returns the engine's function and its arguments, or None. If it returns None, or if a
    tensor is float16 or not contiguous, NumPy computes the operation.
    """

    @wraps(call_of)
    def record(self: EngineOperations, /, *args: P.args, **kwargs: P.kwargs) -> None:
        call = call_of(self, *args, **kwargs)
        tensors = [each for each in call or () if isinstance(each, Tensor)]
        if call is None or any(t.is_half or not t.array.flags.c_contiguous for t in tensors):
            getattr(super(EngineOperations, self), call_of.__name__)(*args, **kwargs)
        else:
            self.call(*call)

    return record


class EngineOperations(Operations):
    """The operations of the CPU engine, which must be built. NumPy computes all other operations.

    Results equal NumPy's within rounding, and have the same bits on any number of threads. NumPy
    computes operations on half-precision tensors, and products if OpenBLAS is missing.
    """

    def __init__(self, products: FixedProducts) -> None:
        """Start `products.threads` threads, which compute the other operations."""
        super().__init__(products)
        self._threads = CThreads(products.threads)
        self._most_parts = products.parts
        self._sgemm = sgemm()

    def call(self, operation: str, *arguments: Any) -> None:
        """Append a call of the engine; arguments are tensors, numbers or None."""
        arrays = (each.array if isinstance(each, Tensor) else each for each in arguments)
        self.append(self._threads.bind(operation, *arrays))

    @called_in_c
    def rms_norm(self, norm: Norm, epsilon: float) -> Call:
        tensors = norm.x, norm.weight, norm.out, norm.inverse_rms
        return "rms_norm", *tensors, *norm.x.shape, epsilon

    @called_in_c
    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> Call:
        rows, width = norm.x.shape
        partials = self.scratch("parts of a norm's gradient", (-(-rows // NORM_ROWS), width))
        inputs = norm.x, norm.weight, norm.inverse_rms, grad_out
        return "rms_norm_backward", *inputs, grad_x, grad_weight, partials, rows, width

    @called_in_c
    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> Call | None:
        if out is not None:
            return None
        return "rotary", x, *rotation.tensors.values(), *x.shape, rotation.head_dim, inverse

    @called_in_c
    def activate(self, t: ActivationTensors) -> Call | None:
        if t.function is not SWIGLU:
            return None
        return "swiglu", *t.separated(t.inner, t.out.shape[1]), t.out, t.out.size

    @called_in_c
    def activate_backward(
        self, t: ActivationTensors, grad_out: Tensor, grad_inner: Inner
    ) -> Call | None:
        if t.function is not SWIGLU or t.are_packed:
            return None
        return "swiglu_backward", *t.inner, grad_out, *grad_inner, grad_out.size

    @called_in_c
    def multiply_matrices(self, p: Product) -> Call | None:
        # Leave the product of a single row to NumPy, which calls another function of OpenBLAS for
        # such a product.
        if self._sgemm is None or p.left.shape[0] == 1 or p.stack > 1:
            return None
        factors = p.left, p.left_transposed, p.right, p.right_transposed
        addend = p.out if p.accumulate else p.residual
        return "multiply", *self._sgemm, *factors, addend, p.out, *p.sizes, self._most_parts

    @called_in_c
    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> Call | None:
        return self._attend("attention", vars(t).values(), starts, shape)

    @called_in_c
    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> Call | None:
        tensors = *vars(t).values(), grad.out, grad.q, grad.k, grad.v
        return self._attend("attention_backward", tensors, starts, shape)

    def _attend(
        self, operation: str, tensors: Iterable[Tensor], starts: Tensor, shape: AttentionShape
    ) -> Call | None:
        if self._sgemm is None:
            return None
        scores = self.scratch("scores", (self._threads.count, 2, QUERIES, shape.seq))
        sizes = shape.batch, shape.seq, shape.heads, shape.kv_heads, shape.head_dim
        return operation, *self._sgemm, *tensors, starts, scores, *sizes, shape.scale

    @called_in_c
    def cross_entropy(self, logits: Tensor, losses: Losses, params: Tensor, tokens: int) -> Call:
        tensors = logits, losses.targets, *losses.parts, params
        return "cross_entropy", *tensors, *logits.shape, tokens

    @called_in_c
    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> Call:
        sums = partials.rows(index, index + 1)
        self.fill_zero(sums)
        return "reduce_norm_sq", grad, sums, grad.size, piece_of_norm(grad)

    @called_in_c
    def update_weight(self, state: WeightState, update: WeightUpdate) -> Call | None:
        if not state.in_c or update.half_copy is not None:
            return None
        tensors = update.parameter, update.gradient, *state.tensors, update.stats, update.hyper
        return state.in_c, *tensors, update.decays, update.parameter.size


def open_operations(
    device: Device | None, *, fixed_products: bool = False, in_c: bool | None = None
) -> Operations:
    """Return the operations on a device, or on the CPU if `device` is None.

    fixed_products: whether NumPy's matrix products have the same bits with any number of threads.
    in_c: whether the CPU engine computes the operations that it has; True only if the engine is
        built. None: use the engine if `fixed_products` is set and the engine is in use.
    """
    if device is not None:
        return GpuOperations(device)
    if in_c or (in_c is None and fixed_products and library() is not None):
        return EngineOperations(FixedProducts())
    return Operations(FixedProducts() if fixed_products else None)
