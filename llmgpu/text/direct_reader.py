"""Files whose bytes are the text as they are, read to where they are used."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import library
from llmgpu.cpu.texts import SMALL_BYTES, read_small_files
from llmgpu.text.content import HEAD_BYTES, look_at_text, looks_like_jsonl
from llmgpu.text.documents import NO_TEXT, InputPolicy, LineStarts, Piece
from llmgpu.text.streams import BYTES, ByteStream, FileBytes, Source

_FIRST = np.zeros(1, np.int64)
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)


def is_small(source: Source) -> bool:
    """Whether `read_small` may read a file, which is of a format whose bytes are text."""
    if source.remote or source.span or source.continues or source.compression:
        return False
    return 0 < (source.size or 0) <= SMALL_BYTES and source.changed_ns is not None


def read_small(sources: Sequence[Source], view: NDArray[np.uint8]) -> int:
    """Read small files end to end to the front of `view`; return how many.

    It stops at a file that is not plain text, or of which something is wrong: `DirectReader` reads
    that, and says what is.
    """
    if library() is None or os.name == "nt":
        return _read_one_by_one(sources, view)
    return read_small_files(
        [source.path for source in sources],
        [source.size or 0 for source in sources],
        [source.changed_ns or 0 for source in sources],
        [source.format == BYTES for source in sources],
        view,
    )


def _read_one_by_one(sources: Sequence[Source], view: NDArray[np.uint8]) -> int:
    end = 0
    for count, source in enumerate(sources):
        data = _read_plain(source)
        if data is None:
            return count
        view[end : end + len(data)] = np.frombuffer(data, np.uint8)
        end += len(data)
    return len(sources)


def _read_plain(source: Source) -> bytes | None:
    try:
        descriptor = os.open(source.path, _READ_FLAGS)
        try:
            data = os.read(descriptor, (source.size or 0) + 1)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if (len(data), status.st_size, status.st_mtime_ns) != (*[source.size] * 2, source.changed_ns):
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
