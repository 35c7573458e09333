"""What an optimizer implements: the state of one weight, and how a step changes both.

An optimizer is a `WeightState` and one line in the table of `llmgpu.lm.optimizers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmgpu.lm.ops.hyper import CLIP_SCALE
from llmgpu.lm.ops.tensor import AnyArray, FloatArray, Tensor, TensorMaker


@dataclass(frozen=True)
class WeightUpdate:
    """What a step of one weight reads and writes besides the optimizer's state.

    parameter, gradient: of one shape. The gradient is to be multiplied by the clip scale.
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
        """All tensors of the state, for checkpoints; their names begin with the weight's."""

    @abstractmethod
    def compute(self, update: WeightUpdate) -> None:
        """Take a step on arrays, in place; it is not called for a bad step."""

    @abstractmethod
    def kernel(self, update: WeightUpdate) -> KernelCall:
        """Return the kernel that takes a step, and changes nothing if `stats` marks it as bad."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, as `llmgpu.lm.optimizers` lists it.

    name: what --optimizer and checkpoints call it. summary: what sets it apart, for --help.
    make: makes the state of a weight. make_rows: makes the state of a table of which a step updates
    only some rows, given their numbers (uint32, those beyond the table are skipped); None if the
    optimizer can't do that.
    """

    name: str
    summary: str
    make: Callable[[TensorMaker, Tensor], WeightState]
    make_rows: Callable[[TensorMaker, Tensor, Tensor], WeightState] | None = None
