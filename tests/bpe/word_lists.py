"""Distinct words as Python objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.words.distinct_words import DistinctWords


def as_words(counts: Mapping[bytes, int]) -> DistinctWords:
    offsets = np.cumsum([0, *map(len, counts)], dtype=np.int64)
    data = np.frombuffer(b"".join(counts), np.uint8)
    return DistinctWords(data, offsets, np.fromiter(counts.values(), np.int64, len(counts)))


def byte_ids(byte_ranks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The byte that each of the symbols 0 .. 255 stands for."""
    return np.argsort(byte_ranks).astype(np.uint32)


def listed(words: DistinctWords) -> list[tuple[bytes, int]]:
    """Return the words with their counts, in their order."""
    data, offsets = words.data.tobytes(), words.offsets.tolist()
    spelled = [data[start:end] for start, end in pairwise(offsets)]
    return list(zip(spelled, words.counts.tolist(), strict=True))
