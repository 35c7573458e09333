"""Operations on rows: norms, biases, and the rotation by positions.

RMS norm: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467. Rotation:
J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864;
columns i and i + D/2 of a head form a pair, as in Hugging Face's Llama.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmgpu.kernel_source import constant
from llmgpu.lm.ops.recording import (
    FOUR,
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
    vector_fours,
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
    spanning,
)

if TYPE_CHECKING:
    from llmgpu.gpu.device import Device

LEAST_THREADS = 64  # least threads of a workgroup of the norm's backward kernel
ROW_ELEMENTS = 8  # elements of a row for each thread of the norm, if the row is long enough
BLOCK_ROWS = 8  # rows that a workgroup of the norm's backward kernel computes at a time
MAX_PARTIALS = 1024  # most workgroups of the norm's backward kernel, enough to fill a GPU
COLUMNS = 16  # columns that a workgroup adds up; the number fixes the order of sums
# The sizes for norms in half precision.
HALF_COLUMNS = 4  # columns that a workgroup adds up
HALF_VECTORS = 4  # vectors of a row that a thread keeps, if a workgroup has enough threads
HALF_ROW_THREADS = 8  # least threads of a row
HALF_PARTIALS = 512  # most workgroups of the backward kernel
MATRICES_AT_ONCE = constant("lm/03_add_columns.wgsl", "MATRICES")  # matrices in a dispatch
PARTS_BYTES = 1 << 26  # most bytes of parts that wait to be added up, unless a norm has more


def rotary_frequencies(head_dim: int, theta: float) -> NDArray[np.float64]:
    """Return the angle by which pair i turns per position, theta ** (-2 i / head_dim)."""
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
    """Norms, biases, rotary embeddings, and splitting of heads, computed by NumPy."""

    @recorded
    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        """Write out = x * r * weight and inverse_rms = r, where r = 1 / sqrt(mean(x^2) + epsilon).

        Results are rounded as by `round_to_half` if `out` is float16.
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
        """Add the gradients of x and weight to grad_x (N, C) and grad_weight (C,).

        grad_out: (N, C), float32; float16 only if `rms_norm_backward_to_half` calls this method.
        """

        def compute(rows: slice) -> FloatArray:
            x_block, r = norm.x.array[rows], norm.inverse_rms.array[rows, None]
            # The gradient of the weight is grad_out * x * r, summed over the rows.
            gradient = as_single(grad_out.array[rows]) * r
            for_weight: FloatArray = (gradient * x_block).sum(axis=0)
            gradient *= norm.weight.array
            # The gradient of the input has no component along the row, because the output of the
            # norm does not depend on the row's length.
            mean = (gradient * x_block).mean(axis=1, keepdims=True)
            gradient -= x_block * (r * r * mean)
            grad_x.array[rows] += gradient
            return for_weight

        for for_weight in self.over_blocks(compute, *norm.x.shape):
            grad_weight.array[...] += for_weight

    def rms_norm_backward_to_half(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor, half: Tensor
    ) -> None:
        """Call `rms_norm_backward`, then `round_to_half` of grad_x into `half`, float16 (N, C).

        grad_out may be float16 if C is a multiple of 4.
        """
        self.rms_norm_backward(norm, grad_out, grad_x, grad_weight)
        self.round_to_half(grad_x, half)

    @contextmanager
    def late_norm_sums(self, most: int) -> Iterator[None]:
        """Let the norms of the block add to the gradients of weights as late as at the block's end.

        A device then adds up the parts of many such gradients at once. Other gradients are not
        late.

        most: number of different gradients of norms' weights in the block.
        """
        yield

    @recorded
    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        """Add bias (O,) to each row of x (N, O)."""
        x.array[...] += bias.array

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
        """Turn x (N, heads * D) by the angles of its rows, in place or into a float16 `out`.

        inverse: turn back. With `out`, D must be a multiple of 8.
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
        """Split x (N, R) into q, k and v, and turn q and k by the angles of their rows.

        All tensors are float16. starts: first columns of q, k and v in x, multiples of 4. D must be
        a multiple of 8.
        """
        for tensor, columns in columns_of(starts, heads):
            rows = as_single(x.array[:, columns])
            tensor.array[...] = (
                rows if tensor is heads.v else turned(rows, rotation, rotation.positions.array)
            )


class GpuLayers(GpuRecorder, LayerOperations):
    """Norms, biases, rotary embeddings, and splitting of heads, as GPU kernels."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._late = 1  # most gradients whose parts wait
        # Gradients of norms' weights that wait for the sums of their parts. Key: the scratch
        # (places, parts, C) with the parts; the parts of gradient k are at place k. Value: the
        # setting `COLUMNS` of the kernel that adds up the parts, and the gradients, (C,) each.
        self._waiting: dict[Tensor, tuple[int, list[Tensor]]] = {}

    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        rows, width = norm.x.shape
        kernel, settings = "02_rms_norm", {"ROW_THREADS": thread_count(-(-width // ROW_ELEMENTS))}
        if norm.out.is_half:
            if width % FOUR:
                with self.rounding_to("out", norm.out) as out:
                    self.rms_norm(replace(norm, out=out), epsilon)
                return
            kernel, settings = "02_rms_norm_half", _half_norm_settings(width)
            width //= FOUR
        self.dispatch(
            f"lm/{kernel}.wgsl",
            workgroups(rows * settings["ROW_THREADS"]),
            settings,
            **vars(norm),
            dims=dims(rows, width),
            params=np.array([epsilon, 0, 0, 0], np.float32),
        )

    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        self._norm_backward(norm, {"grad_out": grad_out, "grad_x": grad_x}, grad_weight)

    def rms_norm_backward_to_half(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor, half: Tensor
    ) -> None:
        if norm.x.shape[1] % FOUR:
            super().rms_norm_backward_to_half(norm, grad_out, grad_x, grad_weight, half)
            return
        gradients = {"grad_out": grad_out, "grad_x": grad_x, "rounded": half}
        self._norm_backward(norm, gradients, grad_weight)

    def _norm_backward(
        self, norm: Norm, gradients: Mapping[str, Tensor], grad_weight: Tensor
    ) -> None:
        """Dispatch a backward kernel, whose workgroups leave parts of `grad_weight` to be added."""
        rows, width = norm.x.shape
        if not rows:
            return
        if "rounded" in gradients:
            kernel, numbers, most = "rms_norm_backward_half", FOUR, HALF_PARTIALS
            settings = _half_norm_settings(width)
            settings["half_gradient"] = gradients["grad_out"].is_half
            together = WORKGROUP_SIZE // settings["ROW_THREADS"]
        else:
            kernel, numbers, most = "rms_norm_backward", 1, MAX_PARTIALS
            together = BLOCK_ROWS
            threads = thread_count(width, LEAST_THREADS)
            settings = {"WORKGROUP_SIZE": threads, "BLOCK_ROWS": together}
        # Each workgroup takes `together` rows at a time; there are at most `most` workgroups.
        group_rows = max(-(-rows // (together * most)), 1) * together
        groups = -(-rows // group_rows)
        columns = HALF_COLUMNS if norm.out.is_half else COLUMNS
        partials, place = self._place_of_parts(groups, width, columns, grad_weight)
        self.dispatch(
            f"lm/02_{kernel}.wgsl",
            groups,
            settings,
            x=norm.x,
            weight=norm.weight,
            inverse_rms=norm.inverse_rms,
            **gradients,
            partials=partials,
            dims=dims(rows, width // numbers, group_rows, place * groups),
        )
        if self._late == 1:
            self._add_waiting_parts()

    @contextmanager
    def late_norm_sums(self, most: int) -> Iterator[None]:
        self._late = most
        try:
            yield
            self._add_waiting_parts()
        finally:
            self._late = 1
            self._waiting.clear()

    def _place_of_parts(
        self, groups: int, width: int, columns: int, gradient: Tensor
    ) -> tuple[Tensor, int]:
        """Return the scratch for `groups` parts of a gradient, and the gradient's place there."""
        places = max(min(self._late, MATRICES_AT_ONCE, PARTS_BYTES // (4 * groups * width)), 1)
        parts = self.scratch("rms_norm_backward", (places, groups, width))
        before, gradients = self._waiting.get(parts, (columns, []))
        memory = spanning([*gradients, gradient])
        # One dispatch adds up parts of gradients that differ, are in one buffer, and share COLUMNS.
        distinct_count = 0 if memory is None or columns != before else len(set(memory[1]))
        if not len(gradients) < distinct_count <= places:
            self._add_parts(parts, before, gradients)
            gradients = []
        self._waiting[parts] = columns, [*gradients, gradient]
        return parts, len(gradients)

    def _add_waiting_parts(self) -> None:
        for parts, (columns, gradients) in self._waiting.items():
            self._add_parts(parts, columns, gradients)
        self._waiting.clear()

    def _add_parts(self, parts: Tensor, columns: int, gradients: Sequence[Tensor]) -> None:
        numbers = FOUR if parts.shape[2] % FOUR == 0 else 1
        self._add_columns(parts, gradients, columns, numbers)

    def add_bias(self, x: Tensor, bias: Tensor) -> None:
        sizes = dims(x.size, x.shape[1])
        self.dispatch("lm/03_add_bias.wgsl", workgroups(x.size), x=x, bias=bias, dims=sizes)

    def bias_backward(self, grad_out: Tensor, grad_bias: Tensor) -> None:
        self._add_columns(grad_out.reshaped(1, *grad_out.shape), [grad_bias], COLUMNS)

    def _add_columns(
        self, matrices: Tensor, sums: Sequence[Tensor], columns: int, numbers: int = 1
    ) -> None:
        """Add the sum of the rows of matrix k of (M, R, C) to `sums[k]`, (C,).

        sums: at most M different tensors in one buffer. columns: see `COLUMNS`. numbers: numbers of
        an element, 1 or 4.
        """
        _, rows, width = matrices.shape
        if not rows:
            return
        memory = spanning(sums)
        assert memory is not None, "the sums are in one buffer"
        table = np.zeros((MATRICES_AT_ONCE, FOUR), np.uint32)
        table[: len(sums), 0] = np.array(memory[1]) // numbers
        groups = -(-width // (numbers * columns))
        self.dispatch(
            "lm/03_add_columns.wgsl",
            len(sums) * groups,
            {"COLUMNS": columns, "numbers": numbers},
            rows=matrices,
            sums=memory[0],
            dims=dims(rows, width // numbers, groups, len(sums)),
            firsts=table,
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
            **rotation.tensors,
            params=dims(*sizes, int(inverse)),
            **({} if out is None else {"out": out}),
        )

    def split_heads(
        self, x: Tensor, starts: Sequence[int], rotation: Rotation, heads: AttentionTensors
    ) -> None:
        tensors = {"q": heads.q, "k": heads.k, "v": heads.v}
        widths = [tensor.shape[1] for tensor in tensors.values()]
        counts = [width // rotation.head_dim for width in widths[:2]]
        columns = [rotation.head_dim // 2, x.shape[1], *starts[1:]]
        fours = vector_fours(*columns)
        vectors = x.shape[0] * sum(widths) // (2 * FOUR * fours)
        self.dispatch(
            "lm/04_split_heads.wgsl",
            workgroups(vectors),
            {"fours": fours},
            x=x,
            **tensors,
            **rotation.tensors,
            params=dims(vectors, *counts, *(column // (FOUR * fours) for column in columns)),
        )


def _half_norm_settings(width: int) -> dict[str, int]:
    """Return the number of threads for a row, and of vectors in the registers of each thread."""
    fours = width // FOUR
    threads = thread_count(-(-fours // HALF_VECTORS), HALF_ROW_THREADS)
    return {"ROW_THREADS": threads, "vectors": -(-fours // threads)}


def columns_of(
    starts: Sequence[int], heads: AttentionTensors | AttentionGradients
) -> Iterator[tuple[Tensor, slice]]:
    """Yield queries, keys and values, each with its columns in the packed tensor."""
    for start, tensor in zip(starts, (heads.q, heads.k, heads.v), strict=True):
        yield tensor, slice(start, start + tensor.shape[1])


def turned(
    x: FloatArray, rotation: Rotation, positions: AnyArray, *, inverse: bool = False
) -> FloatArray:
    """Return rows (N, heads * D) turned by the angles of positions (N,)."""
    heads = x.reshape(len(x), -1, 2, rotation.head_dim // 2)
    cosine = rotation.cosines.array[positions, None]
    sine = rotation.sines.array[positions, None] * np.float32(-1 if inverse else 1)
    left, right = heads[:, :, 0], heads[:, :, 1]
    halves = (left * cosine - right * sine, right * cosine + left * sine)
    return np.stack(halves, axis=2).reshape(x.shape)
