"""Zeros, and conversions between single and half precision."""

from __future__ import annotations

import numpy as np

from llmgpu.errors import DeviceError
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims, recorded, workgroups
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor

LARGEST_HALF = np.float32(65504)


def saturate_to_half(source: FloatArray, out: AnyArray) -> None:
    """Write the nearest half-precision numbers, at most `LARGEST_HALF` in size; NaN stays NaN."""
    # NumPy's clip keeps NaN.
    np.copyto(out, np.clip(source, -LARGEST_HALF, LARGEST_HALF), casting="same_kind")


class NumpyCast(NumpyRecorder):
    """The operations on arrays."""

    @recorded
    def fill_zero(self, tensor: Tensor) -> None:
        tensor.array[...] = 0

    @recorded
    def fill_zero_rows(self, tensor: Tensor, rows: Tensor) -> None:
        tensor.array[rows.array[rows.array < tensor.shape[0]]] = 0

    @recorded
    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        saturate_to_half(source.array, target.array)

    @recorded
    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        target.array[...] = source.array


class GpuCast(GpuRecorder):
    """The operations as kernels."""

    def fill_zero(self, tensor: Tensor) -> None:
        # A tensor of small elements may end inside a 4-byte word, whose rest is kept.
        words, rest = -(-tensor.nbytes // 4), tensor.nbytes % 4
        kept = 0xFFFFFFFF << 8 * rest & 0xFFFFFFFF if rest else 0
        self.dispatch(
            "lm/00_fill_zero.wgsl", workgroups(words), words=tensor, dims=dims(words, kept)
        )

    def fill_zero_rows(self, tensor: Tensor, rows: Tensor) -> None:
        height, width = tensor.shape
        threads = rows.size * width
        self.dispatch(
            "lm/00_fill_zero_rows.wgsl",
            workgroups(threads),
            table=tensor,
            rows=rows,
            dims=dims(threads, width, height),
        )

    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        self._require_half_precision()
        self.dispatch(
            "lm/08_cast_f32_to_f16.wgsl",
            workgroups(source.size),
            src=source,
            dst=target,
            n=dims(source.size),
        )

    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        self._require_half_precision()
        self.dispatch(
            "lm/08_cast_f16_to_f32.wgsl",
            workgroups(source.size),
            halves=source,
            singles=target,
            n=dims(source.size),
        )

    def _require_half_precision(self) -> None:
        if not self.has_half_precision:
            raise DeviceError(
                f"{self.device.name} has no half-precision numbers (feature shader-f16); "
                "use single precision, another adapter or --device cpu"
            )
