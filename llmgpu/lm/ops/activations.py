"""Activations: the functions that feed-forward networks apply to their inner products.

SwiGLU: N. Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form:
D. Hendrycks, K. Gimpel, Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.lm.ops.recording import (
    FOUR,
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    single_of,
    vector_fours,
    workgroups,
)
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor

INNER = struct_dtype("lm/inner_params.wgsl", "InnerParams")
# The inner products of a feed-forward network, or their gradients: x, or for a gated activation the
# gate x and up, each (N, F). Gate and up may also be packed in one tensor (N, R), the gate in the
# first columns and up in the last.
Inner = Sequence[Tensor]
_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


@dataclass(frozen=True)
class ActivationFunction:
    """A function of float32 numbers, and its slope.

    constants: the constant of lm/activations.wgsl that selects the function. is_gated: whether the
        results are multiplied by a second product. compute: called with x and an array for the
        results. differentiate: called with x; returns the results and the slopes.
    """

    constants: dict[str, int]
    is_gated: bool
    compute: Callable[[FloatArray, FloatArray], None]
    differentiate: Callable[[FloatArray], tuple[FloatArray, FloatArray]]


def _sigmoid(x: FloatArray) -> FloatArray:
    # Compute sigmoid(x) = (1 + tanh(x / 2)) / 2, because tanh does not overflow.
    result: FloatArray = np.float32(0.5) * x
    np.tanh(result, out=result)
    result += 1
    result *= np.float32(0.5)
    return result


def _silu(x: FloatArray, out: FloatArray) -> None:
    np.multiply(x, _sigmoid(x), out=out)


def _silu_slope(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    s = _sigmoid(x)
    slope = 1 - s
    slope *= x
    slope += 1
    slope *= s
    return x * s, slope


def _gelu_tanh(x: FloatArray) -> FloatArray:
    result: FloatArray = np.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return result


def _gelu(x: FloatArray, out: FloatArray) -> None:
    np.multiply(0.5 * x, 1 + _gelu_tanh(x), out=out)


def _gelu_slope(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    t, half_x = _gelu_tanh(x), 0.5 * x
    # The slope is (1 + t) / 2 + x / 2 * (1 - t^2) * (slope of tanh's argument), t = tanh(...).
    of_argument = x**2
    of_argument *= 3 * _CUBIC
    of_argument += 1
    of_argument *= _SQRT_2_OVER_PI
    of_tanh: FloatArray = 1 - t * t
    of_tanh *= half_x
    of_tanh *= of_argument
    t += 1
    half_x *= t
    t *= np.float32(0.5)
    t += of_tanh
    return half_x, t


_CODES = {code: {"ACTIVATION": constant("lm/activations.wgsl", code)} for code in ("SILU", "GELU")}
SWIGLU = ActivationFunction(_CODES["SILU"], True, _silu, _silu_slope)
GELU = ActivationFunction(_CODES["GELU"], False, _gelu, _gelu_slope)
BY_NAME = {"swiglu": SWIGLU, "gelu": GELU}  # the names in `llmgpu.lm.config.ACTIVATIONS`


class ActivationOperations(Recorder):
    """Activations of feed-forward networks, computed by NumPy.

    If the inner products are packed in one float16 tensor (N, R), then all tensors are float16, and
    F and R are multiples of 4. Only `activate` accepts a packed float32 tensor.
    """

    @recorded
    def activate(self, activation: ActivationFunction, inner: Inner, out: Tensor) -> None:
        """Write out = f(x), or f(x) * up; all (N, F), each float32 or float16."""
        x, *up = _arrays(activation, inner, out.shape[1])

        def compute(rows: slice) -> None:
            values = single_of(out.array[rows])
            activation.compute(as_single(x[rows]), values)
            for factor in up:
                values *= factor[rows]
            put(values, out.array[rows])

        self.over_blocks(compute, *out.shape)

    @recorded
    def activate_backward(
        self, activation: ActivationFunction, inner: Inner, grad_out: Tensor, grad_inner: Inner
    ) -> None:
        """Write the gradient of each inner product.

        grad_out: the gradient of `out` in `activate`.
        """
        width = grad_out.shape[1]
        x, *up = _arrays(activation, inner, width)
        grad_x, *grad_up = _arrays(activation, grad_inner, width)

        def compute(rows: slice) -> None:
            gradient = as_single(grad_out.array[rows])
            values, slope = activation.differentiate(as_single(x[rows]))
            for factor, target in zip(up, grad_up, strict=True):
                slope *= factor[rows]
                values *= gradient
                put(values, target[rows])
            slope *= gradient
            put(slope, grad_x[rows])

        self.over_blocks(compute, *grad_out.shape)

    def activate_and_backward(
        self,
        activation: ActivationFunction,
        inner: Inner,
        out: Tensor,
        grad_out: Tensor,
        grad_inner: Inner,
    ) -> None:
        """Call `activate`, then `activate_backward`.

        If gate and up are in one tensor, a device computes both with a single kernel.
        """
        self.activate(activation, inner, out)
        self.activate_backward(activation, inner, grad_out, grad_inner)


class GpuActivations(GpuRecorder, ActivationOperations):
    """Activations of feed-forward networks, as GPU kernels."""

    def activate(self, activation: ActivationFunction, inner: Inner, out: Tensor) -> None:
        if not _are_packed(activation, inner):
            kernel = "06_gated" if activation.is_gated else "06_activation"
            self._elements(kernel, activation, {"out": out}, **_named(inner))
        elif inner[0].is_half:
            self._halves("06_gated_half", activation, inner, out)
        else:
            width, row = out.shape[1], inner[0].shape[1]
            params = np.array([(*out.shape, row - width, row, 0, 0)], INNER)
            file, groups = "lm/13_packed_gated.wgsl", workgroups(out.size)
            with self.rounding_to("out", out) as to:
                self.dispatch(file, groups, activation.constants, x=inner[0], out=to, params=params)

    def activate_backward(
        self, activation: ActivationFunction, inner: Inner, grad_out: Tensor, grad_inner: Inner
    ) -> None:
        if _are_packed(activation, inner):
            out = self.scratch("activation", grad_out.shape, np.float16)
            self.activate_and_backward(activation, inner, out, grad_out, grad_inner)
            return
        kernel = "09_gated_backward" if activation.is_gated else "09_activation_backward"
        outs = _named(grad_inner, "grad_")
        self._elements(kernel, activation, outs, **_named(inner), grad_out=grad_out)

    def activate_and_backward(
        self,
        activation: ActivationFunction,
        inner: Inner,
        out: Tensor,
        grad_out: Tensor,
        grad_inner: Inner,
    ) -> None:
        if not _are_packed(activation, inner):
            super().activate_and_backward(activation, inner, out, grad_out, grad_inner)
            return
        gradients = {"grad_out": grad_out, "grad_x": grad_inner[0]}
        self._halves("09_gated_backward_half", activation, inner, out, **gradients)

    def _halves(
        self, kernel: str, activation: ActivationFunction, inner: Inner, out: Tensor, **more: Tensor
    ) -> None:
        """Dispatch a kernel for gate and up in one float16 tensor.

        Each thread computes eight elements, or four if the widths are no multiples of eight.
        """
        widths = out.shape[1], inner[0].shape[1]
        fours = vector_fours(*widths)
        row, packed_row = (width // (FOUR * fours) for width in widths)
        vectors = out.shape[0] * row
        settings = activation.constants | {"fours": fours}
        sizes = dims(vectors, row, packed_row)
        tensors = {"x": inner[0], "out": out, **more}
        self.dispatch(f"lm/{kernel}.wgsl", workgroups(vectors), settings, **tensors, dims=sizes)

    def _elements(
        self, kernel: str, activation: ActivationFunction, outs: dict[str, Tensor], **inputs: Tensor
    ) -> None:
        """Dispatch a float32 kernel with one thread per element."""
        size = next(iter(outs.values())).size
        file, groups = f"lm/{kernel}.wgsl", workgroups(size)
        tensors = {name: self.single(name, tensor) for name, tensor in inputs.items()}
        with ExitStack() as stack:
            for name, out in outs.items():
                tensors[name] = stack.enter_context(self.rounding_to(name, out))
            self.dispatch(file, groups, activation.constants, **tensors, dims=dims(size))


def _are_packed(activation: ActivationFunction, inner: Inner) -> bool:
    return activation.is_gated and len(inner) == 1


def separated(activation: ActivationFunction, inner: Inner, width: int) -> Sequence[Tensor]:
    """Return the inner products on the host, each (N, F); views of columns if they are packed."""
    if not _are_packed(activation, inner):
        return inner
    shape, array = (inner[0].shape[0], width), inner[0].array
    return [replace(inner[0], shape=shape, data=x) for x in (array[:, :width], array[:, -width:])]


def _arrays(activation: ActivationFunction, inner: Inner, width: int) -> list[AnyArray]:
    return [each.array for each in separated(activation, inner, width)]


def _named(inner: Inner, prefix: str = "") -> dict[str, Tensor]:
    """Return inner products by the names of the kernels' bindings."""
    names = ("x",) if len(inner) == 1 else ("gate", "up")
    return {prefix + name: tensor for name, tensor in zip(names, inner, strict=True)}
