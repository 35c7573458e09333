"""What trainers return: merges of symbols (batched trainers) or of ids (the recount trainer)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Takes finished merges in their order, piece by piece: uint32 (k, 2) pairs of symbols, and int64
# (k,) how often each pair occurred.
OnMerges = Callable[[NDArray[np.uint32], NDArray[np.int64]], None]


@dataclass(frozen=True)
class SymbolMerges:
    """What a batched trainer returns, in symbols (see `llmgpu.bpe.training.symbols`).

    pairs: uint32 (M, 2), the symbols merged, first merge first.
    counts: int64 (M,), how often each pair occurred when it was merged.
    symbols: length of the text in symbols after the last merge.
    batches: passes that made them; None if that is not known.
    """

    pairs: NDArray[np.uint32]
    counts: NDArray[np.int64]
    symbols: int
    batches: int | None = None


@dataclass(frozen=True)
class TrainedMerges:
    """What the recount trainer returns, in ids.

    merges: uint32 (M, 2), the ids merged; a byte's id is its value, merge k makes id 256 + k.
    counts: int64 (M,), how often each pair occurred when it was merged.
    symbols: length of the text in tokens after the last merge.
    """

    merges: NDArray[np.uint32]
    counts: NDArray[np.int64]
    symbols: int


def translate(
    pairs: NDArray[np.uint32], results: NDArray[np.uint32], ids: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Turn merges of symbols into merges of ids.

    pairs: uint32 (M, 2), symbols. results: uint32 (M,), the symbols they make.
    ids: uint32 (symbols,), the id of each symbol there was before; symbols behind are ids.

    Returns uint32 (M, 3): left, right, result.
    """
    triples = np.column_stack([pairs, results]).astype(np.uint32)
    known = triples < len(ids)
    triples[known] = ids[triples[known]]
    return triples


def byte_ids(byte_ranks: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the byte that each of the symbols 0 .. 255 stands for, by its rank: uint32 (256,)."""
    ids = np.empty(256, np.uint32)
    ids[byte_ranks] = np.arange(256, dtype=np.uint32)
    return ids
