"""AdamW on the rows of an embedding's table that a batch has touched, and on no others.

Other rows keep their moments as they are, as in torch's SparseAdam. `rows`, (U,) uint32, holds
different row numbers, and 0xffffffff in entries that are not in use.
"""

from __future__ import annotations

import numpy as np

from llmgpu.lm.ops.adamw import PIECE, adamw, saturate_to_half
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.stats import BAD, CLIP_SCALE
from llmgpu.lm.ops.tensor import Tensor

KERNELS = "lm/12_optimizer_rows.wgsl"
WORKGROUP_SIZE = 256


class NumpyOptimizerRows(NumpyRecorder):
    """The operations on arrays."""

    def adamw_update_rows(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        rows: Tensor,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Do `adamw_update` on the rows listed; parameter, moments and mirror are (V, C)."""

        def step() -> None:
            if stats.array[BAD] != 0:
                return
            listed = rows.array[rows.array < parameter.shape[0]]
            per_piece = max(1, PIECE // parameter.shape[1])
            for start in range(0, len(listed), per_piece):
                some = listed[start : start + per_piece]
                state = [x.array[some] for x in (parameter, first, second)]
                g = gradient.array[some] * stats.array[CLIP_SCALE]
                adamw(state[0], g, state[1], state[2], hyper.array, decay)
                for tensor, updated in zip((parameter, first, second), state, strict=True):
                    tensor.array[some] = updated
                if mirror is not None:
                    half = np.empty(state[0].shape, np.float16)
                    saturate_to_half(state[0], half)
                    mirror.array[some] = half

        self.append(step)

    def fill_zero_rows(self, tensor: Tensor, rows: Tensor) -> None:
        """Fill the rows listed with zeros; tensor is (V, C)."""

        def step() -> None:
            tensor.array[rows.array[rows.array < tensor.shape[0]]] = 0

        self.append(step)


class GpuOptimizerRows(GpuRecorder):
    """The operations as kernels."""

    def adamw_update_rows(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        rows: Tensor,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Do `adamw_update` on the rows listed; parameter, moments and mirror are (V, C)."""
        height, width = parameter.shape
        mirrors = {} if mirror is None else {"mirror": mirror}
        self.dispatch(
            f"{KERNELS}:adamw_update_rows{'_f16' if mirrors else ''}",
            -(-rows.size * width // WORKGROUP_SIZE),
            None,
            parameter=parameter,
            gradient=gradient,
            first=first,
            second=second,
            hyper=hyper,
            stats=stats,
            rows=rows,
            dims=dims(rows.size * width, width, height, int(decay)),
            **mirrors,
        )

    def fill_zero_rows(self, tensor: Tensor, rows: Tensor) -> None:
        """Fill the rows listed with zeros; tensor is (V, C)."""
        height, width = tensor.shape
        self.dispatch(
            f"{KERNELS}:fill_zero_rows",
            -(-rows.size * width // WORKGROUP_SIZE),
            table=tensor,
            zero_rows=rows,
            zero_dims=dims(rows.size * width, width, height),
        )
