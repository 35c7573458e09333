"""The nonlinear functions inside the feed-forward network: SwiGLU and GeLU.

SwiGLU: N. Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form:
D. Hendrycks, K. Gimpel, Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.tensor import Tensor

FORWARD = "lm/06_activation.wgsl"
BACKWARD = "lm/09_backward_ffn.wgsl"
WORKGROUP_SIZE = 256

_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


class NumpyActivation(NumpyRecorder):
    """The functions on arrays."""

    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """Out = gate * sigmoid(gate) * up; all (N, F)."""

        def step() -> None:
            np.multiply(gate.array, _sigmoid(gate.array), out=out.array)
            out.array[...] *= up.array

        self.append(step)

    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        """Write the gradients of gate and up; all (N, F)."""

        def step() -> None:
            s = _sigmoid(gate.array)
            np.multiply(grad_out.array, gate.array * s, out=grad_up.array)
            slope = s * (1 + gate.array * (1 - s))
            np.multiply(grad_out.array, up.array * slope, out=grad_gate.array)

        self.append(step)

    def gelu(self, x: Tensor, out: Tensor) -> None:
        """Out = x * Phi(x), Phi by tanh; both (N, F)."""

        def step() -> None:
            np.multiply(0.5 * x.array, 1 + _gelu_tanh(x.array), out=out.array)

        self.append(step)

    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        """Write the gradient of x; all (N, F)."""

        def step() -> None:
            t = _gelu_tanh(x.array)
            slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x.array**2)
            derivative = 0.5 * (1 + t) + 0.5 * x.array * (1 - t * t) * slope
            np.multiply(grad_out.array, derivative, out=grad_x.array)

        self.append(step)


class GpuActivation(GpuRecorder):
    """The functions as kernels."""

    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """Out = gate * sigmoid(gate) * up; all (N, F)."""
        self.dispatch(
            f"{FORWARD}:swiglu", _groups(out), gate=gate, up=up, out=out, dims=dims(out.size)
        )

    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        """Write the gradients of gate and up; all (N, F)."""
        self.dispatch(
            f"{BACKWARD}:swiglu_backward",
            _groups(gate),
            gate=gate,
            up=up,
            grad_out=grad_out,
            grad_gate=grad_gate,
            grad_up=grad_up,
            dims=dims(gate.size),
        )

    def gelu(self, x: Tensor, out: Tensor) -> None:
        """Out = x * Phi(x), Phi by tanh; both (N, F)."""
        self.dispatch(f"{FORWARD}:gelu", _groups(x), x=x, gelu_out=out, gelu_dims=dims(x.size))

    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        """Write the gradient of x; all (N, F)."""
        self.dispatch(
            f"{BACKWARD}:gelu_backward",
            _groups(x),
            x=x,
            gelu_grad_out=grad_out,
            grad_x=grad_x,
            gelu_dims=dims(x.size),
        )


def _groups(tensor: Tensor) -> int:
    return -(-tensor.size // WORKGROUP_SIZE)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    # By tanh, which does not overflow: sigmoid(x) = (1 + tanh(x / 2)) / 2.
    result: NDArray[np.float32] = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))
    return result


def _gelu_tanh(x: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = np.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return result
