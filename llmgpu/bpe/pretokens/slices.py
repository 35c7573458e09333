"""Cutting a text into slices that can be worked on one after the other, wherever they are cut.

- A slice begins where a pre-token starts. No pattern looks behind that, so nothing of what was
  before matters to it, and the result can't depend on where the text is cut.
- It ends at the last place at which a pre-token is certain to start, whatever follows; the bytes
  behind that are there because it depends on them where the pre-tokens before end.
- A pre-token that is longer than the memory for a slice gets a slice in memory of its own.
- Greedy matching of pattern ``none``, whose pre-tokens are documents of any length, can do with
  cuts anywhere, if as many bytes follow as the longest token has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.pattern import last_start
from llmgpu.bpe.words.distinct_words import MAX_WORD_BYTES, word_too_long
from llmgpu.text.corpus import TextSource


@dataclass(frozen=True, eq=False)
class Slice:
    """A part of a text.

    buffer: uint8, the text at its front, PADDING bytes or more behind it.
    length: bytes of the text, those behind the main part included.
    main_end: where the main part ends; pre-tokens that start before it belong to the slice, and
        end by there unless the text is cut anywhere.
    continues: the slice begins inside of a pre-token, so the text is cut anywhere.
    document_starts: int64, positions in [0, main_end] at which documents begin, repeats for empty
        documents.
    boundaries: int64, positions in [0, length] at which documents begin.
    closed: a document ends with the text.
    end: no slice follows.
    oversized: the text did not fit into the memory for it.
    """

    buffer: NDArray[np.uint8]
    length: int
    main_end: int
    continues: bool
    document_starts: NDArray[np.int64]
    boundaries: NDArray[np.int64]
    closed: bool
    end: bool
    oversized: bool

    @property
    def text(self) -> NDArray[np.uint8]:
        """The text: uint8 (length,), a view of the buffer."""
        return self.buffer[: self.length]


class SliceReader:
    """Reads a text source into buffers, slice by slice."""

    def __init__(self, source: TextSource, pattern: str, lookahead: int | None = None) -> None:
        """Take slices of `source`, cut where pre-tokens of `pattern` start.

        lookahead: cut anywhere instead, with so many bytes of the next slice behind each.
        """
        self._source = source
        self._pattern = pattern
        self._lookahead = lookahead
        self._tail = np.empty(0, np.uint8)  # read already, not yet in any main part
        self._tail_starts = np.empty(0, np.int64)  # where documents begin in it
        self._continues = False
        self._ended = False

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice, in `buffer` (uint8) if it fits; None at the end.

        Raises InputError if the source can't be read, or a pre-token that is not cut has more than
        MAX_WORD_BYTES.
        """
        oversized = False
        while not self._ended:
            if len(buffer) < 2 * len(self._tail) + PADDING + 1:
                buffer, oversized = np.empty(2 * len(buffer) + PADDING, np.uint8), True
                continue
            length, starts, cut, closed, end = self._fill(buffer[:-PADDING])
            # A start at the cut belongs to the next slice, unless no other bytes will follow it.
            own = len(starts) if end else int(np.searchsorted(starts, cut, side="left"))
            piece = Slice(
                buffer, length, cut, self._continues, starts[:own], starts, closed, end, oversized
            )
            self._keep(piece, starts[own:] - cut)
            if cut or own or end:
                return piece
            if length > MAX_WORD_BYTES:
                raise word_too_long(length)
        return None

    def _fill(self, room: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64], int, bool, bool]:
        """Put the tail into `room` and read on until there is a place to cut, or no room.

        Returns the bytes there are, where documents begin, where to cut (0: nowhere), whether a
        document ends with the text, and whether it is the end.
        """
        length, starts = len(self._tail), self._tail_starts
        room[:length] = self._tail
        searched = 0
        while True:
            fill = self._source.read_into(room[length:])
            starts = np.concatenate([starts, fill.document_starts + length])
            length += fill.length
            if fill.closed or fill.end:
                return length, starts, length, True, fill.end
            full = length == len(room)
            cut = 0
            if self._lookahead is not None:
                cut = max(0, length - self._lookahead)
            elif full or length >= 2 * searched:
                cut = last_start(room[:length], self._pattern, starts)
                searched = length
            if cut or full:
                return length, starts, cut, False, False

    def _keep(self, piece: Slice, starts: NDArray[np.int64]) -> None:
        self._tail = piece.buffer[piece.main_end : piece.length].copy()
        self._tail_starts = starts
        self._ended = piece.end
        cut_inside = self._lookahead is not None and not piece.closed
        self._continues = cut_inside and not (len(starts) and starts[0] == 0)
