"""Root-mean-square normalisation.

B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.operations import Norm
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
from llmgpu.lm.ops.tensor import Tensor

LEAST_THREADS = 64  # of a workgroup of the backward kernel, whose rows they share
ROW_ELEMENTS = 8  # of a row that a thread of the forward kernel takes, if the row is long enough
BLOCK_ROWS = 8  # that a workgroup of the backward kernel takes at once
MAX_PARTIALS = 1024  # workgroups of the backward kernel: enough to fill a GPU
COLUMNS = 16  # of grad_weight in a workgroup that adds partial sums up


class NumpyNorm(NumpyRecorder):
    """The operations on arrays."""

    @recorded
    def rms_norm(self, norm: Norm, epsilon: float) -> None:
        x, out = norm.x.array, norm.out.array
        np.square(x, out=out)
        r = 1 / np.sqrt(out.mean(axis=1) + np.float32(epsilon))
        norm.inverse_rms.array[...] = r
        np.multiply(x, r[:, None], out=out)
        out *= norm.weight.array

    @recorded
    def rms_norm_backward(
        self, norm: Norm, grad_out: Tensor, grad_x: Tensor, grad_weight: Tensor
    ) -> None:
        for rows in row_blocks(*norm.x.shape):
            x_block, r = norm.x.array[rows], norm.inverse_rms.array[rows, None]
            # The weight gets grad_out * x * r, summed over the rows.
            gradient = grad_out.array[rows] * r
            grad_weight.array[...] += (gradient * x_block).sum(axis=0)
            gradient *= norm.weight.array
            # The input: remove what only changes the length of the row, which the norm takes away.
            mean = (gradient * x_block).mean(axis=1, keepdims=True)
            gradient -= x_block * (r * r * mean)
            grad_x.array[rows] += gradient


class GpuNorm(GpuRecorder):
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
