"""Conversions between single and half precision."""

from __future__ import annotations

import numpy as np

from llmgpu.errors import DeviceError
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.tensor import Tensor

KERNELS = "lm/08_cast.wgsl"
WORKGROUP_SIZE = 256
LARGEST_HALF = np.float32(65504)


class NumpyCast(NumpyRecorder):
    """The operations on arrays."""

    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        """Round float32 numbers to the nearest halves, at most 65504 in size; NaN stays NaN."""

        def step() -> None:
            # NumPy's clip keeps NaN.
            target.array[...] = np.clip(source.array, -LARGEST_HALF, LARGEST_HALF)

        self.append(step)

    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        """Write halves as float32 numbers, which is exact."""

        def step() -> None:
            target.array[...] = source.array

        self.append(step)


class GpuCast(GpuRecorder):
    """The operations as kernels."""

    def cast_f32_to_f16(self, source: Tensor, target: Tensor) -> None:
        """Round float32 numbers to the nearest halves, at most 65504 in size; NaN stays NaN.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """
        self._require_half_precision()
        self.dispatch(
            f"{KERNELS}:cast_f32_to_f16",
            -(-source.size // WORKGROUP_SIZE),
            src=source,
            dst=target,
            n=dims(source.size),
        )

    def cast_f16_to_f32(self, source: Tensor, target: Tensor) -> None:
        """Write halves as float32 numbers, which is exact.

        Raises:
            DeviceError: the device has no half-precision numbers.
        """
        self._require_half_precision()
        self.dispatch(
            f"{KERNELS}:cast_f16_to_f32",
            -(-source.size // WORKGROUP_SIZE),
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
