"""The nonlinear functions inside the feed-forward network: SwiGLU and GeLU.

SwiGLU: N. Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form:
D. Hendrycks, K. Gimpel, Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims, recorded, workgroups
from llmgpu.lm.ops.tensor import FloatArray, Tensor

_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


class NumpyActivation(NumpyRecorder):
    """The functions on arrays."""

    @recorded
    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        np.multiply(gate.array, _sigmoid(gate.array), out=out.array)
        out.array[...] *= up.array

    @recorded
    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        s = _sigmoid(gate.array)
        np.multiply(grad_out.array, gate.array * s, out=grad_up.array)
        slope = s * (1 + gate.array * (1 - s))  # derivative of gate * sigmoid(gate)
        np.multiply(grad_out.array, up.array * slope, out=grad_gate.array)

    @recorded
    def gelu(self, x: Tensor, out: Tensor) -> None:
        np.multiply(0.5 * x.array, 1 + _gelu_tanh(x.array), out=out.array)

    @recorded
    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        t = _gelu_tanh(x.array)
        slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x.array**2)  # of the argument of tanh
        derivative = 0.5 * (1 + t) + 0.5 * x.array * (1 - t * t) * slope
        np.multiply(grad_out.array, derivative, out=grad_x.array)


class GpuActivation(GpuRecorder):
    """The functions as kernels."""

    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        inputs = {"gate": gate, "up": up}
        groups = workgroups(out.size)
        self.dispatch("lm/06_swiglu.wgsl", groups, **inputs, out=out, dims=dims(out.size))

    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        self.dispatch(
            "lm/09_swiglu_backward.wgsl",
            workgroups(gate.size),
            gate=gate,
            up=up,
            grad_out=grad_out,
            grad_gate=grad_gate,
            grad_up=grad_up,
            dims=dims(gate.size),
        )

    def gelu(self, x: Tensor, out: Tensor) -> None:
        self.dispatch("lm/06_gelu.wgsl", workgroups(x.size), x=x, out=out, dims=dims(x.size))

    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        gradients = {"grad_out": grad_out, "grad_x": grad_x}
        groups = workgroups(x.size)
        self.dispatch("lm/09_gelu_backward.wgsl", groups, x=x, **gradients, dims=dims(x.size))


def _sigmoid(x: FloatArray) -> FloatArray:
    # By tanh, which does not overflow: sigmoid(x) = (1 + tanh(x / 2)) / 2.
    result: FloatArray = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))
    return result


def _gelu_tanh(x: FloatArray) -> FloatArray:
    result: FloatArray = np.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return result
