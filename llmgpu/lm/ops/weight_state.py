"""What an optimizer implements: the state of one weight, and how a step changes both.

Also the numbers that optimizers get from the host in each step, and those that they leave.

An optimizer is a `WeightState` and one line in the table of `llmgpu.lm.optimizers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmgpu.kernel_source import struct_dtype
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor

HYPER = struct_dtype("lm/hyper.wgsl", "Hyper")

# Entries of `stats`, (4,) float32.
CLIP_SCALE = 0  # factor of the gradients, which also takes back their scale; 0 in a bad step
NORM = 1  # of all gradients together
BAD = 2  # 1 from the first bad step on
LOSS = 3


@dataclass(frozen=True)
class AdamW:
    """Options of AdamW, the same in all steps.

    beta1, beta2: how much of the moments is kept.
    epsilon: added to the root of the second moment.
    weight_decay: of the tensors that decay, per step and learning rate.
    max_norm: norm that all gradients together are scaled down to; 0 disables clipping.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0


def hyper_parameters(
    options: AdamW,
    step: int,
    learning_rate: float,
    inverse_count: float,
    slot: int,
    *,
    inverse_scale: float = 1.0,
) -> NDArray[np.void]:
    """Return what the `hyper` tensor, () of type `HYPER`, must hold in a step.

    step: 0 for the first.
    inverse_count: 1 / number of targets that the step's losses are summed over.
    slot: row of the history that the step writes.
    inverse_scale: 1 / what the gradients were multiplied by.
    """
    hyper: NDArray[np.void] = np.zeros((), HYPER)
    hyper["learning_rate"] = learning_rate
    hyper["one_minus_beta1"] = 1 - options.beta1
    hyper["one_minus_beta2"] = 1 - options.beta2
    hyper["epsilon"] = options.epsilon
    hyper["weight_decay"] = options.weight_decay
    hyper["bias_correction1"] = 1 - options.beta1 ** (step + 1)
    hyper["bias_correction2"] = 1 - options.beta2 ** (step + 1)
    hyper["max_norm"] = options.max_norm
    hyper["inverse_count"] = inverse_count
    hyper["inverse_scale"] = inverse_scale
    hyper["slot"] = slot
    return hyper


@dataclass(frozen=True)
class WeightUpdate:
    """What a step of one weight reads and writes besides the optimizer's state.

    parameter, gradient: of one shape, or the gradient has the rows that the state lists. It is to
    be multiplied by the clip scale.
    stats: what `Operations.finalize_grad_stats` wrote. hyper: of type `HYPER`.
    decays: whether weight decay applies. half_copy: the parameter in half precision, if any.
    """

    parameter: Tensor
    gradient: Tensor
    stats: Tensor
    hyper: Tensor
    decays: bool
    half_copy: Tensor | None = None

    @property
    def clip_scale(self) -> FloatArray:
        """The factor that clips gradients, () float32, on the host."""
        scale: FloatArray = self.stats.array[CLIP_SCALE]
        return scale

    @property
    def bindings(self) -> dict[str, Tensor]:
        """What kernels bind, by the names they have in all of them."""
        bound = {
            "parameter": self.parameter,
            "gradient": self.gradient,
            "stats": self.stats,
            "hyper": self.hyper,
        }
        return bound if self.half_copy is None else {**bound, "half_copy": self.half_copy}

    @property
    def suffix(self) -> str:
        """What the names of kernels end in that also write a half-precision copy."""
        return "" if self.half_copy is None else "_f16"


@dataclass(frozen=True)
class KernelCall:
    """A kernel with its workgroups, bindings (tensors, or uniforms as arrays) and constants."""

    file: str
    groups: int
    bindings: Mapping[str, Tensor | AnyArray]
    constants: Mapping[str, int] = field(default_factory=dict)


class WeightState(ABC):
    """An optimizer's state of one weight."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the state, for checkpoints; their names start with the weight's."""

    @abstractmethod
    def compute(self, update: WeightUpdate) -> None:
        """Take a step on arrays, in place; it is not called for a bad step."""

    def adamw_moments(self, update: WeightUpdate) -> tuple[Tensor, Tensor] | None:
        """Return both moments if a step is AdamW's on all elements in float32; None otherwise."""
        return None

    @abstractmethod
    def kernel(self, update: WeightUpdate) -> KernelCall:
        """Return the kernel that takes a step, and changes nothing if `stats` marks it as bad."""
