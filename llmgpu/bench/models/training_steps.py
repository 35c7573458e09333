"""The training steps of a benchmark, taken by llmgpu on an engine and by torch alike.

A job fixes the model, its first weights and the batches, so that losses can be compared. Ids are
random, but as unevenly frequent as words are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmgpu.bench.engines import Engine
from llmgpu.bench.timing import timed
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.data.batches import Batch
from llmgpu.lm.model import initial_values
from llmgpu.lm.ops.backends import open_operations
from llmgpu.lm.options import Precision, TrainOptions
from llmgpu.lm.trainer import Trainer

SEED = 1
CHECKED_STEPS = 3
LEARNING_RATE = 1e-4
SMALL_OPERATIONS = 50e9  # of a step that NumPy and torch take on a CPU in a moment
CUT_LAYERS, CUT_TOKENS = 2, 64  # of a larger job, for a comparison with NumPy


@dataclass(frozen=True)
class StepJob:
    """Training steps: the same weights and the same batches for llmgpu and torch.

    name: of the preset. sequences: in a batch, of which a step takes one.
    """

    name: str
    config: ModelConfig
    sequences: int

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.sequences * self.config.seq_len

    @property
    def operations(self) -> int:
        """Additions and multiplications of a step, forward and backward."""
        return self.config.training_operations(self.tokens)

    @property
    def is_small(self) -> bool:
        """Whether a CPU takes a step in a moment."""
        return self.operations <= SMALL_OPERATIONS

    def options(self, precision: Precision) -> TrainOptions:
        """Return what a trainer is asked for."""
        return TrainOptions(
            batch_size=self.sequences, learning_rate=LEARNING_RATE, precision=precision, seed=SEED
        )

    def batches(self) -> list[Batch]:
        """Return the batches of the first steps: ids and the ids that follow them."""
        generator = np.random.default_rng(SEED)
        shape = (CHECKED_STEPS, self.sequences, self.config.seq_len + 1)
        ids = uneven_ids(generator, self.config.vocab_size, shape)
        return [(step[:, :-1].copy(), step[:, 1:].copy()) for step in ids]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the first weights, those of `Model.initialise`."""
        return {
            weight.name: initial_values(SEED, index, weight)
            for index, weight in enumerate(self.config.weights())
        }

    def cut(self) -> StepJob:
        """Return the same with few layers and tokens, which NumPy can do; itself if it is small."""
        if self.is_small:
            return self
        layers, seq_len = min(self.config.layers, CUT_LAYERS), min(self.config.seq_len, CUT_TOKENS)
        return StepJob(self.name, replace(self.config, layers=layers, seq_len=seq_len), 1)

    def __str__(self) -> str:
        """Say the sizes."""
        config, tokens = self.config, f"{self.sequences} x {self.config.seq_len:,} tokens"
        sizes = f"{config.layers} layers, {config.dim} wide, {config.vocab_size:,} ids"
        return f"{self.name}: {config.parameters / 1e6:,.1f} M parameters ({sizes}), {tokens}"


def uneven_ids(
    generator: np.random.Generator, vocab_size: int, shape: tuple[int, ...]
) -> NDArray[np.uint32]:
    """Return random ids, id k about as often as 1 / (k + 3), as words of a text are."""
    weights = 1 / (np.arange(vocab_size) + 3.0)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, generator.random(shape) * ends[-1], side="right")
    ids: NDArray[np.uint32] = np.minimum(drawn, vocab_size - 1).astype(np.uint32)
    return ids


def choose_job(engine: Engine, *, quick: bool) -> StepJob:
    """Return the steps for an engine: GPT-2 small on a GPU, a tiny model where a CPU computes."""
    if not engine.backend.is_software:
        if quick:
            return StepJob("small", preset("small", 8192), 4)
        return StepJob("gpt2", preset("gpt2", 50_257), 8)
    if quick:
        return StepJob("tiny", preset("tiny", 512, layers=2, seq_len=32), 2)
    return StepJob("tiny", preset("tiny", 512), 8)


class OwnSteps:
    """llmgpu on an engine, which takes the steps of a job."""

    def __init__(self, engine: Engine, job: StepJob, precision: Precision) -> None:
        """Make the model, for which an engine may have no memory, or no half precision."""
        self.engine, self.job, self.precision = engine, job, precision
        self._operations = open_operations(engine.backend.device)
        options = job.options(precision)
        self._trainer = Trainer(self._operations, job.config, options, slots=CHECKED_STEPS)
        self._trainer.model.initialise(SEED)
        self._batches = job.batches()

    @cached_property
    def first_losses(self) -> list[float]:
        """Losses of the first CHECKED_STEPS steps, which are taken when they are asked for."""
        self._take(CHECKED_STEPS)
        return [result.loss for result in self._trainer.results(CHECKED_STEPS)]

    def time(self, count: int) -> float:
        """Take `count` more steps; return the seconds for each."""
        return timed(lambda: self._take(count))[0] / count

    def _take(self, count: int) -> None:
        for _ in range(count):
            batch = self._batches[self._trainer.step % len(self._batches)]
            self._trainer.take_step([batch], LEARNING_RATE)
        self._operations.wait_for_runs(0)
