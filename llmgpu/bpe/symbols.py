"""Words as symbols: what a batched trainer works on.

A symbol is a number that says how it ranks among equally frequent pairs: the rank of a byte
(0 .. 255, see `llmgpu.bpe.tie`), and behind them all other tokens in the order of their ids. Merge
k of a training run makes the k-th symbol behind all that were there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.words import DistinctWords


@dataclass(frozen=True, eq=False)
class SymbolWords:
    """Words of two symbols or more; shorter ones have nothing to merge and are left out.

    symbols: uint32 (n,), the words end to end.
    offsets: int64 (words + 1,), word k is symbols[offsets[k] : offsets[k + 1]].
    counts: int64 (words,), how often each word occurs, at least once.
    lengths: uint32 (next symbol,), the bytes of each symbol; the first new symbol is len(lengths).
    total: symbols of the whole text, words that are left out included.
    """

    symbols: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    total: int


def byte_symbols(words: DistinctWords, byte_ranks: NDArray[np.uint32]) -> SymbolWords:
    """Return words with a symbol for each byte.

    byte_ranks: uint32 (256,), a permutation: the rank of each byte among equally frequent pairs.
    """
    lengths = np.diff(words.offsets)
    kept = lengths > 1
    return SymbolWords(
        symbols=byte_ranks[words.data[np.repeat(kept, lengths)]],
        offsets=offsets_of(lengths[kept]),
        counts=words.counts[kept],
        lengths=np.ones(256, np.uint32),
        total=int(np.dot(lengths, words.counts)),
    )


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where things of these lengths begin when they lie end to end, then the end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
