"""What matching takes and gives: words of a text, and the tokens of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Matches:
    """The tokens of some words.

    ids: uint32, all words' tokens in order.
    counts: int64 (words,), tokens of each word.
    exits: int64 (words,), where the last token of each word ends.
    """

    ids: NDArray[np.uint32]
    counts: NDArray[np.int64]
    exits: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Words:
    """Words of a text, ascending and disjoint; all int64 (words,).

    starts: where the first token starts.
    stops: no token starts here or behind.
    limits: no token ends behind this.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    limits: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Words:
        """Return some of the words."""
        return Words(self.starts[which], self.stops[which], self.limits[which])


class Matcher(Protocol):
    """Finds the tokens of words by one of the match rules."""

    def match(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words, any number of them; NO_TOKEN stands for a byte that has no token."""
        ...

    def match_long(self, text: NDArray[np.uint8], words: Words) -> Matches:
        """Match words of any length, one or more, few of them."""
        ...
