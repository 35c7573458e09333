"""Files whose bytes are the text as they are, read to where they are used."""

from __future__ import annotations

import codecs
import os

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.content import HEAD_BYTES, look_at_text, looks_like_jsonl
from llmgpu.text.documents import NO_TEXT, InputPolicy, LineStarts, Piece
from llmgpu.text.streams import BYTES, ByteStream, FileBytes, Source

_FIRST = np.zeros(1, np.int64)
_SMALL_BYTES = 1 << 16
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)


def small_text(source: Source) -> bytes | None:
    """Return all of a small file in which there is nothing but text: it takes less time so.

    None for any other, and where something is wrong: `DirectReader` reads those, and says what is.
    source: of a format whose bytes are text.
    """
    size = source.size
    if not size or size > _SMALL_BYTES or source.remote or source.span or source.continues:
        return None
    if source.compression:
        return None
    try:
        descriptor = os.open(source.path, _READ_FLAGS)
        try:
            data = os.read(descriptor, size + 1)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if (len(data), status.st_size, status.st_mtime_ns) != (size, size, source.changed_ns):
        return None
    head = data[:HEAD_BYTES]
    is_plain = look_at_text(head) == (True, True) and not head.startswith(codecs.BOM_UTF8)
    return data if source.format == BYTES or (is_plain and not looks_like_jsonl(head, 2)) else None


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
