"""Numbers that optimizers get from the host in each step, and those that they leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FLOATS = (
    "learning_rate",
    "one_minus_beta1",
    "one_minus_beta2",
    "epsilon",
    "weight_decay",
    "bias_correction1",
    "bias_correction2",
    "max_norm",
    "inverse_count",
)
_WORDS = ("slot", "padding0", "padding1")
HYPER = np.dtype([*((name, "<f4") for name in _FLOATS), *((name, "<u4") for name in _WORDS)])


# Entries of `stats`, (4,) float32.
CLIP_SCALE = 0  # factor of the gradients, 0 in a bad step
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
    options: AdamW, step: int, learning_rate: float, inverse_count: float, slot: int
) -> NDArray[np.void]:
    """Return what the `hyper` tensor, () of type `HYPER`, must hold in a step.

    step: 0 for the first.
    inverse_count: 1 / number of targets that the step's losses are summed over.
    slot: row of the history that the step writes.
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
    hyper["slot"] = slot
    return hyper
