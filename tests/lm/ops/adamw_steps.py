"""The tensors of AdamW's steps of one parameter, and steps on these tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import HYPER, WeightUpdate
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters
from tests.lm.ops.checking import tensor_of

LEARNING_RATE = 3e-3


def require_half_precision(operations: Operations) -> None:
    if not operations.has_half_precision:
        pytest.skip("the device has no half precision")


@np.errstate(under="ignore")
def half_of(array: NDArray[np.float32]) -> NDArray[np.float16]:
    return np.clip(array, -65504, 65504).astype(np.float16)


def half_copy_of(operations: Operations, array: NDArray[Any]) -> Tensor:
    return tensor_of(operations, "half copy", half_of(array))


class Steps:
    """Tensors of one parameter, and the numbers of each step, set by hand.

    rows: number of rows of the gradient, if it is not the parameter's.
    """

    def __init__(
        self, operations: Operations, parameter: NDArray[Any], rows: int | None = None
    ) -> None:
        self.operations = operations
        self.parameter = tensor_of(operations, "parameter", parameter)
        shape = parameter.shape if rows is None else (rows, *parameter.shape[1:])
        self.gradient = operations.tensor("gradient", shape)
        self.first = operations.tensor("first", parameter.shape)
        self.second = operations.tensor("second", parameter.shape)
        self.stats = tensor_of(operations, "stats", np.array([1.0, 0, 0, 0]))
        self.hyper = operations.tensor("hyper", (), HYPER)

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parameter, gradient and moments."""
        return self.parameter, self.gradient, self.first, self.second

    def update(self, *, decay: bool = True, half_copy: Tensor | None = None) -> WeightUpdate:
        """The tensors of a step besides the moments."""
        fixed = (self.parameter, self.gradient, self.stats, self.hyper)
        return WeightUpdate(*fixed, decay, half_copy)

    def begin(
        self,
        options: TrainOptions,
        step: int,
        gradient: NDArray[Any],
        *,
        slot: int = 0,
        count: int = 1,
        max_norm: float = 1.0,
    ) -> None:
        """Write the tensors as they are before step number `step`."""
        hyper = hyper_parameters(options, step, LEARNING_RATE, 1 / count, slot)
        hyper["max_norm"] = max_norm
        self.operations.write(self.hyper, hyper)
        self.operations.write(self.gradient, gradient)

    def read(self) -> list[NDArray[Any]]:
        """Parameter, first and second moment."""
        return [self.operations.read(x) for x in (self.parameter, self.first, self.second)]
