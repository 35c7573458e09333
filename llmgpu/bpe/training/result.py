"""After training: the vocabularies that merges make, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import llmgpu
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary, extend_vocabulary


@dataclass(frozen=True, eq=False)
class Trained:
    """All merges of a run, and for each size how many of them it has and the text in its tokens.

    merges: uint32 (M, 3), ids of the left part, the right part and the result.
    counts: int64 (M,).
    sizes: merges and symbols of the text by vocabulary size.
    """

    merges: NDArray[np.uint32]
    counts: NDArray[np.int64]
    sizes: dict[int, tuple[int, int]]
    text_bytes: int
    documents: int
    distinct_words: int | None = None
    batches: int | None = None


@dataclass(frozen=True)
class TrainingResult:
    """Trained vocabularies and how they came about.

    vocabulary: that of the largest size.
    vocabularies: by the size asked for, ascending.
    merge_counts: int64 (merges,), how often each pair occurred when it was merged; merges of a seed
        are left out.
    stop_reason: why there are fewer tokens than asked for; None if there are not.
    seconds: time by phase.
    text_bytes, documents: what was trained on.
    distinct_words: different pre-tokens; None if they were not counted.
    batches: passes that made the merges; None if that is not known.
    notes: what people should know about it, a line each.
    """

    vocabulary: Vocabulary
    vocabularies: dict[int, Vocabulary]
    merge_counts: NDArray[np.int64]
    stop_reason: str | None
    seconds: dict[str, float]
    text_bytes: int
    documents: int
    distinct_words: int | None = None
    batches: int | None = None
    notes: tuple[str, ...] = ()


def make_vocabularies(trained: Trained, options: TrainingOptions) -> dict[int, Vocabulary]:
    """Return the vocabulary of each size asked for."""
    return {size: _vocabulary(trained, size, options) for size in options.sizes}


def _vocabulary(trained: Trained, size: int, options: TrainingOptions) -> Vocabulary:
    count, symbols = trained.sizes[size]
    training: dict[str, int | float | str] = {
        "text_bytes": trained.text_bytes,
        "documents": trained.documents,
        "tokens": symbols,
        "bytes_per_token": round(trained.text_bytes / symbols, 6),
        "min_frequency": options.min_frequency,
        "tool": f"llmgpu {llmgpu.__version__}",
    }
    if options.max_token_length is not None:
        training["max_token_length"] = options.max_token_length
    if options.seed is not None:
        training["seed_fingerprint"] = options.seed.fingerprint
    return extend_vocabulary(
        options.start,
        trained.merges[:count],
        special_tokens=options.special_tokens,
        training=training,
    )


def stop_reason(size: int, merges: int, options: TrainingOptions) -> str | None:
    """Return why training made `size` tokens, if that is fewer than asked for."""
    if size == options.vocab_size:
        return None
    short = f" of up to {options.max_token_length} bytes" if options.max_token_length else ""
    return (
        f"{options.vocab_size} tokens asked for, {size} made: after {merges} merges no pair of "
        f"tokens{short} occurs {max(options.min_frequency, 1)} times or more"
    )
