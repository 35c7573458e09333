"""Sampling an id from logits, with temperature, top-k, top-p and a seed.

A repetition penalty makes ids that occurred before less likely: it divides logits above 0, and
multiplies logits below 0 (N. S. Keskar et al., CTRL, arXiv 1909.05858).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.options import SamplingOptions

LARGEST_FACTOR = 3e38  # largest factor of logits, a float32 number


class Sampler:
    """Draws ids; samplers with equal options draw equal ids from equal logits.

    log_probabilities: log-probability in nats of each drawn id, computed from the unchanged
    logits; empty unless the option of this name is set.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._options = options
        self._random = np.random.Generator(np.random.Philox(options.seed))
        # Random numbers that `draws_ahead` has returned, and that later draws use again.
        self._uniform: deque[float] = deque()
        self._seen: set[int] = set()
        self.log_probabilities: list[float] = []

    def see(self, ids: Iterable[int]) -> None:
        """Apply the repetition penalty also to the ids of the prompt."""
        self._seen.update(ids)

    def draw(self, logits: NDArray[np.float32]) -> int:
        """Return an id drawn from logits (V,)."""
        penalised = self._penalised(logits)
        if self._options.temperature == 0:
            token = int(np.argmax(penalised))
        else:
            ids, probabilities = self.candidates(penalised)
            token = int(ids[self._pick(probabilities)])
        self._seen.add(token)
        if self._options.log_probabilities:
            shifted = logits.astype(np.float64) - float(logits.max())
            with np.errstate(under="ignore"):
                total = float(np.log(np.exp(shifted).sum()))
            self.log_probabilities.append(float(shifted[token]) - total)
        return token

    def largest_wanted(self, count: int) -> int | None:
        """Return how many of the largest logits are enough to draw an id; None if all are needed.

        0 if the likeliest id is always drawn, of equally likely ids the smallest. count: the number
        of all logits.
        """
        options = self._options
        if options.repetition_penalty != 1 or options.log_probabilities:
            return None
        if options.temperature == 0:
            return 0
        return options.top_k if 0 < options.top_k < count else None

    def draw_largest(self, ids: NDArray[np.int64], logits: NDArray[np.float32]) -> int:
        """Return the id that `draw` would return for all logits.

        logits: the largest logits, at least `largest_wanted` of them, in descending order. ids: the
            ids of these logits; of equal logits the smallest id first.
        """
        if self._options.temperature == 0:
            return int(ids[0])
        _, probabilities = self._probabilities(-logits[: self._options.top_k])
        return int(ids[self._pick(probabilities)])

    def _pick(self, probabilities: NDArray[np.float64]) -> int:
        # Draw as NumPy's `choice` does, without its checks, which are slower than the draw.
        ends = np.cumsum(probabilities)
        ends /= ends[-1]
        uniform = self._uniform.popleft() if self._uniform else self._random.random()
        return int(np.searchsorted(ends, uniform, side="right"))

    def draws_ahead(self, skip: int, count: int) -> NDArray[np.float64]:
        """Return the parameters of `count` draws on the device, after the next `skip` draws.

        The result is (count, 4): a random number from 0 to 1, the factor of logits, top_p and
        top_k for each draw. Later draws on the host use the same random numbers.
        """
        options, missing = self._options, skip + count - len(self._uniform)
        draws = np.ones((count, 4))
        if options.temperature == 0:
            return draws
        if missing > 0:
            self._uniform.extend(self._random.random(missing).tolist())
        draws[:, 0] = list(islice(self._uniform, skip, skip + count))
        draws[:, 1:] = min(1 / options.temperature, LARGEST_FACTOR), options.top_p, options.top_k
        return draws

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits with the repetition penalty applied."""
        penalty = np.float32(self._options.repetition_penalty)
        if penalty == 1 or not self._seen:
            return logits
        seen = np.fromiter(self._seen, np.int64)
        lowered = logits.copy()
        lowered[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        return lowered

    def candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids that may be drawn and their probabilities, the likeliest first.

        Equally likely ids are in ascending order.
        """
        top_k, negated = self._options.top_k, -logits
        # Top-k: sort only the k largest logits. Look up their ids after top-p, when fewer are left.
        values = negated
        if 0 < top_k < len(negated):
            values = np.partition(negated, top_k - 1)[:top_k]
        values, probabilities = self._probabilities(np.sort(values))
        return _smallest(negated, values), probabilities

    def _probabilities(
        self, values: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Apply temperature and top-p to negated logits, ascending.

        Returns the negated logits of the candidates, ascending, and their probabilities.
        """
        options = self._options
        below = float(values[0]) - values.astype(np.float64)
        # With a tiny temperature, probabilities underflow to 0.
        with np.errstate(over="ignore", under="ignore"):
            probabilities = np.exp(below / options.temperature)
        probabilities /= probabilities.sum()
        if options.top_p < 1:
            # Top-p: keep the fewest candidates whose probabilities add up to top_p.
            kept = int(np.searchsorted(np.cumsum(probabilities), options.top_p)) + 1
            values, probabilities = values[:kept], probabilities[:kept] / probabilities[:kept].sum()
        return values, probabilities


def _smallest(numbers: NDArray[np.float32], ascending: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the indices of the smallest numbers; `ascending` has these numbers in order.

    Of equal numbers the first indices are returned.
    """
    # Keep NaN, too: no comparison with NaN is true, and `argsort` puts NaN last.
    some = np.flatnonzero(~(numbers > ascending[-1]))
    order: NDArray[np.int64] = np.argsort(numbers[some], kind="stable")
    return some[order[: len(ascending)]]
