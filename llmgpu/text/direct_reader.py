"""Files whose bytes are the text as they are, read to where they are used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.documents import NO_TEXT, InputPolicy, LineStarts, Piece
from llmgpu.text.streams import ByteStream, FileBytes

_FIRST = np.zeros(1, np.int64)


class DirectReader:
    """Reads a file into the caller's buffer: its text is the file's bytes as they are.

    The buffer may be mapped memory of a device, which is slow to read: text that has to be
    inspected is read into ordinary memory first.
    """

    def __init__(
        self,
        stream: ByteStream,
        policy: InputPolicy,
        line_documents: bool,
        block: NDArray[np.uint8] | None,
        continues: bool,
    ) -> None:
        """Read `stream`; block: memory to inspect text in, None if nothing has to be inspected.

        continues: it begins inside a document.
        """
        self._stream = stream
        self._policy = policy
        self._lines = LineStarts() if line_documents else None
        self._block = block
        self._begun = continues
        self.wait = stream.wait

    def read(self, view: NDArray[np.uint8]) -> Piece:
        """Read the next bytes into `view`."""
        block = view if self._block is None else self._block[: len(view)]
        count = self._stream.readinto(block)
        text, end = block[:count], count == 0
        if self._block is not None:
            view[:count] = text
        if self._policy.policy == "strict":
            self._policy.check(text, end)
        elif self._stream.is_invalid:
            self._policy.count(text.tobytes(), end)
        if self._lines:
            piece = self._lines.find(text)
            return Piece(view[:count], piece.starts, piece.closed or end, end)
        starts = NO_TEXT.starts if self._begun else _FIRST
        self._begun = True
        return Piece(view[:count], starts, end, end)

    def upcoming(self, least: int, most: int) -> FileBytes | None:
        """Return the next bytes of a document unread; None where they may not be all of it."""
        inspects = self._stream.is_invalid or self._block is not None or self._lines is not None
        return self._stream.upcoming(least, most) if self._begun and not inspects else None
