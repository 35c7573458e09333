"""What a layer computes row by row: the norm, the rotation by positions, and the activations.

RMS norm: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467. Rotation:
J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864;
columns i and i + D/2 of a head make a pair, as in Hugging Face's Llama. SwiGLU: N. Shazeer, GLU
Variants Improve Transformer, arXiv 2002.05202. GeLU in its tanh form: D. Hendrycks, K. Gimpel,
Gaussian Error Linear Units, arXiv 1606.08415.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.recording import (
    WORKGROUP_SIZE,
    GpuRecorder,
    Recorder,
    as_single,
    dims,
    put,
    recorded,
    row_blocks,
    single_of,
    thread_count,
    workgroups,
)
from llmgpu.lm.ops.tensor import (
    AnyArray,
    AttentionGradients,
    AttentionTensors,
    FloatArray,
    Norm,
    Rotation,
    Tensor,
)

LEAST_THREADS = 64  # of a workgroup of the norm's backward kernel, whose rows they share
ROW_ELEMENTS = 8  # of a row that a thread of the norm takes, if the row is long enough
BLOCK_ROWS = 8  # that a workgroup of the norm's backward kernel takes at once
MAX_PARTIALS = 1024  # workgroups of that kernel: enough to fill a GPU
FOUR = 4  # elements, or pairs of them, of a thread that writes half precision
COLUMNS = 16  # of a matrix in a workgroup that adds its rows up, which fixes the order of sums
HALF_COLUMNS = 4  # where runs in half precision alone depend on it: more workgroups share the rows

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


class LayerOperations(Recorder):
    """The operations on arrays."""

    @recorded
    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        """Out = x * r * weight with inverse_rms r = 1 / sqrt(mean(x^2) + epsilon).

        Out may be float16, as what the activations write may: then it is rounded as by
        `round_to_half`.
        """

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
        """Add the gradients of x (N, C) and weight (C,) to those given; grad_out is (N, C)."""

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
        """Add bias (O,) to each row of x (N, O)."""

        def compute(rows: slice) -> None:
            x.array[rows] += bias.array

        self.over_blocks(compute, *x.shape)

    @recorded
    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        """Add the sum of the rows of grad_out (N, O) to grad_bias (O,)."""

        def compute(rows: slice) -> FloatArray:
            total: FloatArray = grad_out.array[rows].sum(axis=0)
            return total

        for total in self.over_blocks(compute, *grad_out.shape):
            grad_bias.array[...] += total

    @recorded
    def rotary(
        self, x: Tensor, rotation: Rotation, out: Tensor | None = None, *, inverse: bool = False
    ) -> None:
        """Turn x (N, heads * D) by the angles of its rows, or back: in place, or into float16 out.

        D is a multiple of 8 where there is an `out`.
        """

        def compute(rows: slice) -> None:
            target = x if out is None else out
            positions = rotation.positions.array[rows]
            target.array[rows] = turned(x.array[rows], rotation, positions, inverse=inverse)

        self.over_blocks(compute, *x.shape)

    @recorded
    def split_heads(
        self, x: Tensor, starts: Sequence[int], rotation: Rotation, heads: AttentionTensors
    ) -> None:
        """Write q and k, turned by the angles of rows, and v, which x (N, R) has side by side.

        All are float16. starts: their first columns in x, multiples of 4; D is one of 8.
        """
        for tensor, columns in _columns(starts, heads):
            rows = as_single(x.array[:, columns])
            tensor.array[...] = (
                rows if tensor is heads.v else turned(rows, rotation, rotation.positions.array)
            )

    @recorded
    def join_heads(
        self,
        grad: AttentionGradients,
        rotation: Rotation,
        grad_x: Tensor,
        starts: Sequence[int],
    ) -> None:
        """Write the gradient of what `split_heads` takes, float16, from those of q, k and v."""
        positions = rotation.positions.array
        for tensor, columns in _columns(starts, grad):
            rows = tensor.array
            if tensor is not grad.v:
                rows = turned(rows, rotation, positions, inverse=True)
            np.copyto(grad_x.array[:, columns], rows, casting="same_kind")

    @recorded
    def swiglu(self, gate: Tensor, up: Tensor | None, out: Tensor) -> None:
        """Out = gate * sigmoid(gate) * up; all (N, F), each float32 or float16, as below.

        Without `up`, `gate` (N, R) has both, up in its last columns; then all are float16, and F
        and R are multiples of 4. So it is in `swiglu_backward` with both gradients.
        """
        of_gate, of_up = _gate_and_up(gate, up, out.shape[1])

        def compute(rows: slice) -> None:
            gates, product = as_single(of_gate[rows]), single_of(out.array[rows])
            np.multiply(gates, _sigmoid(gates), out=product)
            product *= of_up[rows]
            put(product, out.array[rows])

        self.over_blocks(compute, *out.shape)

    @recorded
    def swiglu_backward(
        self,
        gate: Tensor,
        up: Tensor | None,
        grad_out: Tensor,
        grad_gate: Tensor,
        grad_up: Tensor | None,
    ) -> None:
        """Write the gradients of gate and up; all (N, F)."""
        width = grad_out.shape[1]
        of_gate, of_up = _gate_and_up(gate, up, width)
        to_gate, to_up = _gate_and_up(grad_gate, grad_up, width)

        def compute(rows: slice) -> None:
            gates, gradient = as_single(of_gate[rows]), as_single(grad_out.array[rows])
            s = _sigmoid(gates)
            for_up, for_gate = single_of(to_up[rows]), single_of(to_gate[rows])
            np.multiply(gradient, gates * s, out=for_up)
            put(for_up, to_up[rows])
            # The derivative of gate * sigmoid(gate), s * (1 + gate * (1 - s)).
            slope = 1 - s
            slope *= gates
            slope += 1
            slope *= s
            slope *= of_up[rows]
            np.multiply(gradient, slope, out=for_gate)
            put(for_gate, to_gate[rows])

        self.over_blocks(compute, *grad_out.shape)

    @recorded
    def gelu(self, x: Tensor, out: Tensor) -> None:
        """Out = x * Phi(x), Phi by tanh; both (N, F)."""
        inputs, values = as_single(x.array), single_of(out.array)
        np.multiply(0.5 * inputs, 1 + _gelu_tanh(inputs), out=values)
        put(values, out.array)

    @recorded
    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        """Write the gradient of x; all (N, F)."""
        inputs = as_single(x.array)
        t = _gelu_tanh(inputs)
        slope = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * inputs**2)  # of the argument of tanh
        derivative = 0.5 * (1 + t) + 0.5 * inputs * (1 - t * t) * slope
        values = single_of(grad_x.array)
        np.multiply(grad_out.array, derivative, out=values)
        put(values, grad_x.array)


class GpuLayers(GpuRecorder, LayerOperations):
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
        self._add_columns(partials, grad_weight, HALF_COLUMNS if norm.out.is_half else COLUMNS)

    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        sizes = dims(x.size, x.shape[1])
        self.dispatch("lm/03_add_bias.wgsl", workgroups(x.size), x=x, bias=bias, dims=sizes)

    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        self._add_columns(grad_out, grad_bias, COLUMNS)

    def _add_columns(self, matrix: Tensor, sums: Tensor, columns: int) -> None:
        rows, width = matrix.shape
        self.dispatch(
            "lm/03_add_columns.wgsl",
            -(-width // columns) if rows else 0,
            {"COLUMNS": columns},
            rows=matrix,
            sums=sums,
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

    def split_heads(
        self, x: Tensor, starts: Sequence[int], rotation: Rotation, heads: AttentionTensors
    ) -> None:
        tensors = {"x": x, "q": heads.q, "k": heads.k, "v": heads.v}
        self._packed_heads("lm/04_split_heads.wgsl", starts, heads, rotation, x, tensors)

    def join_heads(
        self,
        grad: AttentionGradients,
        rotation: Rotation,
        grad_x: Tensor,
        starts: Sequence[int],
    ) -> None:
        tensors = {"grad_q": grad.q, "grad_k": grad.k, "grad_v": grad.v, "grad_x": grad_x}
        self._packed_heads("lm/04_join_heads.wgsl", starts, grad, rotation, grad_x, tensors)

    def _packed_heads(
        self,
        file: str,
        starts: Sequence[int],
        heads: AttentionTensors | AttentionGradients,
        rotation: Rotation,
        packed: Tensor,
        tensors: Mapping[str, Tensor],
    ) -> None:
        widths = [tensor.shape[1] for tensor in (heads.q, heads.k, heads.v)]
        fours = packed.shape[0] * sum(widths) // (2 * FOUR)
        counts = [width // rotation.head_dim for width in widths[:2]]
        columns = [rotation.head_dim // 2, packed.shape[1], *starts[1:]]
        self.dispatch(
            file,
            workgroups(fours),
            **tensors,
            cosines=rotation.cosines,
            sines=rotation.sines,
            positions=rotation.positions,
            params=dims(fours, *counts, *(column // FOUR for column in columns)),
        )

    def swiglu(self, gate: Tensor, up: Tensor | None, out: Tensor) -> None:
        if up is None:
            self._swiglu_halves("06_swiglu", out, {"x": gate, "out": out})
        else:
            self._elements("06_swiglu", {"gate": gate, "up": up}, {"out": out})

    def swiglu_backward(
        self,
        gate: Tensor,
        up: Tensor | None,
        grad_out: Tensor,
        grad_gate: Tensor,
        grad_up: Tensor | None,
    ) -> None:
        if up is None or grad_up is None:
            tensors = {"x": gate, "grad_out": grad_out, "grad_x": grad_gate}
            self._swiglu_halves("09_swiglu_backward", grad_out, tensors)
            return
        inputs = {"gate": gate, "up": up, "grad_out": grad_out}
        gradients = {"grad_gate": grad_gate, "grad_up": grad_up}
        self._elements("09_swiglu_backward", inputs, gradients)

    def _swiglu_halves(self, kernel: str, out: Tensor, tensors: Mapping[str, Tensor]) -> None:
        fours = out.size // FOUR
        sizes = dims(fours, out.shape[1] // FOUR, tensors["x"].shape[1] // FOUR)
        self.dispatch(f"lm/{kernel}_half.wgsl", workgroups(fours), **tensors, dims=sizes)

    def gelu(self, x: Tensor, out: Tensor) -> None:
        self._elements("06_gelu", {"x": x}, {"out": out})

    def gelu_backward(self, x: Tensor, grad_out: Tensor, grad_x: Tensor) -> None:
        inputs = {"x": x, "grad_out": grad_out}
        self._elements("09_gelu_backward", inputs, {"grad_x": grad_x})

    def _elements(
        self, kernel: str, inputs: Mapping[str, Tensor], outs: Mapping[str, Tensor]
    ) -> None:
        """Dispatch a kernel of one thread per element, in float32."""
        size = next(iter(outs.values())).size
        singles = {name: self.single(name, tensor) for name, tensor in inputs.items()}
        record = partial(
            self.dispatch, f"lm/{kernel}.wgsl", workgroups(size), dims=dims(size), **singles
        )
        self.through_single(outs, record)


def _columns(
    starts: Sequence[int], heads: AttentionTensors | AttentionGradients
) -> Iterator[tuple[Tensor, slice]]:
    """Yield queries, keys and values with their columns where they lie side by side."""
    for start, tensor in zip(starts, (heads.q, heads.k, heads.v), strict=True):
        yield tensor, slice(start, start + tensor.shape[1])


def turned(
    x: FloatArray, rotation: Rotation, positions: AnyArray, *, inverse: bool = False
) -> FloatArray:
    """Return rows (N, heads * D), turned by the angles of positions (N,)."""
    heads = x.reshape(len(x), -1, 2, rotation.head_dim // 2)
    cosine = rotation.cosines.array[positions, None]
    sine = rotation.sines.array[positions, None] * np.float32(-1 if inverse else 1)
    left, right = heads[:, :, 0], heads[:, :, 1]
    halves = (left * cosine - right * sine, right * cosine + left * sine)
    return np.stack(halves, axis=2).reshape(x.shape)


def _gate_and_up(gate: Tensor, up: Tensor | None, width: int) -> tuple[AnyArray, AnyArray]:
    """Return both arrays, which are the first and the last columns of one if `up` is None."""
    if up is not None:
        return gate.array, up.array
    return gate.array[:, :width], gate.array[:, -width:]


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
