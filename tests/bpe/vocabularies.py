"""Vocabularies made from merges that start from bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary


def build_vocabulary(
    merges: ArrayLike,
    *,
    pattern: str,
    tie: str,
    special_tokens: Sequence[str],
    training: dict[str, int | float | str],
) -> Vocabulary:
    """Make the vocabulary of merges (M, 2), ids of the left and the right part.

    A byte's id is its value, merge k makes id 256 + k, and the special tokens get the ids after it.
    """
    pairs = np.asarray(merges)
    pairs = pairs if pairs.size else np.empty((0, 2), np.int64)
    return extend_vocabulary(
        byte_vocabulary(pattern, tie),
        np.column_stack([pairs, np.arange(256, 256 + len(pairs))]),
        special_tokens=special_tokens,
        training=training,
    )
