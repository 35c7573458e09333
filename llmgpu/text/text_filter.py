"""A text changed on its way to an encoder, piece by piece.

A filter may hold back what it can't decide yet, for as long as a document goes on; where one ends,
everything is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.corpus import ChunkReader, Fill, TextSource
from llmgpu.text.documents import Chunk

LEAST_BYTES = 1 << 14  # read at a time, however small the caller's buffer is


class TextFilter(Protocol):
    """What changes a text."""

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Chunk:
        """Return what is decided once the next `text` is there.

        starts: positions in it at which documents begin. final: a document ends with it.
        """
        ...


class FilteredSource:
    """A text source behind a filter."""

    def __init__(
        self, source: TextSource, text_filter: TextFilter, least_bytes: int = LEAST_BYTES
    ) -> None:
        """Take the source's text; least_bytes: read at a time, 1 or more."""
        self._source = source
        self._filter = text_filter
        self._block = np.empty(least_bytes, np.uint8)
        self._room = 0
        self._ended = False
        self._reader = ChunkReader(self._chunks(), None)

    def read_into(self, buffer: NDArray[np.uint8]) -> Fill:
        """Write the next bytes of text to the front of a buffer, as `Corpus.read_into` does."""
        self._room = len(buffer)
        while True:
            length, starts = self._reader.read(buffer)
            end = self._ended and self._reader.is_used_up
            if length or len(starts) or end:
                return Fill(length, starts, self._reader.closed, end)

    def _chunks(self) -> Iterator[Chunk]:
        while not self._ended:
            if len(self._block) < self._room:
                self._block = np.empty(self._room, np.uint8)
            fill = self._source.read_into(self._block)
            self._ended = fill.end
            text = self._block[: fill.length]
            yield self._filter.feed(text, fill.document_starts, fill.closed or fill.end)
