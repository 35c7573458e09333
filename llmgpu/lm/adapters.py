"""Low-rank adapters: training a model by small changes to matrices.

Training does not change a matrix W (O, I) of the model. It changes the factors A (R, I) and B (O,
R), and the model computes with W' = W + (alpha / R) B A (E. Hu et al., LoRA, arXiv 2106.09685;
names as in the library peft). A starts as uniform random numbers between -1 / sqrt(I) and 1 /
sqrt(I), B as zeros.

W' is computed once per step, so the forward and backward passes do not depend on adapters. The
backward pass computes the gradient of W', from which the gradients of both factors follow:

    dB = (alpha / R) dW' A^T,  dA = (alpha / R) B^T dW'

Both gradients are computed layer by layer, and all layers write dW' to the same tensor. The
gradients of other weights are written to tensors that all layers use, too, and are never read. No
gradients of embedding tables and output layers are computed. A is stored transposed, so that
`Operations.linear` can multiply B by A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from llmgpu.files import output_errors
from llmgpu.lm.checkpoints.checkpoint import write_json
from llmgpu.lm.checkpoints.safetensors_file import write_tensors
from llmgpu.lm.config import ModelConfig, Weight
from llmgpu.lm.model import Model, make_weights
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.options import TrainOptions

_PREFIX = "base_model.model."  # of the factors' names in peft's file
_STREAM = 1 << 32  # number of the random stream of the first A, above the numbers used for weights


@dataclass(frozen=True)
class Adapter:
    """The factors of one matrix.

    base: the matrix W (O, I) without its adapter. a: (I, R), A transposed. b: (O, R).
    """

    base: Tensor
    a: Tensor
    b: Tensor


class Adapters:
    """The adapters of a model, by weight name.

    gradients, packed_gradients: tensors to which the backward pass adds, see `LossGraph`. trained:
    the factors, by their `Weight`.
    """

    def __init__(self, model: Model, options: TrainOptions) -> None:
        """Make the factors of all adapted matrices, and shared memory for gradients."""
        ops, rank = model.operations, options.lora_rank
        self._model, self._options = model, options
        self._factor = options.lora_alpha / rank
        # Make the factors of each adapted matrix, and a copy of the matrix.
        self.adapters: dict[str, Adapter] = {}
        for weight in adapted_weights(model.config, options.targets):
            name, (outputs, inputs) = weight.name.removesuffix(".weight"), weight.shape
            self.adapters[weight.name] = Adapter(
                ops.tensor(f"{weight.name} without its adapter", weight.shape),
                ops.tensor(f"{name}.lora_A.weight", (inputs, rank)),
                ops.tensor(f"{name}.lora_B.weight", (outputs, rank)),
            )
        # Make one gradient for each role; all layers share the gradient of a role.
        weights = [weight for weight in model.config.weights() if not weight.is_table]
        first = {_role(weight.name): weight for weight in reversed(weights)}
        made, packed = make_weights(
            ops, reversed(first.values()), np.float32, "gradient of each {}"
        )
        shared = {_role(name): tensor for name, tensor in made.items()}
        self.gradients = {weight.name: shared[_role(weight.name)] for weight in weights}
        self.packed_gradients = {
            f"model.layers.{layer}.{_role(prefix)}": together
            for layer in range(model.config.layers)
            for prefix, together in packed.items()
        }
        factors = [factor for each in self.adapters.values() for factor in (each.a, each.b)]
        self.trained = {
            Weight(factor.name, factor.shape, 0.0, decays=True): factor for factor in factors
        }

    def initialise(self, seed: int) -> None:
        """Draw the initial values of each A from its own random stream; B stays zeros."""
        for number, adapter in enumerate(self.adapters.values()):
            stream = np.random.Generator(np.random.Philox(key=[seed, _STREAM + number]))
            inputs = adapter.a.shape[0]
            drawn = stream.random(adapter.a.shape, np.float32) * np.float32(2) - np.float32(1)
            self._model.operations.write(adapter.a, drawn / np.float32(math.sqrt(inputs)))

    def load(self, values: Callable[[str], AnyArray]) -> None:
        """Write the matrices W; values: returns a matrix, given the name of the model's weight."""
        for name, adapter in self.adapters.items():
            self._model.operations.write(adapter.base, values(name))

    def merge(self) -> None:
        """Write the merged matrices W' of all adapters into the model."""
        with self._model.operations.record("merge") as program:
            self.record_merge()
        self._model.operations.run(program)

    def record_merge(self) -> None:
        """Record operations that write the merged matrices W' of all adapters into the model."""
        ops, model = self._model.operations, self._model
        for name, adapter in self.adapters.items():
            ops.linear(self._scaled(adapter.b), adapter.a, model.weights[name], adapter.base)
            if name in model.half_copies:
                ops.cast_f32_to_f16(model.weights[name], model.half_copies[name])

    def record_gradients(self, start: str, gradients: Mapping[str, Tensor]) -> None:
        """Record the gradients of the factors of all matrices whose names begin with `start`.

        The gradients of these matrices must be complete. gradients: the tensors to which the
        operations add, by the names of the factors.
        """
        ops = self._model.operations
        for name, adapter in self.adapters.items():
            if name.startswith(start):
                whole = self.gradients[name]
                of_a, of_b = gradients[adapter.a.name], gradients[adapter.b.name]
                ops.linear_backward_input(whole, self._scaled(adapter.a), of_b, accumulate=True)
                ops.linear_backward_weight(whole, self._scaled(adapter.b), of_a, accumulate=True)
                ops.fill_zero(whole)  # the layer below adds its gradient to the same memory

    def _scaled(self, tensor: Tensor) -> Tensor:
        """Record alpha / R times a factor, in scratch memory; return the scratch tensor."""
        scaled = self._model.operations.scratch("scaled factor", tensor.shape)
        self._model.operations.scale(tensor, scaled, self._factor)
        return scaled

    def write(self, read: Callable[[str], AnyArray], base: str, folder: Path) -> None:
        """Write a new folder with the files of the library peft; raise OutputError if this fails.

        read: returns the contents of a factor by its name. base: folder of the model.
        """
        kinds = dict[str, tuple[DTypeLike, tuple[int, ...]]]()
        for adapter in self.adapters.values():
            # The file has A transposed.
            kinds[_PREFIX + adapter.a.name] = adapter.a.dtype, adapter.a.shape[::-1]
            kinds[_PREFIX + adapter.b.name] = adapter.b.dtype, adapter.b.shape

        def read_factor(name: str) -> AnyArray:
            content = read(name.removeprefix(_PREFIX))
            return content.T if name.endswith(".lora_A.weight") else content

        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self._options.lora_rank,
            "lora_alpha": self._options.lora_alpha,
            "target_modules": list(self._options.targets),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "use_rslora": False,
            "use_dora": False,
            "modules_to_save": None,
            "inference_mode": True,
        }
        with output_errors(str(folder)):
            folder.mkdir()
        write_tensors(folder / "adapter_model.safetensors", kinds, read_factor, {"format": "pt"})
        write_json(folder / "adapter_config.json", config)


def adapted_weights(config: ModelConfig, targets: tuple[str, ...]) -> Iterator[Weight]:
    """Yield the matrices that `targets` names, such as q_proj, of all layers."""
    for weight in config.weights():
        if weight.is_hidden and weight.name.split(".")[-2] in targets:
            yield weight


def _role(name: str) -> str:
    """Return a weight's name without the number of its layer."""
    return re.sub(r"^model\.layers\.\d+\.", "", name)
