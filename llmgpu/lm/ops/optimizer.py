"""Gradient clipping and AdamW.

All gradients are clipped together, as one vector, without the host seeing their norm: the sums of
squares of each tensor (`reduce_norm_sq`) make the norm and the scale (`finalize_grad_stats`), which
the updates multiply gradients by. A norm or a loss that is not finite marks the step as bad; it and
all later steps then change nothing until the host clears the mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.adamw import PIECE, adamw, saturate_to_half
from llmgpu.lm.ops.optimizer_8bit import GpuOptimizer8Bit, NumpyOptimizer8Bit
from llmgpu.lm.ops.optimizer_rows import GpuOptimizerRows, NumpyOptimizerRows
from llmgpu.lm.ops.recording import dims
from llmgpu.lm.ops.stats import BAD, CLIP_SCALE
from llmgpu.lm.ops.tensor import Tensor

KERNELS = "lm/12_optimizer.wgsl"
WORKGROUP_SIZE = 256
NORM_PARTIALS = 128  # sums that the squares of one tensor are added up in
MIN_PIECE = 1 << 16  # squares in one of NumPy's sums, if there are that many
CLIP_EPSILON = 1e-6


class NumpyOptimizer(NumpyOptimizer8Bit, NumpyOptimizerRows):
    """The operations on arrays."""

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        """Write NORM_PARTIALS sums that make the sum of grad's squares into row `index`."""

        def step() -> None:
            flat, sums = grad.array.reshape(-1), partials.array[index]
            piece = max(-(-grad.size // NORM_PARTIALS), MIN_PIECE)
            sums[...] = 0
            with np.errstate(over="ignore"):
                for k, start in enumerate(range(0, grad.size, piece)):
                    sums[k] = np.square(flat[start : start + piece]).sum()

        self.append(step)

    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        """Write stats (4,) = clip_scale, norm, bad, loss, and a row of history (S, 4).

        loss_sums: (A,), added up. The history's row is loss, norm, clip_scale, bad.
        """

        def step() -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                norm = np.sqrt(partials.array.sum())
                loss = loss_sums.array.sum() * hyper.array["inverse_count"]
                scale = _clip_scale(float(norm), float(hyper.array["max_norm"]))
            bad = stats.array[BAD] != 0 or not np.isfinite(norm) or not np.isfinite(loss)
            clip_scale = 0 if bad else scale
            stats.array[...] = clip_scale, norm, bad, loss
            history.array[hyper.array["slot"]] = loss, norm, clip_scale, bad

        self.append(step)

    def adamw_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Update a parameter, its moments and its half-precision mirror, unless stats says bad.

        decay: whether weight decay applies. The gradient is multiplied by stats' clip_scale.
        """

        def step() -> None:
            if stats.array[BAD] != 0:
                return
            tensors = (parameter, gradient, first, second)
            for p, g, m, v in _pieces(*(tensor.array.reshape(-1) for tensor in tensors)):
                adamw(p, g * stats.array[CLIP_SCALE], m, v, hyper.array, decay)
            if mirror is not None:
                for p, half in _pieces(parameter.array.reshape(-1), mirror.array.reshape(-1)):
                    saturate_to_half(p, half)

        self.append(step)


class GpuOptimizer(GpuOptimizer8Bit, GpuOptimizerRows):
    """The operations as kernels."""

    def reduce_norm_sq(self, grad: Tensor, partials: Tensor, index: int) -> None:
        """Write NORM_PARTIALS sums that make the sum of grad's squares into row `index`."""
        self.dispatch(
            f"{KERNELS}:reduce_norm_sq",
            NORM_PARTIALS,
            {"NORM_PARTIALS": NORM_PARTIALS},
            grad=grad,
            partials=partials,
            dims=dims(grad.size, index),
        )

    def finalize_grad_stats(
        self, partials: Tensor, loss_sums: Tensor, stats: Tensor, history: Tensor, hyper: Tensor
    ) -> None:
        """Write stats (4,) = clip_scale, norm, bad, loss, and a row of history (S, 4).

        loss_sums: (A,), added up. The history's row is loss, norm, clip_scale, bad.
        """
        self.dispatch(
            f"{KERNELS}:finalize_grad_stats",
            1,
            all_partials=partials,
            loss_sums=loss_sums,
            grad_stats=stats,
            history=history,
            hyper=hyper,
            stats_dims=dims(partials.size, loss_sums.size),
        )

    def adamw_update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        first: Tensor,
        second: Tensor,
        stats: Tensor,
        hyper: Tensor,
        *,
        decay: bool,
        mirror: Tensor | None = None,
    ) -> None:
        """Update a parameter, its moments and its half-precision mirror, unless stats says bad.

        decay: whether weight decay applies. The gradient is multiplied by stats' clip_scale.
        """
        mirrors = {} if mirror is None else {"mirror": mirror}
        self.dispatch(
            f"{KERNELS}:adamw_update{'_f16' if mirrors else ''}",
            -(-parameter.size // (4 * WORKGROUP_SIZE)),
            None,
            parameter=parameter,
            gradient=gradient,
            first=first,
            second=second,
            hyper=hyper,
            stats=stats,
            adamw_dims=dims(parameter.size, int(decay)),
            **mirrors,
        )


def _pieces(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    for start in range(0, len(arrays[0]), PIECE):
        yield tuple(array[start : start + PIECE] for array in arrays)


def _clip_scale(norm: float, max_norm: float) -> float:
    return 1.0 if max_norm <= 0 else min(1.0, max_norm / (norm + CLIP_EPSILON))
