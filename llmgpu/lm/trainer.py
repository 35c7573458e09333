"""Training steps on one backend, composed of model, loss, gradients and updates.

A step consists of batches, whose gradients are added up in the same tensors, and one update. All
programs of a step are recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import TrainingError
from llmgpu.lm.adapters import Adapters
from llmgpu.lm.config import ModelConfig
from llmgpu.lm.data.batches import Batch
from llmgpu.lm.gradients import LossGraph
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import Operations
from llmgpu.lm.ops.optimizer import BAD
from llmgpu.lm.ops.recording import Program, Snapshot
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.updates import Updates
from llmgpu.lm.workers import (
    ALONE,
    BucketSums,
    Change,
    LocalSteps,
    Workers,
    buckets,
    numbers_of,
    replace_by_sums,
)
from llmgpu.pipeline import in_order

QUEUED_STEPS = 2  # steps that are queued on the device while the host prepares the next one
QUEUED_BATCHES = 2  # batches of an evaluation that are queued on the device
LEAST_STAGE = 1 << 20  # least number of gradient elements for which a separate submission pays off


@dataclass(frozen=True)
class StepResult:
    """Results of a step.

    step: number of the step, from 0. loss, smoothing_loss, z_loss: means of the parts of the loss
    over the step's targets. grad_norm: norm of the gradients before clipping. is_skipped: the step
    changed nothing, because gradients overflowed at their scale. is_bad: the step changed nothing
    because a loss or a gradient was not finite, and later steps change nothing, either.
    """

    step: int
    loss: float
    smoothing_loss: float
    z_loss: float
    grad_norm: float
    is_bad: bool
    is_skipped: bool


class Stage(NamedTuple):
    """A program that completes some gradients of a step, and these gradients in buckets."""

    program: Program
    buckets: Sequence[Sequence[Tensor]]


class Trainer:
    """A model being trained.

    step: number of steps done. slots: number of steps whose results stay on the device.
    """

    def __init__(
        self,
        operations: Operations,
        config: ModelConfig,
        options: TrainOptions,
        slots: int,
        workers: Workers = ALONE,
        separator: int | None = None,
    ) -> None:
        """Allocate all tensors and record the programs; the weights are still zeros.

        workers: the processes that train the model; all workers take part in every step.
        separator: see `LossGraph`.

        Raises:
            DeviceError: the device has too little memory, or lacks half precision.
        """
        self._ops = operations
        self._workers = workers
        self.options = options
        self.step = 0
        self.slots = slots
        # Make the model, and the gradients and the optimizer's state of all trained tensors: the
        # model's weights, or the factors of adapters.
        in_half = options.is_mixed
        self.model = Model(operations, config, half=in_half, mixed=in_half)
        self.adapters = Adapters(self.model, options) if options.lora_rank else None
        every = {weight: self.model.weights[weight.name] for weight in config.weights()}
        trained = every if self.adapters is None else self.adapters.trained
        self.updates = Updates(self.model, options, slots, trained)
        # The backward pass computes the gradients of whole matrices. `Adapters` has its own tensors
        # for them, from which it computes the gradients of the factors.
        of_weights = self.updates if self.adapters is None else self.adapters
        self.graph = LossGraph(
            self.model,
            options.batch_size,
            config.seq_len,
            of_weights.gradients,
            of_weights.packed_gradients,
            separator=separator,
            recompute=options.recompute,
        )
        # Prepare for rounds of steps that workers make separately.
        self._local: LocalSteps | None = None
        if options.sync_every:
            self._local = LocalSteps(operations, options, workers, self.updates)
        self._skipped: set[int] = set()  # skipped steps among the last `slots` steps
        # A step that has not been checked for overflow yet, and a function that reads its `stats`.
        self._unfinished: tuple[int, Callable[[], AnyArray]] | None = None
        self._record_programs()

    def _record_programs(self) -> None:
        alone = self._workers.count == 1 or self._local is not None
        # `Adapters` itself sets the gradients of whole matrices to zero.
        written = set() if self.adapters is not None else self.graph.written()
        with self._ops.record("clear") as clear:
            self.updates.record_clear(written)
            # Each worker writes only the rows of its own batches. All other rows must be 0, because
            # the workers add up all rows.
            if not alone:
                self._ops.fill_zero(self.updates.loss_sums)
        # Make a program for each of this worker's batches, by the batch's number in the step. The
        # first batch overwrites the gradients of matrices. All later batches share the steps that
        # add to the gradients.
        self._batch_programs: dict[int, Program] = {}
        stages: list[Stage] = []
        for index in range(self._workers.number, self.options.grad_accum, self._workers.count):
            if len(self._batch_programs) < 2:
                adds = not written or bool(self._batch_programs)
                stages = self._record_gradients(accumulate=adds)
            with self._ops.record("sums of losses") as sums:
                for part, losses in enumerate(self.graph.losses.parts):
                    row = part * self.options.grad_accum + index
                    self._ops.sum_losses(losses, self.updates.loss_sums.rows(row, row + 1))
            steps = [*chain(*(stage.program.steps for stage in stages)), *sums.steps]
            self._batch_programs[index] = Program("gradients of a batch", steps)
        with self._ops.record("update") as self._update:
            self.updates.record_update()
            if self.adapters is not None:
                self.adapters.record_merge()
        # Join programs, so that a step of one batch is one submission. With several workers, the
        # last batch runs in stages. The gradients are exchanged before the update, so the update
        # stays a program of its own.
        first, *_, last = 2 * list(self._batch_programs.values())
        self._stages = [] if alone else stages
        if alone:
            last.steps += self._update.steps
        else:
            stages[-1].program.steps += sums.steps
            last.steps = stages[0].program.steps
            numbers = numbers_of([*self.updates.gradients.values(), self.updates.loss_sums])
            self._sums = BucketSums(self._ops, self._workers, numbers)
        first.steps[:0] = clear.steps
        with self._ops.record("losses") as self._losses:
            self.graph.record_losses()

    def _record_gradients(self, *, accumulate: bool) -> list[Stage]:
        """Record the gradients of a batch, see `LossGraph.record_gradients`.

        Returns stages that complete gradients. The last stage completes all remaining gradients,
        among them those that `LossGraph.late` names, and the sums of losses.
        """
        left, late = dict(self.updates.gradients), self.graph.late()
        stages: list[Stage] = []
        final: list[Tensor] = []  # gradients that are complete since the last stage

        def end_stage() -> None:
            program = Program("stage of gradients", gradients.steps.copy())
            stages.append(Stage(program, [*buckets(final)]))
            gradients.steps.clear()
            final.clear()

        def end(start: str) -> None:
            if self.adapters is not None:
                self.adapters.record_gradients(start, self.updates.gradients)
            complete = [name for name in left if name.startswith(start) and name not in late]
            final.extend(map(left.pop, complete))
            if numbers_of(final) >= LEAST_STAGE:
                end_stage()

        with self._ops.record("gradients") as gradients:
            self.graph.record_gradients(end, accumulate=accumulate)
        final += [*left.values(), self.updates.loss_sums]
        end_stage()
        return stages

    def take_step(self, batches: Sequence[Batch], learning_rate: float) -> None:
        """Start one step on `grad_accum` batches. `results` returns the results later."""
        if self._local is not None:
            self._local.begin()
        if not self._ops.is_asynchronous:
            self._finish_step()
        self._finish_step(partial(self._start_step, batches, learning_rate))
        if self.updates.loss_scaling is not None:
            self._unfinished = self.step, self._ops.begin_read(self.updates.stats)
        self.step += 1

    def _start_step(self, batches: Sequence[Batch], learning_rate: float) -> None:
        counted = batches if self._local is None else [batches[k] for k in self._batch_programs]
        rows = self.updates.write_rows(counted)
        first = next(iter(self._batch_programs))
        # The loss is the mean over the targets of all batches whose gradients are added up.
        tokens = self.model.config.vocab_size
        count = sum(int(np.count_nonzero(targets < tokens)) for _, targets in counted)
        self.graph.write_loss_params(
            count, self.options.label_smoothing, self.options.z_loss, self.updates.scale
        )
        self.updates.write_step(self.step, learning_rate, count)
        # Run the batches, add up gradients over the workers, and update the weights.
        for index, program in self._batch_programs.items():
            self.graph.write_batch(batches[index], rows)
            self._ops.run(program)
        runs = len(self._batch_programs)
        if self._stages:
            # Prepare the next programs before the sums arrive, because the device would wait for
            # programs that are prepared afterwards.
            self._ops.prepare(self._update)
            self._ops.prepare(self._batch_programs[first])
            self._sums.make(self._sum_gradients())
            self._ops.run(self._update)
            runs += len(self._stages)
        # Keep a few steps queued: the device computes them while the host reads the next batches.
        self._ops.wait_for_runs(QUEUED_STEPS * runs)

    def _sum_gradients(self) -> Iterator[Change]:
        """Run the stages after the first; yield changes of gradients to their sums over workers."""
        for number, stage in enumerate(self._stages):
            if number:
                self._ops.run(stage.program)
            for bucket in stage.buckets:
                yield Change(bucket, numbers_of(bucket), replace_by_sums)

    def end_round(self) -> None:
        """Make weights and the optimizer's state equal on all workers.

        All workers must call this method.

        Call this after a step that ends a round, see `TrainOptions.ends_round`.
        """
        self._finish_step()
        assert self._local is not None, "the options have rounds"
        self._local.end_round()
        scaling = self.updates.loss_scaling
        if scaling is not None:
            scaling.take_lowest(self._workers.gather(self._ops.read(scaling.tensor)))
        if self.adapters is None:
            self.model.round_weights()
        else:
            self.adapters.merge()

    def _finish_step(self, start_next: Callable[[], None] = lambda: None) -> None:
        """With a scaled loss, wait for the last step, and choose the scale of the next step.

        start_next: starts the next step before the wait, so that the device goes on. If the last
            step overflowed, the next step changed nothing and is started again.
        """
        scaling, unfinished = self.updates.loss_scaling, self._unfinished
        self._unfinished = None
        if scaling is None or unfinished is None:
            start_next()
            return
        (step, read), before = unfinished, scaling.state
        scaling.end_step(overflowed=False)
        start_next()
        if read()[BAD]:
            scaling.restore(before)
            if scaling.end_step(overflowed=True):
                self._ops.write(self.updates.stats, np.zeros(4, np.float32))
                self._skipped.add(step)
                start_next()
        self._skipped.discard(step - self.slots)

    def load(self, values: Callable[[str], AnyArray]) -> None:
        """Write the initial weights and adapters; values: returns a weight by name."""
        self.model.load(values)
        if self.adapters is not None:
            self.adapters.load(values)
            self.adapters.initialise(self.options.seed)

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of a checkpoint except the model's; each has its own name."""
        yield from self.updates.state_tensors()
        if self._local is not None:
            yield from self._local.momenta
        if self.adapters is not None:
            yield from self.adapters.trained.values()

    def write_state(self, values: Mapping[str, AnyArray]) -> None:
        """Write the tensors of `state_tensors`, given by name."""
        for tensor in self.state_tensors():
            self._ops.write(tensor, values[tensor.name])
        if scaling := self.updates.loss_scaling:
            scaling.restore(values[scaling.tensor.name])
        if self.adapters is not None:
            self.adapters.merge()

    def losses(
        self, batches: Iterable[Batch]
    ) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float32]]]:
        """Yield each batch's targets and their cross-entropies, both (B, T).

        Ignored targets have loss 0.
        """

        def begin(batch: Batch) -> tuple[NDArray[np.uint32], Callable[[], AnyArray]]:
            self.graph.write_batch(batch)
            self._ops.run(self._losses)
            return batch[1], self._ops.begin_read(self.graph.losses.cross_entropy)

        self._finish_step()
        self.graph.write_loss_params(0, 0.0, 0.0)
        # Read the losses of a batch while the device computes the next batch.
        for targets, read in in_order(batches, begin, QUEUED_BATCHES, threads=0):
            yield targets, read().reshape(targets.shape)

    def results(self, count: int) -> list[StepResult]:
        """Return the results of the last `count` steps, at most `slots`, in order."""
        return self.begin_results(count)()

    def begin_results(self, count: int) -> Callable[[], list[StepResult]]:
        """Start to read the results of the last `count` steps, at most `slots`.

        Returns a function that waits for the results and returns them in order. If the next step
        is started before the function is called, the device does not wait.
        """
        last = self.step
        read = self._ops.begin_read(self.updates.history)  # (slots, 8), by step % slots

        def results() -> list[StepResult]:
            if self.step == last:
                # Prepare the next step: the device would wait for a program that is prepared later.
                self._ops.prepare(next(iter(self._batch_programs.values())))
                self._finish_step()
            history, found = read(), list[StepResult]()
            for step in range(max(0, last - min(count, self.slots)), last):
                loss, norm, _, bad, smoothing, z_loss, *_ = history[step % self.slots].tolist()
                skipped = step in self._skipped
                is_bad = bool(bad) and not skipped
                found.append(StepResult(step, loss, smoothing, z_loss, norm, is_bad, skipped))
            return found

        return results

    def explain_bad_step(self, step: int, batches: Sequence[Batch]) -> TrainingError:
        """Repeat a bad step; return an error that names the gradients that are not finite.

        step: number of the step, from 0; the weights have not changed since. batches: the batches
        of the step.
        """
        self._finish_step()
        self._ops.write(self.updates.stats, np.zeros(4, np.float32))
        self.step = step
        self.take_step(batches, 0.0)
        record = self.results(1)[0]
        tensors = self.updates.bad_tensors()
        names = ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if tensors[3:] else "")
        what = f"gradient of {names}" if tensors else "norm of all gradients"
        or_f32 = " or --precision f32" if self.options.is_mixed else ""
        remedies = f"a lower --lr, more --warmup-steps{or_f32}"
        return TrainingError(
            f"step {step + 1}: the {what} is not finite (loss {record.loss:g}), so the weights "
            f"were left unchanged; try {remedies}"
        )

    def reader(self, snapshot: Snapshot | None) -> Callable[[str], AnyArray]:
        """Return a function that reads a tensor by name, with its content after the last step.

        The names are those of the model's weights and of `state_tensors`. The content comes from
        `snapshot`; without a snapshot, from the device at the time of the call.
        """
        self._finish_step()
        if snapshot is not None:
            snapshot.take()
            return snapshot.arrays.__getitem__
        tensors = {each.name: each for each in self.state_tensors()} | self.model.weights
        return lambda name: self._ops.read(tensors[name])
