"""What a layer computes row by row: the norm, the rotation by positions, and the activations.

RMS norm: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467. Rotation:
J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864;
columns i and i + D/2 of a head make a pair, as in Hugging Face's Llama. SwiGLU: N. Shazeer, GLU
Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form: D. Hendrycks, K. Gimpel,
Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Norm, Rotation
from llmgpu.lm.ops.recording import (
    WORKGROUP_SIZE,
    GpuRecorder,
    NumpyRecorder,
    as_single,
    dims,
    put,
    recorded,
    row_blocks,
    single_of,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import FloatArray, Tensor

LEAST_THREADS = 64  # of a workgroup of the norm's backward kernel, whose rows they share
ROW_ELEMENTS = 8  # of a row that a thread of the norm takes, if the row is long enough
BLOCK_ROWS = 8  # that a workgroup of the norm's backward kernel takes at once
MAX_PARTIALS = 1024  # workgroups of that kernel: enough to fill a GPU
FOUR = 4  # elements, or pairs of them, of a thread that writes half precision
HALF_KERNELS = ("06_swiglu", "09_swiglu_backward")  # there is another of half-precision numbers
COLUMNS = 16  # of a matrix in a workgroup that adds its rows up

_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


def rotary_frequencies(head_dim: int, theta: float) -> NDArray[np.float64]:
    """Return by how much each pair i turns a position, theta ** (-2 i / head_dim)."""
    frequencies: NDArray[np.float64] = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    return frequencies


def rotary_tables(
    max_positions: int, frequencies: NDArray[np.float64]
) -> tuple[FloatArray, FloatArray]:
    """Return the cosines and sines of all positions, each (max_positions, head_dim / 2).

    frequencies: (head_dim / 2,), see `rotary_frequencies`; angles are computed in float64.
    """
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
            x, target = norm.x.array[rows], norm.out.array[rows]
            out = single_of(target)
            np.square(x, out=out)
            r = 1 / np.sqrt(out.mean(axis=1) + np.float32(epsilon))
            norm.inverse_rms.array[rows] = r
            np.multiply(x, r[:, None], out=out)
            out *= norm.weight.array
            put(out, target)

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
    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        def compute(rows: slice) -> None:
            x.array[rows] += bias.array

        self.over_blocks(compute, *x.shape)

    @recorded
    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        def compute(rows: slice) -> FloatArray:
            total: FloatArray = grad_out.array[rows].sum(axis=0)
            return total

        for total in self.over_blocks(compute, *grad_out.shape):
            grad_bias.array[...] += total

    @recorded
    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> None:
        def compute(rows: slice) -> None:
            block = x.array[rows]
            heads = block.reshape(len(block), -1, 2, rotation.head_dim // 2)
            target = heads if out is None else out.array[rows].reshape(heads.shape)
            positions = rotation.positions.array[rows]
            cosine = rotation.cosines.array[positions, None]
            sine = rotation.sines.array[positions, None] * np.float32(-1 if inverse else 1)
            left, right = heads[:, :, 0], heads[:, :, 1]
            turned = left * cosine - right * sine
            target[:, :, 1] = right * cosine + left * sine  # reads the left half, so it goes first
            target[:, :, 0] = turned

        self.over_blocks(compute, *x.shape)

    @recorded
    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        def compute(rows: slice) -> None:
            gates, product = as_single(gate.array[rows]), single_of(out.array[rows])
            np.multiply(gates, _sigmoid(gates), out=product)
            product *= up.array[rows]
            put(product, out.array[rows])

        self.over_blocks(compute, *gate.shape)

    @recorded
    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        def compute(rows: slice) -> None:
            gates, gradient = as_single(gate.array[rows]), as_single(grad_out.array[rows])
            s = _sigmoid(gates)
            for_up, for_gate = single_of(grad_up.array[rows]), single_of(grad_gate.array[rows])
            np.multiply(gradient, gates * s, out=for_up)
            put(for_up, grad_up.array[rows])
            # The derivative of gate * sigmoid(gate), s * (1 + gate * (1 - s)).
            slope = 1 - s
            slope *= gates
            slope += 1
            slope *= s
            slope *= up.array[rows]
            np.multiply(gradient, slope, out=for_gate)
            put(for_gate, grad_gate.array[rows])

        self.over_blocks(compute, *gate.shape)

    @recorded
    def gelu(self, x: Tensor, out: Tensor) -> None:
        inputs, values = as_single(x.array), single_of(out.array)
        np.multiply(0.5 * inputs, 1 + _gelu_tanh(inputs), out=values)
        put(values, out.array)

    @recorded
    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        inputs = as_single(x.array)
        t = _gelu_tanh(inputs)
        slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * inputs**2)  # of the argument of tanh
        derivative = 0.5 * (1 + t) + 0.5 * inputs * (1 - t * t) * slope
        values = single_of(grad_x.array)
        np.multiply(grad_out.array, derivative, out=values)
        put(values, grad_x.array)


class GpuLayers(GpuRecorder):
    """The operations as kernels."""

    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        rows, width = norm.x.shape
        threads = thread_count(-(-width // ROW_ELEMENTS))
        in_fours = norm.out.is_half and width % FOUR == 0

        def record(out: Tensor) -> None:
            self.dispatch(
                "lm/02_rms_norm_half.wgsl" if in_fours else "lm/02_rms_norm.wgsl",
                workgroups(rows * threads),
                {"WORKGROUP_SIZE": WORKGROUP_SIZE, "ROW_THREADS": threads},
                **vars(replace(norm, out=out)),
                dims=dims(rows, width // FOUR if in_fours else width),
                params=np.array([epsilon, 0, 0, 0], np.float32),
            )

        if in_fours:
            record(norm.out)
        else:
            self.through_single({"out": norm.out}, record)

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
        self.bias_backward(partials, grad_weight)

    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        sizes = dims(x.size, x.shape[1])
        self.dispatch("lm/03_add_bias.wgsl", workgroups(x.size), x=x, bias=bias, dims=sizes)

    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        rows, width = grad_out.shape
        self.dispatch(
            "lm/03_add_columns.wgsl",
            -(-width // COLUMNS) if rows else 0,
            {"COLUMNS": COLUMNS},
            rows=grad_out,
            sums=grad_bias,
            dims=dims(rows, width),
        )

    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> None:
        pairs, head_dim = x.size // 2, rotation.head_dim
        of_thread = 1 if out is None else FOUR
        sizes = (pairs // of_thread, x.shape[1] // head_dim, head_dim // 2 // of_thread)
        self.dispatch(
            "lm/04_rotary.wgsl" if out is None else "lm/04_rotary_half.wgsl",
            workgroups(sizes[0]),
            x=x,
            cosines=rotation.cosines,
            sines=rotation.sines,
            positions=rotation.positions,
            params=dims(*sizes, int(inverse)),
            **({} if out is None else {"out": out}),
        )

    def swiglu(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        self._elements("06_swiglu", {"gate": gate, "up": up}, {"out": out})

    def swiglu_backward(
        self, gate: Tensor, up: Tensor, grad_out: Tensor, grad_gate: Tensor, grad_up: Tensor
    ) -> None:
        inputs = {"gate": gate, "up": up, "grad_out": grad_out}
        gradients = {"grad_gate": grad_gate, "grad_up": grad_up}
        self._elements("09_swiglu_backward", inputs, gradients)

    def gelu(self, x: Tensor, out: Tensor) -> None:
        self._elements("06_gelu", {"x": x}, {"out": out})

    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        inputs = {"x": x, "grad_out": grad_out}
        self._elements("09_gelu_backward", inputs, {"grad_x": grad_x})

    def _elements(
        self, kernel: str, inputs: Mapping[str, Tensor], outs: Mapping[str, Tensor]
    ) -> None:
        """Dispatch a kernel of one thread an element, or four where all are halves."""
        tensors = {**inputs, **outs}
        size = next(iter(outs.values())).size
        in_fours = size % FOUR == 0 and all(tensor.is_half for tensor in tensors.values())
        if in_fours and kernel in HALF_KERNELS:
            file, fours = f"lm/{kernel}_half.wgsl", size // FOUR
            self.dispatch(file, workgroups(fours), **tensors, dims=dims(fours))
            return
        singles = {name: self.single(name, tensor) for name, tensor in inputs.items()}
        record = partial(
            self.dispatch, f"lm/{kernel}.wgsl", workgroups(size), dims=dims(size), **singles
        )
        self.through_single(outs, record)


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
