"""Sampling an id from logits: temperature, top-k, top-p, and a seed that repeats the choice."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError


@dataclass(frozen=True)
class SamplingOptions:
    """How ids are sampled.

    temperature: divides the logits; 0 always takes the most likely id. top_k: sample from this many
    of the most likely ids, or from all if 0. top_p: sample from the most likely ids that together
    have at least this probability (A. Holtzman et al., arXiv 1904.09751).
    """

    temperature: float = 0.8
    top_k: int = 200
    top_p: float = 1.0
    seed: int = 1337

    def __post_init__(self) -> None:
        """Check each value."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}, it must be 0 or more")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}, it must be 0 (all) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}, it must be above 0 and no more than 1")
        if not 0 <= self.seed < 1 << 63:
            raise InputError(f"seed is {self.seed}, it must be from 0 to 2^63 - 1")


class Sampler:
    """Draws ids; two samplers with equal options draw alike from equal logits."""

    def __init__(self, options: SamplingOptions) -> None:
        """Start from the seed."""
        self._options = options
        self._random = np.random.Generator(np.random.Philox(options.seed))

    def draw(self, logits: NDArray[np.float32]) -> int:
        """Return an id drawn from logits (V,)."""
        if self._options.temperature == 0:
            return int(np.argmax(logits))
        ids, probabilities = self.candidates(logits)
        return int(ids[self._random.choice(len(ids), p=probabilities)])

    def candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids that may be drawn, the likeliest first, and their probabilities.

        Of equally likely ids the smaller ones come first.
        """
        options = self._options
        # Top-k, by a stable sort: of equal logits the smaller ids come first.
        ids = np.argsort(-logits, kind="stable")[: options.top_k or None]
        below = logits[ids].astype(np.float64) - float(logits[ids[0]])
        with np.errstate(over="ignore", under="ignore"):  # a tiny temperature gives 0
            probabilities = np.exp(below / options.temperature)
        probabilities /= probabilities.sum()
        if options.top_p < 1:
            # Top-p: the shortest head of the list that reaches the probability.
            kept = int(np.searchsorted(np.cumsum(probabilities), options.top_p)) + 1
            ids, probabilities = ids[:kept], probabilities[:kept] / probabilities[:kept].sum()
        return ids, probabilities
