"""Ids, tables and shapes for tests of lookups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.lm.ops.ids import NO_TOKEN
from tests.lm.ops.checking import float32_values

Ids = NDArray[np.uint32]

# (N, V, C): below, at and beyond what a workgroup, a tile, a subgroup and four loads cover.
VECTOR_SHAPES = [(9, 40, 4), (300, 13, 36), (65, 50, 384), (3, 6, 4100)]
SHAPES = [(1, 1, 1), (7, 5, 33), (5, 9, 1031), *VECTOR_SHAPES]


def random_tokens(count: int, vocab_size: int) -> Ids:
    """Return ids of a table, a few of them beyond the table: V, V + 1 and the largest number."""
    rng = np.random.default_rng(count)
    ids = rng.integers(0, vocab_size, count).astype(np.uint32)
    beyond = np.array([vocab_size, vocab_size + 1, NO_TOKEN], np.uint32)[: count // 2]
    ids[rng.permutation(count)[: len(beyond)]] = beyond
    return ids


def random_table(vocab_size: int, width: int) -> NDArray[np.float64]:
    return float32_values(np.random.default_rng(vocab_size + width), vocab_size, width)
