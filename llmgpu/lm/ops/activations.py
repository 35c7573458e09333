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
from llmgpu.lm.ops.tensor import FloatArray, Tensor

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
    # sigmoid(x) = (1 + tanh(x / 2)) / 2, because tanh does not overflow.
    result: FloatArray = np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + 1)
    return result


def _silu(x: FloatArray, out: FloatArray) -> None:
    np.multiply(x, _sigmoid(x), out=out)


def _silu_slope(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    s = _sigmoid(x)
    return x * s, ((1 - s) * x + 1) * s


def _gelu_tanh(x: FloatArray) -> FloatArray:
    result: FloatArray = np.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return result


def _gelu(x: FloatArray, out: FloatArray) -> None:
    np.multiply(0.5 * x, 1 + _gelu_tanh(x), out=out)


def _gelu_slope(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    t, half_x = _gelu_tanh(x), 0.5 * x
    # The slope is (1 + t) / 2 + x / 2 * (1 - t^2) * (slope of tanh's argument), t = tanh(...).
    of_argument = (x * x * (3 * _CUBIC) + 1) * _SQRT_2_OVER_PI
    of_tanh = (1 - t * t) * half_x * of_argument
    return half_x * (t + 1), (t + 1) * np.float32(0.5) + of_tanh


_CODES = {code: {"ACTIVATION": constant("lm/activations.wgsl", code)} for code in ("SILU", "GELU")}
SWIGLU = ActivationFunction(_CODES["SILU"], True, _silu, _silu_slope)
GELU = ActivationFunction(_CODES["GELU"], False, _gelu, _gelu_slope)
BY_NAME = {"swiglu": SWIGLU, "gelu": GELU}  # the names in `llmgpu.lm.config.ACTIVATIONS`


@dataclass(frozen=True)
class ActivationTensors:
    """The tensors of an activation, each float32 or float16: inner products, and results (N, F)."""

    function: ActivationFunction
    inner: Inner
    out: Tensor

    @property
    def are_packed(self) -> bool:
        """Whether gate and up are in one tensor."""
        return self.function.is_gated and len(self.inner) == 1

    def separated(self, inner: Inner, width: int) -> Sequence[Tensor]:
        """Return inner products or their gradients on the host, each (N, width).

        If gate and up are packed, they are views of columns.
        """
        if not self.are_packed:
            return inner
        shape, array = (inner[0].shape[0], width), inner[0].array
        columns = array[:, :width], array[:, -width:]
        return [replace(inner[0], shape=shape, data=each) for each in columns]


class ActivationOperations(Recorder):
    """Activations of feed-forward networks, computed by NumPy.

    If the inner products are packed in one float16 tensor (N, R), then all tensors are float16, and
    F and R are multiples of 4. Only `activate` accepts a packed float32 tensor.
    """

    @recorded
    def activate(self, t: ActivationTensors) -> None:
        """Write out = f(x), or f(x) * up."""
        x, *up = (each.array for each in t.separated(t.inner, t.out.shape[1]))

        def compute(rows: slice) -> None:
            values = single_of(t.out.array[rows])
            t.function.compute(as_single(x[rows]), values)
            for factor in up:
                values *= factor[rows]
            put(values, t.out.array[rows])

        self.over_blocks(compute, *t.out.shape)

    @recorded
    def activate_backward(self, t: ActivationTensors, grad_out: Tensor, grad_inner: Inner) -> None:
        """Write the gradient of each inner product; grad_out: the gradient of `out`.

        `out` itself is not read.
        """
        width = grad_out.shape[1]
        x, *up = (each.array for each in t.separated(t.inner, width))
        grad_x, *grad_up = (each.array for each in t.separated(grad_inner, width))

        def compute(rows: slice) -> None:
            gradient = as_single(grad_out.array[rows])
            values, slope = t.function.differentiate(as_single(x[rows]))
            for factor, target in zip(up, grad_up, strict=True):
                slope *= factor[rows]
                values *= gradient
                put(values, target[rows])
            slope *= gradient
            put(slope, grad_x[rows])

        self.over_blocks(compute, *grad_out.shape)

    def activate_and_backward(
        self, t: ActivationTensors, grad_out: Tensor, grad_inner: Inner
    ) -> None:
        """Call `activate`, then `activate_backward`.

        If gate and up are in one tensor, a device computes both with a single kernel.
        """
        self.activate(t)
        self.activate_backward(t, grad_out, grad_inner)


class GpuActivations(GpuRecorder, ActivationOperations):
    """Activations of feed-forward networks, as GPU kernels."""

    def activate(self, t: ActivationTensors) -> None:
        if not t.are_packed:
            kernel = "06_gated" if t.function.is_gated else "06_activation"
            self._elements(kernel, t, {"out": t.out}, **_named(t.inner))
        elif t.inner[0].is_half:
            self._halves("06_gated_half", t)
        else:
            width, row = t.out.shape[1], t.inner[0].shape[1]
            params = np.array([(*t.out.shape, row - width, row, 0, 0)], INNER)
            file, groups = "lm/13_packed_gated.wgsl", workgroups(t.out.size)
            with self.rounding_to("out", t.out) as out:
                constants, x = t.function.constants, t.inner[0]
                self.dispatch(file, groups, constants, x=x, out=out, params=params)

    def activate_backward(self, t: ActivationTensors, grad_out: Tensor, grad_inner: Inner) -> None:
        if t.are_packed:
            out = self.scratch("activation", grad_out.shape, np.float16)
            self.activate_and_backward(replace(t, out=out), grad_out, grad_inner)
            return
        kernel = "09_gated_backward" if t.function.is_gated else "09_activation_backward"
        outs = _named(grad_inner, "grad_")
        self._elements(kernel, t, outs, **_named(t.inner), grad_out=grad_out)

    def activate_and_backward(
        self, t: ActivationTensors, grad_out: Tensor, grad_inner: Inner
    ) -> None:
        if t.are_packed:
            self._halves("09_gated_backward_half", t, grad_out=grad_out, grad_x=grad_inner[0])
        else:
            super().activate_and_backward(t, grad_out, grad_inner)

    def _halves(self, kernel: str, t: ActivationTensors, **gradients: Tensor) -> None:
        """Dispatch a kernel for gate and up in one float16 tensor.

        Each thread computes eight elements, or four if the widths are no multiples of eight.
        """
        widths = t.out.shape[1], t.inner[0].shape[1]
        fours = vector_fours(*widths)
        row, packed_row = (width // (FOUR * fours) for width in widths)
        vectors = t.out.shape[0] * row
        settings = t.function.constants | {"fours": fours}
        sizes = dims(vectors, row, packed_row)
        tensors = {"x": t.inner[0], "out": t.out, **gradients}
        self.dispatch(f"lm/{kernel}.wgsl", workgroups(vectors), settings, **tensors, dims=sizes)

    def _elements(
        self, kernel: str, t: ActivationTensors, outs: dict[str, Tensor], **inputs: Tensor
    ) -> None:
        """Dispatch a float32 kernel with one thread per element."""
        size = next(iter(outs.values())).size
        file, groups = f"lm/{kernel}.wgsl", workgroups(size)
        tensors = {name: self.single(name, tensor) for name, tensor in inputs.items()}
        with ExitStack() as stack:
            for name, out in outs.items():
                tensors[name] = stack.enter_context(self.rounding_to(name, out))
            self.dispatch(file, groups, t.function.constants, **tensors, dims=dims(size))


def _named(inner: Inner, prefix: str = "") -> dict[str, Tensor]:
    """Return inner products by the names of the kernels' bindings."""
    names = ("x",) if len(inner) == 1 else ("gate", "up")
    return {prefix + name: tensor for name, tensor in zip(names, inner, strict=True)}
