"""What a layer computes row by row: the norm, the rotation by positions, and the activations.

RMS norm: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467. Rotation:
J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864;
columns i and i + D/2 of a head make a pair, as in Hugging Face's Llama. SwiGLU: N. Shazeer, GLU
Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form: D. Hendrycks, K. Gimpel,
Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.operations import Norm, Rotation
from llmgpu.lm.ops.recording import (
    WORKGROUP_SIZE,
    GpuRecorder,
    NumpyRecorder,
    dims,
    recorded,
    row_blocks,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import FloatArray, Tensor

LEAST_THREADS = 64  # of a workgroup of the norm's backward kernel, whose rows they share
ROW_ELEMENTS = 8  # of a row that a thread of the norm takes, if the row is long enough
BLOCK_ROWS = 8  # that a workgroup of the norm's backward kernel takes at once
MAX_PARTIALS = 1024  # workgroups of that kernel: enough to fill a GPU
COLUMNS = 16  # of grad_weight in a workgroup that adds partial sums up

_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


def rotary_tables(max_positions: int, head_dim: int, theta: float) -> tuple[FloatArray, FloatArray]:
    """Return the cosines and sines of all positions, each (max_positions, head_dim / 2).

    Pair i turns by theta ** (-2 i / head_dim) a position; angles are computed in float64.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    shape = (max_positions, len(frequencies))
    cosines, sines = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for rows in row_blocks(*shape):
        positions = np.arange(max_positions, dtype=np.float64)[rows]
        angles = np.outer(positions, frequencies)
        cosines[rows], sines[rows] = np.cos(angles), np.sin(angles)
    return cosines, sines


class NumpyLayers(NumpyRecorder):
    """The operations on arrays."""

    @recorded
    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        def compute(rows: slice) -> None:
            x, out = norm.x.array[rows], norm.out.array[rows]
            np.square(x, out=out)
            r = 1 / np.sqrt(out.mean(axis=1) + np.float32(epsilon))
            norm.inverse_rms.array[rows] = r
            np.multiply(x, r[:, None], out=out)
            out *= norm.weight.array

        self.over_blocks(compute, *norm.x.shape)

    @recorded
    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        def compute(rows: slice) -> FloatArray:
            x_block, r = norm.x.array[rows], norm.inverse_rms.array[rows, None]
            # The weight gets grad_out * x * r, summed over the rows.
            gradient = grad_out.array[rows] * r
            for_weight: FloatArray = (gradient * x_block).sum(axis=0)
            gradient *= norm.weight.array
            # The input: remove what only changes the length of the row, which the norm takes away.
            mean = (gradient * x_block).mean(axis=1, keepdims=True)
            gradient -= x_block * (r * r * mean)
            grad_x.array[rows] += gradient
            return for_weight

        for for_weight in self.over_blocks(compute, *norm.x.shape):
            grad_weight.array[...] += for_weight

    @recorded
    def rotary(self, x: Tensor, rotation: Rotation, *, inverse: bool = False) -> None:
        def compute(rows: slice) -> None:
            block = x.array[rows]
            heads = block.reshape(len(block), -1, 2, rotation.head_dim // 2)
            positions = rotation.positions.array[rows]
            cosine = rotation.cosines.array[positions, None]
            sine = rotation.sines.array[positions, None] * np.float32(-1 if inverse else 1)
            left, right = heads[:, :, 0], heads[:, :, 1]
            turned = left * cosine - right * sine
            heads[:, :, 1] = right * cosine + left * sine  # reads the left half, so it goes first
            heads[:, :, 0] = turned

        self.over_blocks(compute, *x.shape)

    @recorded
    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        def compute(rows: slice) -> None:
            np.multiply(gate.array[rows], _sigmoid(gate.array[rows]), out=out.array[rows])
            out.array[rows] *= up.array[rows]

        self.over_blocks(compute, *gate.shape)

    @recorded
    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        def compute(rows: slice) -> None:
            gates, gradient = gate.array[rows], grad_out.array[rows]
            s = _sigmoid(gates)
            np.multiply(gradient, gates * s, out=grad_up.array[rows])
            # The derivative of gate * sigmoid(gate), s * (1 + gate * (1 - s)).
            slope = 1 - s
            slope *= gates
            slope += 1
            slope *= s
            slope *= up.array[rows]
            np.multiply(gradient, slope, out=grad_gate.array[rows])

        self.over_blocks(compute, *gate.shape)

    @recorded
    def gelu(self, x: Tensor, out: Tensor) -> None:
        np.multiply(0.5 * x.array, 1 + _gelu_tanh(x.array), out=out.array)

    @recorded
    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        t = _gelu_tanh(x.array)
        slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * x.array**2)  # of the argument of tanh
        derivative = 0.5 * (1 + t) + 0.5 * x.array * (1 - t * t) * slope
        np.multiply(grad_out.array, derivative, out=grad_x.array)


class GpuLayers(GpuRecorder):
    """The operations as kernels."""

    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        rows, width = norm.x.shape
        threads = thread_count(-(-width // ROW_ELEMENTS))
        self.dispatch(
            "lm/02_rms_norm.wgsl",
            workgroups(rows * threads),
            {"WORKGROUP_SIZE": WORKGROUP_SIZE, "ROW_THREADS": threads},
            **vars(norm),
            dims=dims(rows, width),
            params=np.array([epsilon, 0, 0, 0], np.float32),
        )

    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        rows, width = norm.x.shape
        blocks = -(-rows // BLOCK_ROWS)
        # Each workgroup takes whole blocks of rows, and there are no more than MAX_PARTIALS.
        group_rows = max(-(-blocks // MAX_PARTIALS), 1) * BLOCK_ROWS
        groups = -(-rows // group_rows)
        partials = self.scratch("rms_norm_backward", (groups, width))
        self.dispatch(
            "lm/02_rms_norm_backward.wgsl",
            groups,
            {"WORKGROUP_SIZE": thread_count(width, LEAST_THREADS), "BLOCK_ROWS": BLOCK_ROWS},
            x=norm.x,
            weight=norm.weight,
            inverse_rms=norm.inverse_rms,
            grad_out=grad_out,
            grad_x=grad_x,
            partials=partials,
            dims=dims(rows, width, group_rows),
        )
        self.dispatch(
            "lm/02_rms_norm_backward_weight.wgsl",
            -(-width // COLUMNS) if groups else 0,
            {"COLUMNS": COLUMNS},
            partials=partials,
            grad_weight=grad_weight,
            dims=dims(groups, width),
        )

    def rotary(self, x: Tensor, rotation: Rotation, *, inverse: bool = False) -> None:
        pairs, head_dim = x.size // 2, rotation.head_dim
        self.dispatch(
            "lm/04_rotary.wgsl",
            workgroups(pairs),
            x=x,
            cosines=rotation.cosines,
            sines=rotation.sines,
            positions=rotation.positions,
            params=dims(pairs, x.shape[1] // head_dim, head_dim // 2, int(inverse)),
        )

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
    result: FloatArray = np.float32(0.5) * x
    np.tanh(result, out=result)
    result += 1
    result *= np.float32(0.5)
    return result


def _gelu_tanh(x: FloatArray) -> FloatArray:
    result: FloatArray = np.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    return result
