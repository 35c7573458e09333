"""Merging on the host: by the CPU engine, one merge after the other, or on NumPy, many at a time.

Engine and NumPy make the same merges; llmgpu/cpu/merging.c has the engine's algorithm. If the free
memory is too small for the index of all pairs, the engine indexes fewer pairs at a time, which
takes longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training import batched_numpy
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, Spellings, SymbolWords
from llmgpu.cpu.library import CTrainer, library
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


def train(words: SymbolWords, options: TrainingOptions, task: MergeTask) -> Merges:
    """Learn merges; see `batched_numpy.train`. Raises InputError if there is too little memory."""
    costs = _require_free(words)
    if library() is None:
        return batched_numpy.train(words, options, task)
    # Open a trainer. If memory is short, it indexes only the most frequent pairs at a time.
    few_pairs = FEW_PAIRS + words.positions // POSITIONS_A_PAIR
    trainer = _open(
        words,
        task.merges,
        least=max(options.min_frequency, 1),
        longest=options.max_token_length,
        most_pairs=few_pairs if costs is LITTLE_COSTS else None,
    )
    if not task.keeps_words:
        words.let_go()
    # Learn in short steps. Progress and Ctrl-C are handled between the steps.
    learned, made = [_NONE], 0
    while made < task.merges:
        if task.spellings is None:
            piece = trainer.train(min(task.merges - made, SLICE_MERGES), SLICE_OCCURRENCES)
            made += len(piece[1])
        else:
            piece, is_new = _merge_best(trainer, task.spellings, len(words.lengths) + made)
            made += is_new
        if len(piece[1]) == 0:
            break
        learned.append(piece)
        if task.on_merges is not None:
            task.on_merges(*piece)
        task.progress("merging", made, task.merges)
    pairs, counts = zip(*learned, strict=True)
    together = np.concatenate(pairs)
    return Merges(together, np.concatenate(counts), trainer.total, batches=len(together))


def _merge_best(trainer: CTrainer, spellings: Spellings, next_symbol: int) -> tuple[Piece, bool]:
    """Merge the best-ranked pair; return the pair, and whether its result is a new symbol."""
    best = trainer.best()
    if best is None:
        return _NONE, False
    left, right, count = best
    result = spellings.merge(left, right)
    trainer.merge(np.array([[left, right, result]], np.uint32))
    return (np.array([[left, right]], np.uint32), np.array([count])), result == next_symbol


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
    trainer = _open(words, most - len(words.lengths))
    for first in range(0, len(merges), SLICE_MERGES):
        trainer.merge(merges[first : first + SLICE_MERGES])
        progress("replaying merges", min(first + SLICE_MERGES, len(merges)), len(merges))
    symbols, offsets, counts, lengths = trainer.words()
    return SymbolWords(symbols, offsets, counts, lengths, trainer.total)


def _open(words: SymbolWords, new_symbols: int, **limits: Any) -> CTrainer:
    """Return a `CTrainer` for `words`, with room for `new_symbols` new symbols.

    limits: further arguments of `CTrainer`.
    """
    batched_numpy.check_limits(words, new_symbols)
    return CTrainer(
        *(words.symbols, words.offsets, words.counts, words.lengths, words.total),
        most=len(words.lengths) + new_symbols,
        **limits,
    )
