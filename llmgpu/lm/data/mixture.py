"""Which of several corpora each sequence of a run is from, by weights.

The number of a sequence decides alone, so a resumed run needs nothing but how many were taken. Of
the first n sequences floor(n * weight) are from the first corpus; the others are shared out among
the rest in the same way. So shares are as exact as whole sequences can be, all along the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WHOLE = 1 << 20  # what weights are fractions of, so that shares are exact in int64


class Mixture:
    """Draws sequences from corpora in the shares of their weights, each above 0."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Take the weights, in any unit."""
        total = sum(weights)
        self._shares = [max(1, round(weight / total * _WHOLE)) for weight in weights]

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the corpus of each sequence (n,), and its number among those of that corpus.

        numbers: of sequences, from 0, below 2^43.
        """
        corpora = np.full(len(numbers), len(self._shares) - 1, np.int64)
        left, open_ = numbers.copy(), np.ones(len(numbers), np.bool_)
        places = numbers.copy()
        whole = sum(self._shares)
        for corpus, share in enumerate(self._shares[:-1]):
            before, after = left * share // whole, (left + 1) * share // whole
            taken = open_ & (after > before)
            corpora[taken], places[taken] = corpus, before[taken]
            open_ &= ~taken
            left -= before
            whole -= share
        places[open_] = left[open_]
        return corpora, places
