"""Sampling an id from logits: temperature, top-k, top-p, and a seed that repeats the choice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.options import SamplingOptions


class Sampler:
    """Draws ids; two samplers with equal options draw alike from equal logits."""

    def __init__(self, options: SamplingOptions) -> None:
        """Start from the seed."""
        self._options = options
        self._random = np.random.Generator(np.random.Philox(options.seed))

    @property
    def is_greedy(self) -> bool:
        """Whether it always takes the likeliest id, the smallest of several."""
        return self._options.temperature == 0

    def draw(self, logits: NDArray[np.float32]) -> int:
        """Return an id drawn from logits (V,)."""
        if self.is_greedy:
            return int(np.argmax(logits))
        ids, probabilities = self.candidates(logits)
        return int(ids[self._random.choice(len(ids), p=probabilities)])

    def candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids that may be drawn, the likeliest first, and their probabilities.

        Of equally likely ids the smaller ones come first.
        """
        negated = -logits
        values, probabilities = self._distribution(negated)
        return _smallest(negated, values), probabilities

    def _distribution(
        self, negated: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return the negated logits of the candidates, ascending, and their probabilities."""
        options = self._options
        # Top-k: only what is kept is sorted, and ids are found for what is left after top-p.
        values = negated
        if 0 < options.top_k < len(negated):
            values = np.partition(negated, options.top_k - 1)[: options.top_k]
        values = np.sort(values)
        below = float(values[0]) - values.astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):  # a tiny temperature gives 0
            probabilities = np.exp(below / options.temperature)
        probabilities /= probabilities.sum()
        if options.top_p < 1:
            # Top-p: the shortest head of the list that reaches the probability.
            kept = int(np.searchsorted(np.cumsum(probabilities), options.top_p)) + 1
            values, probabilities = values[:kept], probabilities[:kept] / probabilities[:kept].sum()
        return values, probabilities


def _smallest(numbers: NDArray[np.float32], ascending: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return where the smallest numbers are, which are `ascending`; of equal ones the first."""
    # NaN comes last, and no number compares as greater than NaN.
    some = np.flatnonzero(~(numbers > ascending[-1]))
    order: NDArray[np.int64] = np.argsort(numbers[some], kind="stable")
    return some[order[: len(ascending)]]
