"""AdamW whose moments take one byte a number (`llmgpu.lm.ops.block_codes`).

The first moment has signed codes, the second one unsigned codes of its square root: only 0 has
code 0, since a denominator of 0 would let the step explode.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.adamw import PIECE, Array, adamw, saturate_to_half
from llmgpu.lm.ops.block_codes import (
    BLOCK,
    SIGNED_VALUES,
    UNSIGNED_VALUES,
    BlockCodes,
    decode,
    encode_signed,
    encode_unsigned,
)
from llmgpu.lm.ops.recording import GpuRecorder, NumpyRecorder, dims
from llmgpu.lm.ops.stats import BAD, CLIP_SCALE
from llmgpu.lm.ops.tensor import Tensor

KERNELS = "lm/12_optimizer_8bit.wgsl"


class NumpyOptimizer8Bit(NumpyRecorder):
    """The operation on arrays."""

    def adamw_8bit_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: BlockCodes,
        second: BlockCodes,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Do `adamw_update` with moments that are codes of parameter.size numbers."""

        def step() -> None:
            if stats.array[BAD] != 0:
                return
            p, scaled = parameter.array.reshape(-1), stats.array[CLIP_SCALE]
            for start in range(0, parameter.size, PIECE):
                part = slice(start, start + PIECE)
                g = gradient.array.reshape(-1)[part] * scaled
                m, v = _moments(first, second, start)
                adamw(p[part], g, m[: len(g)], v[: len(g)], hyper.array, decay)
                _keep(m, v, first, second, start)
                if mirror is not None:
                    saturate_to_half(p[part], mirror.array.reshape(-1)[part])

        self.append(step)


class GpuOptimizer8Bit(GpuRecorder):
    """The operation as kernels."""

    def adamw_8bit_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: BlockCodes,
        second: BlockCodes,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Do `adamw_update` with moments that are codes of parameter.size numbers."""
        mirrors = {} if mirror is None else {"mirror": mirror}
        self.dispatch(
            f"{KERNELS}:adamw_8bit_update{'_f16' if mirrors else ''}",
            -(-parameter.size // BLOCK),
            {"WORKGROUP_SIZE": BLOCK // 4},
            parameter=parameter,
            gradient=gradient,
            first_codes=first.codes,
            first_scales=first.scales,
            hyper=hyper,
            stats=stats,
            second_codes=second.codes,
            second_scales=second.scales,
            dims=dims(parameter.size, int(decay)),
            **mirrors,
        )


def _moments(first: BlockCodes, second: BlockCodes, start: int) -> tuple[Array, Array]:
    """Return both moments of the PIECE elements from `start`, whole blocks."""
    m = decode(*_piece(first, start), SIGNED_VALUES)
    v = decode(*_piece(second, start), UNSIGNED_VALUES)
    return m, np.square(v, out=v)


def _keep(m: Array, v: Array, first: BlockCodes, second: BlockCodes, start: int) -> None:
    encode_signed(m, *_piece(first, start))
    encode_unsigned(np.sqrt(v, out=v), *_piece(second, start))


def _piece(moment: BlockCodes, start: int) -> tuple[NDArray[np.uint8], Array]:
    blocks = slice(start // BLOCK, (start + PIECE) // BLOCK)
    return moment.codes.array[start : start + PIECE], moment.scales.array[blocks]
