"""Updates of weights: gradients, clipping by their global norm, and the optimizer's state.

A step uses the norm and the clip scale on the device, without waiting for the host. Each step
writes a row of `history`, which the host reads now and then. A step whose loss or norm is not
finite is marked as bad and changes nothing. Later steps change nothing, either, until the host
clears the mark.

The loss is scaled so that half-precision gradients neither vanish nor overflow: all gradients are
multiplied by a power of two, and the optimizer divides by it. A step whose gradients overflow
changes no weight and halves the scale; many steps without overflow double the scale (P.
Micikevicius et al., Mixed Precision Training, arXiv 1710.03740).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.config import EMBEDDING, OUTPUT, Weight
from llmgpu.lm.data.batches import IGNORED_TARGET, Batch
from llmgpu.lm.model import Model, make_weights
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import (
    HYPER,
    LOSS_PARTS,
    NORM_PARTIALS,
    WeightState,
    WeightUpdate,
)
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.optimizers import OPTIMIZERS
from llmgpu.lm.options import TrainOptions

SUM_WIDTH = 64  # columns of the sums of losses, so that each row starts at a multiple of 256 bytes
FIRST_SCALE = 2.0**16
LARGEST_SCALE = 2.0**24
GROWTH_STEPS = 2_000  # steps without overflow after which the scale is doubled


class Updates:
    """Gradients of a model's weights, and the optimizer's state.

    trained: the tensors to update, by their `Weight`. gradients, states: by weight name. stats:
        results of the last step, see `Operations.finalize_grad_stats`.
    rows: with sparse updates, the rows of the embedding table that a step updates; the gradient of
        the table has only these rows.
    history: (slots, 8), see `Operations.finalize_grad_stats`; step k writes row k % slots.
    loss_scaling: None unless gradients are half precision.
    loss_sums: (3 * grad_accum, SUM_WIDTH); column 0 has the sums of the batches' cross-entropies,
        then the sums of label smoothing, then of z-losses.
    """

    def __init__(
        self, model: Model, options: TrainOptions, slots: int, trained: Mapping[Weight, Tensor]
    ) -> None:
        """Allocate all tensors; trained: tensors to update."""
        ops = model.operations
        self._model = model
        self.trained = trained
        self._options = options
        # Tables have a decay and a beta1 of their own.
        self._table_options = replace(
            options,
            weight_decay=options.weight_decay * options.table_decay,
            beta1=options.table_beta1 or options.beta1,
        )
        # Make the gradients. The order of `gradients` is the order of the rows of `partials`.
        self.rows: Tensor | None = None
        self.gradients: dict[str, Tensor] = {}
        if options.sparse_embedding:
            count = min(options.sequences * model.config.seq_len, model.config.vocab_size)
            self.rows = ops.tensor("updated rows", (count,), np.uint32)
            # The table is the first weight, so its gradient comes first.
            self.gradients[EMBEDDING] = ops.tensor(
                "gradient of updated rows", (count, model.config.dim)
            )
        whole = [weight for weight in trained if weight.name not in self.gradients]
        made, self.packed_gradients = make_weights(ops, whole, np.float32, "gradient of {}")
        self.gradients |= made
        # Make the state of the optimizer, and the results of steps.
        self._optimizer = OPTIMIZERS[options.optimizer]
        self.states = self._make_states()
        self.partials = ops.tensor("partial norms", (len(self.gradients), NORM_PARTIALS))
        self.stats = ops.tensor("gradient statistics", (4,))
        self.history = ops.tensor("history", (slots, 8))
        self.loss_sums = ops.tensor("loss sums", (LOSS_PARTS * options.grad_accum, SUM_WIDTH))
        # Make the hyperparameters: for the embedding table, for an output layer that is not the
        # embedding table, and for all other weights.
        self._hyper = ops.tensor("hyperparameters", (), HYPER)
        self._table_hyper = ops.tensor("hyperparameters of tables", (), HYPER)
        self._output_hyper = ops.tensor("hyperparameters of the output layer", (), HYPER)
        self.loss_scaling = LossScaling(ops) if options.is_mixed else None

    def _make_states(self) -> dict[str, WeightState]:
        operations, optimizer = self._model.operations, self._optimizer
        made: dict[str, WeightState] = {}
        hidden, others = dict[str, Tensor](), dict[str, Tensor]()
        for weight, tensor in self.trained.items():
            make_rows = optimizer.make_rows if weight.name == EMBEDDING else None
            if self.rows is not None and make_rows is not None:
                made[weight.name] = make_rows(operations, tensor, self.rows)
            elif weight.is_hidden and optimizer.make_hidden is not None:
                hidden[weight.name] = tensor
            else:
                others[weight.name] = tensor
        for make, some in ((optimizer.make_hidden, hidden), (optimizer.make, others)):
            if make is not None:
                made |= zip(some, make(operations, [*some.values()]), strict=True)
        return {weight.name: made[weight.name] for weight in self.trained}

    @property
    def scale(self) -> float:
        """The loss scale of the next step; 1 if the loss is not scaled."""
        return 1.0 if self.loss_scaling is None else self.loss_scaling.scale

    def write_rows(self, batches: Sequence[Batch]) -> NDArray[np.uint32] | None:
        """Write the numbers of the embedding rows that a step's batches look up.

        Returns these numbers, ascending; None if the gradient covers the whole table.
        """
        if self.rows is None:
            return None
        distinct = np.unique(np.concatenate([tokens.reshape(-1) for tokens, _ in batches]))
        rows = np.full(self.rows.shape, IGNORED_TARGET, np.uint32)
        rows[: len(distinct)] = distinct
        self._model.operations.write(self.rows, rows)
        return distinct

    def write_step(self, step: int, learning_rate: float, count: int) -> None:
        """Write the hyperparameters of a step.

        step: number of the step, from 0. count: number of valid targets in its batches.
        """
        slot = step % self.history.shape[0]
        inverse_count = 1 / count if count else 0.0
        for tensor, options, rate in (
            (self._hyper, self._options, 1.0),
            (self._table_hyper, self._table_options, self._options.table_rate),
            (self._output_hyper, self._table_options, self._options.output_rate),
        ):
            hyper = hyper_parameters(options, step, learning_rate * rate, inverse_count, slot)
            hyper["inverse_scale"] = 1 / self.scale
            self._model.operations.write(tensor, hyper)

    def record_clear(self, written: Collection[str] = ()) -> None:
        """Record operations that set all gradients to zero, except gradients named in `written`."""
        left = [tensor for name, tensor in self.gradients.items() if name not in written]
        self._model.operations.fill_zeros(left)

    def record_update(self) -> None:
        """Record a step: norm, clipping, and the update of all weights and their half copies."""
        ops = self._model.operations
        ops.reduce_norms([*self.gradients.values()], self.partials)
        ops.finalize_grad_stats(
            self.partials, self.loss_sums, self.stats, self.history, self._hyper
        )
        steps = []
        for weight, tensor in self.trained.items():
            update = WeightUpdate(
                tensor,
                self.gradients[weight.name],
                self.stats,
                self._hyper_of(weight),
                weight.decays,
                self._model.half_copies.get(weight.name),
            )
            steps.append((self.states[weight.name], update))
        self._optimizer.record(ops, steps)

    def _hyper_of(self, weight: Weight) -> Tensor:
        if weight.name == OUTPUT:
            return self._output_hyper
        return self._table_hyper if weight.is_table else self._hyper

    def bad_tensors(self) -> list[str]:
        """Return the names of weights whose gradients were not finite in the last step."""
        partials = self._model.operations.read(self.partials)
        sums = zip(self.gradients, partials, strict=True)
        return [name for name, squares in sums if not np.isfinite(squares).all()]

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of the optimizer's state; each has its own name."""
        for state in self.states.values():
            yield from state.tensors
        if self.loss_scaling is not None:
            yield self.loss_scaling.tensor


class LossScaling:
    """The scale of a run's loss.

    scale: scale of the next step. good_steps: steps since the last change of the scale. skipped:
    steps of the run that overflowed. tensor: (4,), these three numbers and 0, for checkpoints.
    """

    def __init__(self, operations: Operations) -> None:
        """Start with a large scale; overflows lower it within a few steps."""
        self._operations = operations
        self.tensor = operations.tensor("loss scaling", (4,))
        self.scale, self.good_steps, self.skipped = FIRST_SCALE, 0, 0

    @property
    def state(self) -> NDArray[np.float32]:
        """The contents of `tensor`."""
        return np.array([self.scale, self.good_steps, self.skipped, 0], np.float32)

    def restore(self, state: AnyArray) -> None:
        """Restore a `state`, here and in `tensor`."""
        scale, good_steps, skipped, _ = state.tolist()
        self.scale, self.good_steps, self.skipped = scale, int(good_steps), int(skipped)
        self._operations.write(self.tensor, state)

    def take_lowest(self, states: Iterable[AnyArray]) -> None:
        """Restore the state with the lowest scale; of several such states, the first.

        states: the contents of `tensor` of all workers.
        """
        self.restore(min(states, key=lambda values: float(values[0])))

    def end_step(self, *, overflowed: bool) -> bool:
        """Choose the next step's scale; return False if the step overflowed even at scale 1."""
        if overflowed:
            if self.scale <= 1:
                return False
            self.scale, self.good_steps, self.skipped = self.scale / 2, 0, self.skipped + 1
        elif self.good_steps + 1 < GROWTH_STEPS:
            self.good_steps += 1
        else:
            self.scale, self.good_steps = min(2 * self.scale, LARGEST_SCALE), 0
        self._operations.write(self.tensor, self.state)
        return True


def hyper_parameters(
    options: TrainOptions, step: int, learning_rate: float, inverse_count: float, slot: int
) -> NDArray[np.void]:
    """Return the contents of the `hyper` tensor for a step: () of type `HYPER`.

    step: number of the step, from 0. inverse_count: 1 / number of valid targets of the step. slot:
    row of the history that the step writes.
    """
    hyper: NDArray[np.void] = np.zeros((), HYPER)
    hyper["learning_rate"] = learning_rate
    hyper["one_minus_beta1"] = 1 - options.beta1
    hyper["one_minus_beta2"] = 1 - options.beta2
    hyper["epsilon"] = options.epsilon
    hyper["weight_decay"] = options.weight_decay
    hyper["bias_correction1"] = 1 - options.beta1 ** (step + 1)
    hyper["bias_correction2"] = 1 - options.beta2 ** (step + 1)
    hyper["max_norm"] = options.grad_clip
    hyper["inverse_count"] = inverse_count
    hyper["inverse_scale"] = 1  # 1 / loss scale; the caller replaces it if the loss is scaled
    hyper["slot"] = slot
    hyper["momentum"] = options.momentum_of(step)
    return hyper
