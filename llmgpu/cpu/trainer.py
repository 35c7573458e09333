"""The CPU engine's trainer, see merging.c."""

from __future__ import annotations

from ctypes import c_int64

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import EngineObject

_WRONG_MERGE = -2  # as in merging.c


class CTrainer(EngineObject):
    """Merges the pairs of distinct words, for one thread.

    symbols, offsets, counts, lengths, total: see `llmgpu.bpe.training.symbols.SymbolWords`.
    most: symbols at the end, up to 2^20. least, longest: the least count and the most bytes of a
        merged pair.
    most_pairs: about the number of pairs indexed at a time, a bound of memory; None for all pairs.
        The merges are the same.
    """

    def __init__(
        self,
        symbols: NDArray[np.uint8] | NDArray[np.uint32],
        offsets: NDArray[np.int64],
        counts: NDArray[np.int64],
        lengths: NDArray[np.uint32],
        total: int,
        *,
        most: int,
        least: int = 1,
        longest: int | None = None,
        most_pairs: int | None = None,
    ) -> None:
        """Count the pairs of the words."""
        self._words = len(counts)
        self._most = most
        longest = 1 << 40 if longest is None else longest
        most_pairs = 1 << 62 if most_pairs is None else most_pairs
        arrays = symbols, symbols.itemsize, offsets, counts, self._words, lengths, len(lengths)
        super().__init__("trainer", *arrays, most, total, least, longest, most_pairs)
        self._arguments = (counts,)  # the engine copies the other arrays

    def best(self) -> tuple[int, int, int] | None:
        """Return the symbols and the count of the pair to merge next; None if there is none."""
        symbols, count = np.empty(2, np.uint32), np.empty(1, np.int64)
        found = self._call("trainer_best", symbols, count)
        return (int(symbols[0]), int(symbols[1]), int(count[0])) if found else None

    def train(self, merges: int, work: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Make up to `merges` merges, each into a new symbol; fewer once they pass `work` places.

        Returns their symbols, uint32 (n, 2), and counts, int64 (n,); none at the end.
        """
        pairs, counts = np.empty((merges, 2), np.uint32), np.empty(merges, np.int64)
        made = self._call("trainer_train", merges, work, pairs, counts)
        return pairs[:made], counts[:made]

    def merge(self, merges: NDArray[np.uint32]) -> None:
        """Make given merges in their order: uint32 (n, 3), left symbol, right symbol, result.

        Raises ValueError for a result with other bytes than its parts.
        """
        merges = np.ascontiguousarray(merges, np.uint32)
        if self._call("trainer_merge", merges, len(merges)) == _WRONG_MERGE:
            raise ValueError("a merge has a symbol that does not exist, or a result of other bytes")

    @property
    def total(self) -> int:
        """Symbols of the whole text."""
        total = c_int64()
        self._call("trainer_size", total)
        return total.value

    def words(
        self,
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
        """Return the words of two symbols or more: symbols, offsets, counts and all lengths."""
        total = c_int64()
        remaining = self._call("trainer_size", total)
        symbols = np.empty(remaining, np.uint32)
        offsets = np.zeros(self._words + 1, np.int64)
        counts = np.empty(self._words, np.int64)
        lengths = np.empty(self._most, np.uint32)
        known = c_int64()
        words = self._call("trainer_take", symbols, offsets[1:], counts, lengths, known)
        offsets = offsets[: words + 1]
        return symbols[: offsets[-1]], offsets, counts[:words], lengths[: known.value]
