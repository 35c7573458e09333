"""The operations on arrays that the CPU engine computes; the others are those of NumPy.

Results are those of NumPy within rounding, with the same bits on any number of threads. What is in
half precision, and products without OpenBLAS, are left to NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgpu.cpu.tensors import CThreads
from llmgpu.lm.ops.arguments import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    Losses,
    Norm,
    Rotation,
)
from llmgpu.lm.ops.attention import NumpyAttention
from llmgpu.lm.ops.layers import NumpyLayers
from llmgpu.lm.ops.linear import NumpyLinear
from llmgpu.lm.ops.loss import NumpyLoss
from llmgpu.lm.ops.optimizer import NumpyOptimizer, piece_of_norm
from llmgpu.lm.ops.products import FixedProducts, sgemm
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.ops.weight_state import WeightState, WeightUpdate

QUERIES = 64  # whose scores there are at a time, and
NORM_ROWS = 64  # whose part of a gradient is added up by itself: as in products.c and rows.c


class COperations(NumpyAttention, NumpyLayers, NumpyLinear, NumpyLoss, NumpyOptimizer):
    """Calls of the engine, or of NumPy where it does not take the tensors."""

    def __init__(self, products: FixedProducts) -> None:
        """Start as many threads as the products have."""
        super().__init__(products)
        self._threads = CThreads(products.threads)
        self._sgemm = sgemm()

    def _call(self, operation: str, *arguments: Any) -> None:
        """Append an operation; tensors are arguments as they are."""
        arrays = (each.array if isinstance(each, Tensor) else each for each in arguments)
        self.append(self._threads.bind(operation, *arrays))

    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        if not _are_single(norm.x, norm.out):
            super().rms_norm(norm, epsilon)
            return
        self._call(
            "rms_norm", norm.x, norm.weight, norm.out, norm.inverse_rms, *norm.x.shape, epsilon
        )

    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        rows, width = norm.x.shape
        partials = self.scratch("parts of a norm's gradient", (-(-rows // NORM_ROWS), width))
        inputs = norm.x, norm.weight, norm.inverse_rms, grad_out
        self._call("rms_norm_backward", *inputs, grad_x, grad_weight, partials, rows, width)

    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> None:
        if out is not None:
            super().rotary(x, rotation, out, inverse=inverse)
            return
        tables = rotation.cosines, rotation.sines, rotation.positions
        self._call("rotary", x, *tables, *x.shape, rotation.head_dim, inverse)

    def swiglu(self, gate: Tensor, up: Tensor | None, out: Tensor) -> None:
        if up is not None and _are_single(gate, up, out):
            self._call("swiglu", gate, up, out, out.size)
        else:
            super().swiglu(gate, up, out)

    def swiglu_backward(
        self,
        gate: Tensor,
        up: Tensor | None,
        grad_out: Tensor,
        grad_gate: Tensor,
        grad_up: Tensor | None,
    ) -> None:
        tensors = [each for each in (gate, up, grad_out, grad_gate, grad_up) if each is not None]
        if up is not None and _are_single(*tensors):
            self._call("swiglu_backward", *tensors, gate.size)
        else:
            super().swiglu_backward(gate, up, grad_out, grad_gate, grad_up)

    def linear(
        self, x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None = None
    ) -> None:
        if self._multiplies(x, weight, out):
            self._multiply_in_c(x, weight, out, residual, right_transposed=True)
        else:
            super().linear(x, weight, out, residual)

    def linear_backward_input(
        self, grad_out: Tensor, weight: Tensor, grad_x: Tensor, *, accumulate: bool
    ) -> None:
        if self._multiplies(grad_out, weight, grad_x):
            self._multiply_in_c(grad_out, weight, grad_x, grad_x if accumulate else None)
        else:
            super().linear_backward_input(grad_out, weight, grad_x, accumulate=accumulate)

    def linear_backward_weight(self, grad_out: Tensor, x: Tensor, grad_weight: Tensor) -> None:
        if self._multiplies(grad_out, x, grad_weight):
            self._multiply_in_c(grad_out, x, grad_weight, grad_weight, left_transposed=True)
        else:
            super().linear_backward_weight(grad_out, x, grad_weight)

    def multiply(
        self,
        left: Tensor,
        right: Tensor,
        product: Tensor,
        *,
        left_transposed: bool = False,
        right_transposed: bool = False,
    ) -> None:
        turned = {"left_transposed": left_transposed, "right_transposed": right_transposed}
        for k in range(product.shape[0]):
            stacks = [each.rows(k, k + 1) for each in (left, right, product)]
            x, y, out = (each.reshaped(*each.shape[1:]) for each in stacks)
            if self._multiplies(x, y, out):
                self._multiply_in_c(x, y, out, None, **turned)
            else:
                x, y, out = stacks
                super().multiply(x, y, out, **turned)

    def _multiplies(self, left: Tensor, right: Tensor, out: Tensor) -> bool:
        # NumPy takes a function of its own for the product of a single row.
        return self._sgemm is not None and _are_single(left, right, out) and left.shape[0] > 1

    def _multiply_in_c(
        self,
        left: Tensor,
        right: Tensor,
        out: Tensor,
        addend: Tensor | None,
        *,
        left_transposed: bool = False,
        right_transposed: bool = False,
    ) -> None:
        factors = left, left_transposed, right, right_transposed
        inner = left.shape[0 if left_transposed else 1]
        self._call("multiply", *self._sgemm or (), *factors, addend, out, *out.shape, inner)

    def attention(self, t: AttentionTensors, starts: Tensor, shape: AttentionShape) -> None:
        if self._sgemm is None or not _are_single(t.q, t.k, t.v, t.out):
            super().attention(t, starts, shape)
            return
        tensors = t.q, t.k, t.v, t.out, t.log_sum_exp
        self._attend("attention", tensors, starts, shape)

    def attention_backward(
        self, t: AttentionTensors, grad: AttentionGradients, starts: Tensor, shape: AttentionShape
    ) -> None:
        if self._sgemm is None or not _are_single(t.q, t.k, t.v, t.out, grad.out):
            super().attention_backward(t, grad, starts, shape)
            return
        tensors = t.q, t.k, t.v, t.out, t.log_sum_exp, grad.out, grad.q, grad.k, grad.v
        self._attend("attention_backward", tensors, starts, shape)

    def _attend(
        self, operation: str, tensors: tuple[Tensor, ...], starts: Tensor, shape: AttentionShape
    ) -> None:
        scores = self.scratch("scores", (self._threads.count, 2, QUERIES, shape.seq))
        sizes = shape.batch, shape.seq, shape.heads, shape.kv_heads, shape.head_dim
        self._call(operation, *self._sgemm or (), *tensors, starts, scores, *sizes, shape.scale)

    def cross_entropy(
        self,
        logits: Tensor,
        targets: Tensor,
        losses: Losses,
        params: Tensor,
        *,
        tokens: int | None = None,
        joint: bool = False,
        gradient: Tensor | None = None,
    ) -> None:
        rows, width = logits.shape
        tokens = width if tokens is None else tokens
        arrays = logits, targets, *losses.parts, params
        self._call("cross_entropy", *arrays, rows, width, tokens, joint)
        if gradient is not None and gradient is not logits:
            self.round_to_half(logits, gradient)

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        sums = partials.rows(index, index + 1)
        self.fill_zero(sums)
        self._call("reduce_norm_sq", grad, sums, grad.size, piece_of_norm(grad))

    def update_weight(self, state: WeightState, update: WeightUpdate) -> None:
        moments = state.adamw_moments(update)
        if moments is None:
            super().update_weight(state, update)
            return
        tensors = update.parameter, update.gradient, *moments, update.stats, update.hyper
        self._call("adamw", *tensors, update.decays, update.parameter.size)


def _are_single(*tensors: Tensor) -> bool:
    return all(each.dtype == np.float32 and each.array.flags.c_contiguous for each in tensors)
