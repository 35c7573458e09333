"""Changing the weights: gradients, clipping by their global norm, and AdamW's moments.

The norm and the factor that clips never leave the device. Each step leaves a line in `history`,
which the host reads now and then. A step whose loss or norm is not finite changes nothing, and
nothing changes after it until the host has had a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.data.batches import IGNORED_TARGET, Batch
from llmgpu.lm.model import EMBEDDING, Model
from llmgpu.lm.moments import CodedMoments, FloatMoments, Moments, RowMoments, Updated
from llmgpu.lm.ops.hyper import HYPER, AdamW, hyper_parameters
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.options import TrainOptions

SUM_WIDTH = 64  # float32 a batch of a step has for its loss, so that each begins at 256 bytes


class Updates:
    """Gradients and moments of a model's weights.

    gradients: float32, by weight name. stats: what the last step found, see `finalize_grad_stats`.
    rows: with sparse updates, the rows of the embedding table that a step updates.
    history: (slots, 4) loss, norm, clip scale and whether the step was bad, by step modulo slots.
    loss_sums: (grad_accum, SUM_WIDTH), the first of a row is the sum of a batch's losses.
    """

    def __init__(self, model: Model, options: TrainOptions, slots: int) -> None:
        """Make all tensors."""
        ops = model.operations
        self._model = model
        self._options = options
        self.gradients = {
            name: ops.tensor(f"gradient of {name}", tensor.shape)
            for name, tensor in model.weights.items()
        }
        self.rows = self._make_rows() if options.sparse_embedding else None
        self.moments = {
            name: self._make_moments(name, tensor) for name, tensor in model.weights.items()
        }
        self.partials = ops.tensor("partial norms", (len(self.gradients), NORM_PARTIALS))
        self.stats = ops.tensor("gradient statistics", (4,))
        self.history = ops.tensor("history", (slots, 4))
        self.loss_sums = ops.tensor("loss sums", (options.grad_accum, SUM_WIDTH))
        self._hyper = ops.parameters("hyperparameters", (), HYPER)

    def _make_rows(self) -> Tensor:
        """Make the list of the embedding's rows that a step updates."""
        count = self._options.sequences * self._model.config.seq_len
        return self._model.operations.tensor("updated rows", (count,), np.uint32)

    def _make_moments(self, name: str, weight: Tensor) -> Moments:
        operations = self._model.operations
        if self.rows is not None and name == EMBEDDING:
            return RowMoments(FloatMoments.make(operations, weight), self.rows)
        kind = CodedMoments if self._options.optimizer == "adamw-8bit" else FloatMoments
        return kind.make(operations, weight)

    def write_rows(self, batches: Sequence[Batch]) -> None:
        """Give the rows that a step's batches look up, once the former ones' gradients are zero."""
        if self.rows is not None:
            rows = np.full(self.rows.shape, IGNORED_TARGET, np.uint32)
            distinct = np.unique(np.concatenate([tokens.reshape(-1) for tokens, _ in batches]))
            rows[: len(distinct)] = distinct
            self._model.operations.write(self.rows, rows)

    def write_step(self, step: int, learning_rate: float, count: int) -> None:
        """Give the numbers of step `step` (from 0), whose batches have `count` valid targets."""
        options = self._options
        adamw = AdamW(
            beta1=options.beta1,
            beta2=options.beta2,
            epsilon=options.epsilon,
            weight_decay=options.weight_decay,
            max_norm=options.grad_clip,
        )
        inverse_count = 1 / count if count else 0.0
        slot = step % self.history.shape[0]
        hyper = hyper_parameters(adamw, step, learning_rate, inverse_count, slot)
        self._model.operations.write(self._hyper, hyper)

    def record_clear(self) -> None:
        """Record that all gradients become zero."""
        operations = self._model.operations
        for name, gradient in self.gradients.items():
            if self.rows is not None and name == EMBEDDING:
                operations.fill_zero_rows(gradient, self.rows)
            else:
                operations.fill_zero(gradient)

    def record_update(self) -> None:
        """Record a step: norm, clipping, and the update of all weights and their half copies."""
        ops = self._model.operations
        for index, gradient in enumerate(self.gradients.values()):
            ops.reduce_norm_sq(gradient, self.partials, index)
        ops.finalize_grad_stats(
            self.partials, self.loss_sums, self.stats, self.history, self._hyper
        )
        for weight in self._model.config.weights():
            self._record_weight(weight.name, decays=weight.decays)

    def _record_weight(self, name: str, *, decays: bool) -> None:
        model = self._model
        updated = Updated(
            model.weights[name],
            self.gradients[name],
            self.stats,
            self._hyper,
            decays,
            model.mirrors.get(name),
        )
        self.moments[name].record_update(model.operations, updated)

    def bad_tensors(self) -> list[str]:
        """Return the weights whose gradients' norms were not finite in the last step."""
        partials = self._model.operations.read(self.partials)
        finite = np.isfinite(partials).all(axis=1)
        return [name for name, good in zip(self.gradients, finite, strict=True) if not good]

    def moment_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of the moments, each with a name of its own."""
        for moments in self.moments.values():
            yield from moments.tensors

    def write_moments(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Write all moments, by name."""
        for tensor in self.moment_tensors():
            self._model.operations.write(tensor, values[tensor.name])
