"""All operations that the CPU engine has, on tensors of one size: `python -m` prints a checksum."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu import library
from llmgpu.lm.ops.activations import SWIGLU, ActivationTensors
from llmgpu.lm.ops.operations import Operations, open_operations
from llmgpu.lm.ops.optimizer import WeightUpdate
from llmgpu.lm.ops.tensor import (
    AttentionGradients,
    AttentionShape,
    AttentionTensors,
    Losses,
    Norm,
    Rotation,
    Tensor,
)
from llmgpu.lm.optimizers.adamw import Moments
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import hyper_parameters
from tests.lm.ops.checking import run, tensor_of

LARGE = AttentionShape(batch=3, seq=150, heads=4, kv_heads=2, head_dim=24)
VOCABULARY = 3001

Results = dict[str, NDArray[Any]]


@dataclass
class Tensors:
    """Makes tensors of random numbers, which `change` may alter, and stores them by name."""

    operations: Operations
    rng: np.random.Generator
    change: Callable[[NDArray[np.float32]], None] = lambda array: None

    def __post_init__(self) -> None:
        """Start without tensors."""
        self.made: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Make a tensor."""
        values = self.rng.standard_normal(shape, np.float32)
        self.change(values)
        self.made[name] = tensor_of(self.operations, name, values)
        return self.made[name]

    def results(self) -> Results:
        """Return the contents of all tensors."""
        return {name: self.operations.read(tensor) for name, tensor in self.made.items()}


def run_all(tensors: Tensors, shape: AttentionShape, vocabulary: int = VOCABULARY) -> Results:
    """Run all operations once; return the contents of all tensors afterwards."""
    ops = tensors.operations
    for record in (_rows, _attention, _products, _loss, _update):
        run(ops, record(tensors, shape, vocabulary))
    return tensors.results()


def _rows(new: Tensors, shape: AttentionShape, vocabulary: int) -> Callable[[], None]:
    ops, rows, width = new.operations, shape.batch * shape.seq, shape.heads * shape.head_dim
    x, out = new("x", rows, width), new("normed", rows, width)
    norm = Norm(x, new("weight", width), out, new("inverse", rows))
    gradients = [new(f"norm {k}", *size) for k, size in enumerate([x.shape, x.shape, (width,)])]
    angles = np.arange(shape.seq * shape.head_dim // 2).reshape(shape.seq, -1)
    tables = [tensor_of(ops, "angles", f(angles)) for f in (np.cos, np.sin)]
    positions = tensor_of(ops, "positions", (np.arange(rows) % shape.seq).astype(np.uint32))
    rotation = Rotation(tables[0], tables[1], positions, shape.head_dim)
    rotated = [new(f"rotated {k}", rows, width) for k in range(2)]
    gated = [new(f"gated {k}", rows, width + 3) for k in range(6)]
    activation = ActivationTensors(SWIGLU, gated[:2], gated[2])

    def record() -> None:
        ops.rms_norm(norm, 1e-5)
        ops.rms_norm_backward(norm, *gradients)
        ops.rotary(rotated[0], rotation)
        ops.rotary(rotated[1], rotation, inverse=True)
        ops.activate(activation)
        ops.activate_backward(activation, gated[3], gated[4:])

    return record


def _attention(new: Tensors, shape: AttentionShape, vocabulary: int) -> Callable[[], None]:
    ops, rows = new.operations, shape.batch * shape.seq
    widths = [count * shape.head_dim for count in (shape.heads, shape.kv_heads)]
    q, out, grad_q, grad_out = (new(name, rows, widths[0]) for name in ("q", "out", "gq", "go"))
    k, v, grad_k, grad_v = (new(name, rows, widths[1]) for name in ("k", "v", "gk", "gv"))
    t = AttentionTensors(q, k, v, out, new("log-sum-exp", rows, shape.heads))
    gradients = AttentionGradients(grad_q, grad_k, grad_v, grad_out)
    firsts = np.arange(rows) % shape.seq // 3 * (np.arange(rows) >= shape.seq)
    starts = tensor_of(ops, "starts", firsts.astype(np.uint32))

    def record() -> None:
        ops.attention(t, starts, shape)
        ops.attention_backward(t, gradients, starts, shape)

    return record


def _products(new: Tensors, shape: AttentionShape, vocabulary: int) -> Callable[[], None]:
    ops, rows, width = new.operations, shape.batch * shape.seq, shape.heads * shape.head_dim
    x, weight, out = (
        new("rows", rows, width),
        new("matrix", 3 * width, width),
        new("o", rows, 3 * width),
    )
    sums = [new(f"sum {k}", *each.shape) for k, each in enumerate((x, weight, out))]

    def record() -> None:
        ops.linear(x, weight, out)
        ops.linear(x, weight, sums[2], residual=out)
        ops.linear(x, weight, sums[2], residual=sums[2])
        ops.linear_backward_input(out, weight, sums[0], accumulate=True)
        ops.linear_backward_input(out, weight, x, accumulate=False)
        ops.linear_backward_weight(out, x, sums[1], accumulate=True)

    return record


def _loss(new: Tensors, shape: AttentionShape, vocabulary: int) -> Callable[[], None]:
    ops, rows = new.operations, shape.batch * shape.seq
    logits, losses = new("logits", rows, vocabulary + 3), [new(f"loss {k}", rows) for k in range(3)]
    targets = new.rng.integers(0, vocabulary + 1, rows).astype(np.uint32)
    params = ops.tensor("loss", (4,))
    ops.write(params, np.array([1 / rows, 0.05, 1e-3, 1 / vocabulary]))
    indices = tensor_of(ops, "targets", targets)
    return lambda: ops.cross_entropy(logits, Losses(indices, *losses), params, vocabulary)


def _update(new: Tensors, shape: AttentionShape, vocabulary: int) -> Callable[[], None]:
    ops, rows = new.operations, shape.batch * shape.seq
    parameter, gradient = new("parameter", rows, vocabulary), new("gradient", rows, vocabulary)
    (state,) = Moments.make(ops, [parameter])
    hyper = ops.tensor("hyper", (), hyper_parameters(TrainOptions(), 0, 0.1, 1.0, 0).dtype)
    ops.write(hyper, hyper_parameters(TrainOptions(), 3, 0.1, 1.0, 0))
    stats = tensor_of(ops, "stats", np.array([0.5, 1, 0, 0], np.float32))
    partials = tensor_of(ops, "partials", np.ones((2, 128), np.float32))
    new.made.update({"first": state.first, "second": state.second, "partials": partials})
    update = WeightUpdate(parameter, gradient, stats, hyper, decays=True)

    def record() -> None:
        ops.reduce_norm_sq(gradient, partials, 1)
        ops.update_weight(state, update)

    return record


def main() -> None:
    vars(library)["LIBRARY"] = Path(sys.argv[1])
    operations = open_operations(None, in_c=True)
    results = run_all(Tensors(operations, np.random.default_rng(1)), LARGE)
    print(zlib.crc32(b"".join(array.tobytes() for array in results.values())))


if __name__ == "__main__":
    main()
