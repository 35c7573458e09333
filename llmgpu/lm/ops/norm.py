"""Root-mean-square normalisation.

B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.tensor import Tensor

KERNELS = "lm/02_norm.wgsl"
WORKGROUP_SIZE = 256
ROW_ELEMENTS = 8  # of a row that a thread of the forward kernel takes, if the row is long enough
BLOCK_ROWS = 8  # that a workgroup of the backward kernel takes at once
MAX_PARTIALS = 1024  # workgroups of the backward kernel: enough to fill a GPU
COLUMNS = 16  # of grad_weight in a workgroup that adds partial sums up

BLOCK_ELEMENTS = 1 << 18  # of a block of rows in NumPy, so that its temporaries stay in the cache


class NumpyNorm(NumpyRecorder):
    """The operations on arrays."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, out: Tensor, inverse_rms: Tensor, epsilon: float
    ) -> None:
        """Out = x * r * weight with r = 1 / sqrt(mean(x^2) + epsilon), which is kept.

        x, out: (N, C). weight: (C,). inverse_rms: (N,).
        """

        def step() -> None:
            np.square(x.array, out=out.array)
            r = 1 / np.sqrt(out.array.mean(axis=1) + np.float32(epsilon))
            inverse_rms.array[...] = r
            np.multiply(x.array, r[:, None], out=out.array)
            out.array[...] *= weight.array

        self.append(step)

    def rms_norm_backward(
        self,
        x: Tensor,
        weight: Tensor,
        inverse_rms: Tensor,
        grad_out: Tensor,
        grad_x: Tensor,
        grad_weight: Tensor,
    ) -> None:
        """Add the gradients of x (N, C) and weight (C,) to those given; grad_out is (N, C)."""

        def step() -> None:
            for rows in _row_blocks(*x.shape):
                x_block, r = x.array[rows], inverse_rms.array[rows, None]
                gradient = grad_out.array[rows] * r
                grad_weight.array[...] += (gradient * x_block).sum(axis=0)
                gradient *= weight.array
                mean = (gradient * x_block).mean(axis=1, keepdims=True)
                gradient -= x_block * (r * r * mean)
                grad_x.array[rows] += gradient

        self.append(step)


class GpuNorm(GpuRecorder):
    """The operations as kernels."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, out: Tensor, inverse_rms: Tensor, epsilon: float
    ) -> None:
        """Out = x * r * weight with r = 1 / sqrt(mean(x^2) + epsilon), which is kept.

        x, out: (N, C). weight: (C,). inverse_rms: (N,).
        """
        rows, width = x.shape
        threads = min(_power_of_two(-(-width // ROW_ELEMENTS)), WORKGROUP_SIZE)
        self.dispatch(
            f"{KERNELS}:rms_norm",
            -(-rows * threads // WORKGROUP_SIZE),
            constants={"ROW_THREADS": threads},
            x=x,
            weight=weight,
            out=out,
            inverse_rms=inverse_rms,
            dims=dims(rows, width),
            params=np.array([epsilon, 0, 0, 0], np.float32),
        )

    def rms_norm_backward(
        self,
        x: Tensor,
        weight: Tensor,
        inverse_rms: Tensor,
        grad_out: Tensor,
        grad_x: Tensor,
        grad_weight: Tensor,
    ) -> None:
        """Add the gradients of x (N, C) and weight (C,) to those given; grad_out is (N, C)."""
        rows, width = x.shape
        blocks = -(-rows // BLOCK_ROWS)
        group_rows = max(-(-blocks // MAX_PARTIALS), 1) * BLOCK_ROWS
        groups = -(-rows // group_rows)
        partials = self.scratch("rms_norm_backward", (groups, width))
        self.dispatch(
            f"{KERNELS}:rms_norm_backward",
            groups,
            constants={
                "WORKGROUP_SIZE": max(min(_power_of_two(width), WORKGROUP_SIZE), 64),
                "BLOCK_ROWS": BLOCK_ROWS,
            },
            x=x,
            weight=weight,
            row_rms=inverse_rms,
            grad_out=grad_out,
            grad_x=grad_x,
            partial_sums=partials,
            block_dims=dims(rows, width, group_rows),
        )
        self.dispatch(
            f"{KERNELS}:rms_norm_backward_weight",
            -(-width // COLUMNS) if groups else 0,
            constants={"COLUMNS": COLUMNS},
            partials=partials,
            grad_weight=grad_weight,
            partial_dims=dims(groups, width),
        )


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below `count`, at least 1."""
    return 1 << (count - 1).bit_length()


def _row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows that together are all of them."""
    step = max(BLOCK_ELEMENTS // max(width, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)
