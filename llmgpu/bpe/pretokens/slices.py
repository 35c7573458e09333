"""Cutting a text into slices that can be processed one by one, with the same result for any cuts.

- A slice begins at the start of a pre-token. No pattern looks back past this position, so the text
  before the slice does not matter, and the result can't depend on the cuts.
- The main part of a slice ends at the last position at which a pre-token starts whatever follows.
  The bytes after the main part are lookahead: the ends of the slice's pre-tokens depend on them.
- A pre-token that is longer than the memory for a slice gets a slice with separate memory.
- Greedy matching with pattern ``none``, whose pre-tokens are documents of any length, allows a cut
  anywhere, if the slice has as many bytes of lookahead as the longest token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import as_pattern
from llmgpu.errors import InputError
from llmgpu.spelling import spelled
from llmgpu.text.corpus import Corpus, TextSource
from llmgpu.text.documents import MANY_DOCUMENTS, NO_TEXT, Piece
from llmgpu.text.streams import FileBytes

MAX_WORD_BYTES = 1 << 30
# Longest text after a pre-token on which the pre-token's end may depend, in bytes.
_MORE_BYTES = 1 << 16
_END_BYTES = 1 << 8  # bytes at the end of an unread slice that are searched for a start


def word_too_long(nbytes: int) -> InputError:
    """Return the error for a pre-token above MAX_WORD_BYTES; nbytes: how many bytes were read."""
    return InputError(
        f"a pre-token has {nbytes:,} bytes or more, but the limit is {MAX_WORD_BYTES:,}: cut the "
        f"text into smaller documents ({spelled('--doc-separator', 'separators')}, .jsonl, more "
        f"files) or use another {spelled('--pattern')}"
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Slice(Piece):
    """A stretch of text, in memory or still in a file.

    Only pre-tokens that start before `main_end` belong to the slice; the text from `main_end` on is
    lookahead.

    buffer: uint8, the text, then PADDING bytes or more.
    file: byte range of a text still to be read, while `text` and `buffer` are empty; None if the
        text is in memory.
    offset: bytes of the whole text before the slice.
    main_end: the end of the main part. Pre-tokens of the slice end there or before, unless the text
        is cut anywhere.
    continues: whether the slice begins inside a pre-token, because the text is cut anywhere.
    apart: whether `buffer` is a separate array, because the text did not fit into the caller's
        buffer, or because the slice is not for the device to which that buffer belongs.
    """

    buffer: NDArray[np.uint8]
    main_end: int
    offset: int = 0
    continues: bool = False
    apart: bool = False
    file: FileBytes | None = None

    @property
    def length(self) -> int:
        """Number of bytes of the text, whether it is in memory or in a file."""
        return len(self.text) if self.file is None else self.file.nbytes

    def read(self, buffer: NDArray[np.uint8]) -> Slice:
        """Return the slice with its text in memory. Text of a file is read into `buffer` (uint8).

        Any thread may read a slice, any number of times. Raises InputError as `SliceReader.read`
        does.
        """
        if self.file is None:
            return self
        text = buffer[: self.length]
        self.file.read(text, 0)
        return replace(self, text=text, buffer=buffer, file=None)

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """The starts of documents in the slice: int64, positions in [0, main_end]."""
        # A document that starts at the cut belongs to the next slice, unless the text ends there.
        if self.end:
            return self.starts
        own = int(np.searchsorted(self.starts, self.main_end, side="left"))
        if len(self.starts) >= MANY_DOCUMENTS:
            # Of several documents that start at the cut, all but the last are empty. Leave the
            # empty documents in this slice, even if the slice has no text.
            own = max(own, int(np.searchsorted(self.starts, self.main_end, side="right")) - 1)
        return self.starts[:own]


class SliceSource(Protocol):
    """A source of the slices of a text; `read` returns them in order."""

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice, in `buffer` (uint8) if it fits; None at the end."""


class SliceReader:
    """Reads a text source into buffers, slice by slice."""

    def __init__(
        self, source: TextSource, pattern: str | Pattern, lookahead: int | None = None
    ) -> None:
        """Read slices of `source`, cut where pre-tokens of `pattern` start.

        lookahead: if given, slices end anywhere, with this many bytes of lookahead.
        """
        self._source = source
        self._pattern = as_pattern(pattern)
        self._lookahead = lookahead
        self._tail = NO_TEXT.text  # text that was read after the last main part
        self._tail_starts = NO_TEXT.starts  # starts of documents in the tail
        self._continues = False
        self._ended = False
        self._offset = 0  # position of the tail in the whole text

    def read(self, buffer: NDArray[np.uint8]) -> Slice | None:
        """Return the next slice, in `buffer` (uint8) if it fits; None at the end.

        Raises InputError if the source can't be read, or if a pre-token has more than
        MAX_WORD_BYTES.
        """
        apart = False
        while not self._ended:
            # The buffer must have room for the tail and more text.
            most = MAX_WORD_BYTES + _MORE_BYTES + PADDING
            if len(buffer) < min(2 * len(self._tail) + PADDING + 1, most):
                buffer = np.empty(min(2 * len(buffer) + PADDING, most), np.uint8)
                apart = True
                continue
            # Read until a cut is found or the buffer is full.
            piece, cut = self._fill(buffer[:-PADDING])
            found = Slice(
                piece.text,
                piece.starts,
                piece.closed,
                piece.end,
                buffer=buffer,
                main_end=cut,
                offset=self._offset,
                continues=self._continues,
                apart=apart,
            )
            own = len(found.document_starts)
            if not (cut or own or piece.end):
                if piece.length > MAX_WORD_BYTES:
                    raise word_too_long(piece.length)
                # No cut was found: the next round copies the whole text into a larger buffer.
                self._tail, self._tail_starts = found.text, piece.starts
                continue
            self._keep(found, piece.starts[own:] - cut)
            return found
        return None

    def take(self, nbytes: int, *, is_full: bool = True) -> Slice | None:
        """Return the next slice without reading its text from the file.

        nbytes: size of the buffer that the slice must fit. is_full: return only a slice that fills
        the buffer, not the last slice of a file.

        Returns None if the end of the slice can't be known without reading. The caller then calls
        `read`.
        """
        held, source = len(self._tail), self._source
        most = nbytes - PADDING - held
        least = max(2 * _END_BYTES, most if is_full else 0)
        if len(self._tail_starts) or self._lookahead is not None or most < least:
            return None
        if not isinstance(source, Corpus) or (file := source.upcoming(least, most, held)) is None:
            return None
        # Read only the last bytes here: they decide the end of the slice.
        end = np.empty(_END_BYTES, np.uint8)
        file.read(end, file.nbytes - len(end))
        last = self._pattern.last_certain_start(end)
        if not last:
            return None
        self._tail = end[last:]
        # Skip the range in the source, and store the bytes after the cut as the tail.
        source.skip(file.nbytes - held)
        found = Slice(
            NO_TEXT.text,
            NO_TEXT.starts,
            closed=False,
            buffer=NO_TEXT.text,
            main_end=file.nbytes - len(self._tail),
            offset=self._offset,
            file=file,
        )
        self._offset += found.main_end
        self._continues = False
        return found

    def _fill(self, room: NDArray[np.uint8]) -> tuple[Piece, int]:
        """Copy the tail into `room`, then read until a cut is found or `room` is full.

        Returns the text in `room`, and the position of the cut (0: no cut).
        """
        length, starts = len(self._tail), self._tail_starts
        room[:length] = self._tail
        searched = 0
        while True:
            piece = self._source.read_into(room[length:])
            starts = np.concatenate([starts, piece.starts + length])
            length += piece.length
            if piece.closed or piece.end:
                return Piece(room[:length], starts, closed=True, end=piece.end), length
            full = length == len(room)
            if len(starts) >= MANY_DOCUMENTS and starts[-1] == length:
                return Piece(room[:length], starts, closed=True), length
            cut = 0
            if self._lookahead is not None:
                cut = max(0, length - self._lookahead)
            elif full or length >= 2 * searched:
                # A search may scan the whole text, so search again only when the text has doubled.
                begin = int(starts[starts < length].max(initial=0))
                cut = self._pattern.last_start(room[:length], begin)
                searched = length
            if cut or full:
                return Piece(room[:length], starts, closed=False), cut

    def _keep(self, piece: Slice, starts: NDArray[np.int64]) -> None:
        self._tail = piece.text[piece.main_end :].copy()
        self._offset += piece.main_end
        self._tail_starts = starts
        self._ended = piece.end
        cut_inside = self._lookahead is not None and not piece.closed
        self._continues = cut_inside and not (len(starts) and starts[0] == 0)
