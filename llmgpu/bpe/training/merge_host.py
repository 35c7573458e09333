"""Merging on the host: by the CPU engine, one merge after the other, or on NumPy, many at a time.

Engine and NumPy make the same merges; llmgpu/cpu/merging.c has the engine's algorithm. If the free
memory is too small for the index of all pairs, the engine indexes fewer pairs at a time, which
takes longer.
"""

from __future__ import annotations

from ctypes import c_int64

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training import batched_numpy
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, Spellings, SymbolWords
from llmgpu.cpu.library import EngineObject, library
from llmgpu.errors import InputError
from llmgpu.machine import Costs, free_memory
from llmgpu.progress import Progress, no_progress
from llmgpu.spelling import spelled

ENGINE_COSTS = Costs(fixed=14 << 20, per_byte=18, per_word=120)
LITTLE_COSTS = Costs(fixed=176 << 20, per_byte=11.5, per_word=24)  # costs if few pairs are indexed
# Pairs that the engine indexes at a time if memory is short: FEW_PAIRS, and one more for every
# POSITIONS_A_PAIR positions.
FEW_PAIRS, POSITIONS_A_PAIR = 1 << 20, 48
SLICE_MERGES = 256  # limit of the merges between two reports of progress
# Limit of the occurrences merged between two reports. Merging as many takes a fraction of a second.
SLICE_OCCURRENCES = 1 << 22

Piece = tuple[NDArray[np.uint32], NDArray[np.int64]]  # pairs and counts as in `Merges`
_NONE: Piece = np.empty((0, 2), np.uint32), np.empty(0, np.int64)


def memory_costs(words: float, nbytes: float) -> Costs:
    """Return the costs of merging, or of merging with less memory if memory is short.

    words: number of distinct words. nbytes: sum of their lengths in bytes.
    """
    if library() is None:
        return batched_numpy.COSTS
    free = free_memory()
    is_too_much = free is not None and ENGINE_COSTS.of(words, nbytes) > free
    return LITTLE_COSTS if is_too_much else ENGINE_COSTS


def _require_free(words: SymbolWords) -> Costs:
    """Return the costs of merging words; raise InputError if they exceed the free memory."""
    count, nbytes, free = len(words.counts), len(words.symbols), free_memory()
    costs = memory_costs(count, nbytes)
    needed = costs.of(count, nbytes) - nbytes
    if free is not None and needed > free:
        engine = "" if library() else "use the CPU engine, which needs less (see llmgpu info), or "
        raise InputError(
            f"merging {count:,} distinct pre-tokens of {nbytes:,} bytes needs up to "
            f"{needed / 1e6:,.0f} MB of memory, and {free / 1e6:,.0f} MB are free: {engine}"
            f"use less text ({spelled('--limit')}), or a pattern that makes shorter pre-tokens"
        )
    return costs


class Trainer(EngineObject):
    """Merges the pairs of words in the CPU engine. Only one thread at a time may use a trainer."""

    def __init__(
        self,
        words: SymbolWords,
        new_symbols: int,
        least: int = 1,
        longest: int | None = None,
        most_pairs: int | None = None,
    ) -> None:
        """Count the pairs of words, and make room for `new_symbols` new symbols.

        least: lowest count of a pair that is merged. longest: most bytes of a merged pair.
        most_pairs: approximate number of pairs indexed at a time, which bounds the memory; None for
            all pairs. Merges do not depend on `most_pairs`.
        """
        batched_numpy.check_limits(words, new_symbols)
        self._words, self._most = len(words.counts), len(words.lengths) + new_symbols
        arrays = words.symbols, words.symbols.itemsize, words.offsets, words.counts, self._words
        symbols = words.lengths, len(words.lengths), self._most, words.total
        super().__init__(
            "trainer", *arrays, *symbols, least, longest or 1 << 40, most_pairs or 1 << 62
        )
        self._arguments = (words.counts,)  # kept alive; the engine copies the other arrays

    def train(self, merges: int, work: int) -> Piece:
        """Merge up to `merges` pairs, each into a new symbol; return none at the end of training.

        work: stop early after a merge if the merges so far have changed this many positions.
        """
        pairs, counts = np.empty((merges, 2), np.uint32), np.empty(merges, np.int64)
        made = self._call("trainer_train", merges, work, pairs, counts)
        return pairs[:made], counts[:made]

    def merge_best(self, spellings: Spellings) -> tuple[Piece, int]:
        """Merge the best-ranked pair; return the pair, and the symbol that it makes, if any."""
        pair, count = np.empty((1, 2), np.uint32), np.empty(1, np.int64)
        if not self._call("trainer_best", pair, count):
            return _NONE, -1
        result = spellings.merge(*pair[0].tolist())
        self.merge(np.array([[*pair[0], result]]))
        return (pair, count), result

    def merge(self, merges: NDArray[np.integer]) -> None:
        """Carry out given merges in order: (n, 3), left symbol, right symbol, result.

        Raises ValueError if the bytes of a result are not the bytes of its two symbols.
        """
        merges = np.ascontiguousarray(merges, np.uint32)
        if self._call("trainer_merge", merges, len(merges)):
            raise ValueError("a merge has a symbol that does not exist, or a result of other bytes")

    @property
    def total(self) -> int:
        """The number of symbols of the whole text."""
        total = c_int64()
        self._call("trainer_size", total)
        return total.value

    def words(self) -> SymbolWords:
        """Return the words of two symbols or more, and the lengths of all symbols."""
        total, known = c_int64(), c_int64()
        symbols = np.empty(self._call("trainer_size", total), np.uint32)
        offsets, counts = np.zeros(self._words + 1, np.int64), np.empty(self._words, np.int64)
        lengths = np.empty(self._most, np.uint32)
        words = self._call("trainer_take", symbols, offsets[1:], counts, lengths, known)
        offsets = offsets[: words + 1]
        taken = symbols[: offsets[-1]], offsets, counts[:words], lengths[: known.value]
        return SymbolWords(*taken, total.value)


def train(words: SymbolWords, options: TrainingOptions, task: MergeTask) -> Merges:
    """Learn merges; see `batched_numpy.train`. Raises InputError if there is too little memory."""
    costs = _require_free(words)
    if library() is None:
        return batched_numpy.train(words, options, task)
    # Open a trainer. If memory is short, it indexes only the most frequent pairs at a time.
    few_pairs = FEW_PAIRS + words.positions // POSITIONS_A_PAIR
    most_pairs = few_pairs if costs is LITTLE_COSTS else None
    least, longest = max(options.min_frequency, 1), options.max_token_length
    trainer = Trainer(words, task.merges, least, longest, most_pairs)
    if not task.keeps_words:
        words.let_go()
    # Learn in short steps. Progress and Ctrl-C are handled between the steps.
    learned, made = [_NONE], 0
    while made < task.merges:
        if task.spellings is None:
            piece = trainer.train(min(task.merges - made, SLICE_MERGES), SLICE_OCCURRENCES)
            made += len(piece[1])
        else:
            piece, result = trainer.merge_best(task.spellings)
            made += result == len(words.lengths) + made
        if len(piece[1]) == 0:
            break
        learned.append(piece)
        if task.on_merges is not None:
            task.on_merges(*piece)
        task.progress("merging", made, task.merges)
    pairs, counts = zip(*learned, strict=True)
    together = np.concatenate(pairs)
    return Merges(together, np.concatenate(counts), trainer.total, batches=len(together))


def apply_merges(
    words: SymbolWords, merges: NDArray[np.uint32], progress: Progress = no_progress
) -> SymbolWords:
    """Merge given pairs everywhere; see `batched_numpy.apply_merges`."""
    if library() is None:
        return batched_numpy.apply_merges(words, merges, progress)
    # Return early if there are no merges, and no words of fewer than two symbols to drop.
    if len(merges) == 0 and (np.diff(words.offsets) > 1).all():
        return words
    most = max(len(words.lengths), int(merges[:, 2].max(initial=0)) + 1)
    trainer = Trainer(words, most - len(words.lengths))
    for first in range(0, len(merges), SLICE_MERGES):
        trainer.merge(merges[first : first + SLICE_MERGES])
        progress("replaying merges", min(first + SLICE_MERGES, len(merges)), len(merges))
    return trainer.words()
