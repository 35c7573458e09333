"""Rotary position embedding.

J. Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864.
Columns i and i + D/2 of a head make a pair, as in Hugging Face's Llama.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.operations import Rotation
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims, recorded, workgroups
from llmgpu.lm.ops.tensor import FloatArray, Tensor


def rotary_tables(max_positions: int, head_dim: int, theta: float) -> tuple[FloatArray, FloatArray]:
    """Return the cosines and sines of all positions, each (max_positions, head_dim / 2).

    Pair i turns by theta ** (-2 i / head_dim) a position; angles are computed in float64.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.outer(np.arange(max_positions, dtype=np.float64), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class NumpyRotary(NumpyRecorder):
    """The rotation of arrays."""

    @recorded
    def rotary(self, x: Tensor, rotation: Rotation, *, inverse: bool = False) -> None:
        heads = x.array.reshape(len(x.array), -1, 2, rotation.head_dim // 2)
        positions = rotation.positions.array
        cosine = rotation.cosines.array[positions, None]
        sine = rotation.sines.array[positions, None] * np.float32(-1 if inverse else 1)
        left, right = heads[:, :, 0], heads[:, :, 1]
        turned = left * cosine - right * sine
        heads[:, :, 1] = right * cosine + left * sine  # reads the left half, so it goes first
        heads[:, :, 0] = turned


class GpuRotary(GpuRecorder):
    """The rotation as a kernel."""

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
