"""Cutting a corpus into slices that can be tokenized one after the other, wherever they are cut.

A slice holds the bytes whose tokens it emits (its main part) and, behind them, the lookahead: as
many bytes as the longest token has and as many as it takes to tell where pre-tokens start in those.
So a token that starts in the main part is matched against the very bytes it would see in the uncut
text. A token may end in the lookahead, so the next slice, which begins where this main part ended,
takes the position of its first token from this one. The bytes before a slice on which it depends
where pre-tokens start are passed on too. Nothing else crosses a cut, so the ids can't depend on
where it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.corpus import Fill
from llmgpu.bpe.pattern import context_at


class TextSource(Protocol):
    """What gives text piece by piece; see `llmgpu.bpe.corpus.Corpus.read_into`."""

    def read_into(self, buffer: NDArray[np.uint8]) -> Fill:
        """Write the next bytes of text to the front of a buffer."""
        ...


@dataclass(frozen=True)
class Slice:
    """A part of a text, in the front of the buffer it was read into.

    length: bytes in the buffer, lookahead included.
    main_end: tokens that start before this position belong to the slice.
    context: the CONTEXT bytes before position 0 in the same document, or as many as there are.
    document_starts: int64, positions in [0, main_end] at which documents begin, repeats for empty
        documents.
    boundaries: int64, positions in [0, length] at which documents begin, the lookahead included: no
        token crosses one.
    closed: a document ends where the main part does, so no more of it will come.
    end: no slice follows.
    """

    length: int
    main_end: int
    context: bytes
    document_starts: NDArray[np.int64]
    boundaries: NDArray[np.int64]
    closed: bool
    end: bool


class SliceReader:
    """Reads a text source into buffers, slice by slice."""

    def __init__(self, source: TextSource, lookahead: int) -> None:
        """Take slices of `source`, each with `lookahead` bytes of the next behind it."""
        self._source = source
        self._lookahead = lookahead
        self._tail = np.empty(0, np.uint8)  # read already, not yet in any main part
        self._tail_starts = np.empty(0, np.int64)  # positions in the tail
        self._context = b""
        self._ended = False

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Fill `buffer` (uint8, longer than the lookahead) with the next slice; None at the end."""
        if self._ended:
            return None
        kept = len(self._tail)
        buffer[:kept] = self._tail
        fill = self._source.read_into(buffer[kept:])
        length = kept + fill.length
        starts = np.concatenate([self._tail_starts, fill.document_starts + kept])
        complete = fill.end or fill.closed
        main_end = length if complete else max(0, length - self._lookahead)
        # A start at the cut belongs to the next slice, unless no other bytes will follow it.
        cut = len(starts) if fill.end else int(np.searchsorted(starts, main_end, side="left"))
        piece = Slice(length, main_end, self._context, starts[:cut], starts, complete, fill.end)
        self._keep(buffer, piece, starts[cut:] - main_end)
        return piece

    def _keep(self, buffer: NDArray[np.uint8], piece: Slice, starts: NDArray[np.int64]) -> None:
        self._tail = buffer[piece.main_end : piece.length].copy()
        self._tail_starts = starts
        self._ended = piece.end
        self._context = b""
        if not piece.closed:
            self._context = context_at(buffer, piece.main_end, piece.boundaries, piece.context)
