"""Sinks of token ids, and the common code of all formats: ids are written slice by slice.

Numbers are uint16 if every id of the vocabulary fits, uint32 otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.closing import Closing
from llmgpu.errors import InputError, OutputError
from llmgpu.files import OutputFile, output_errors
from llmgpu.text.streams import BYTES, ByteStream, Source

BLOCK_BYTES = 1 << 20  # bytes read at a time
MAX_ID = (1 << 32) - 1

_UINT16_IDS = 1 << 16


def id_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the type in which ids of a vocabulary are stored: little-endian uint16 or uint32."""
    return np.dtype("<u2" if vocabulary_size <= _UINT16_IDS else "<u4")


def require_ids(ids: NDArray[np.uint32], vocabulary_size: int) -> None:
    """Raise OutputError if an id is not in the vocabulary."""
    if len(ids) and int(ids.max()) >= vocabulary_size:
        raise OutputError(f"id {ids.max()} is beyond the vocabulary of {vocabulary_size} tokens")


def not_an_id(where: str, shown: str) -> InputError:
    """Return the error for text where an id is expected."""
    return InputError(f"{where}: {shown} is not a token id (a number from 0 to {MAX_ID})")


def open_stream(name: str) -> ByteStream:
    """Open a file, or standard input for "-", as bytes; InputError if that fails."""
    return ByteStream(Source(name, None, format=BYTES))


class TokenSink(Closing):
    """Writes ids slice by slice; a context manager that removes the output on an exception.

    ids, documents: numbers of ids and documents written so far.
    is_direct: whether output is visible at once, so that a reader may be waiting for it.
    """

    is_direct = False

    def __init__(self) -> None:
        self.ids = 0
        self.documents = 0

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            self.abort()

    def expect(self, text_bytes: int | None) -> None:
        """Announce the bytes of the next text before its first ids; None if unknown.

        A sink may use the announcement to reserve memory for the ids.
        """

    def prepare(self, piece: EncodedSlice) -> EncodedSlice:
        """Return the slice for `write`; its `content` is set if it depends on the ids alone.

        Several threads may call `prepare` at a time. Raises OutputError as `write` does.
        """
        return piece

    @abstractmethod
    def write(self, piece: EncodedSlice) -> None:
        """Write the next ids, prepared or not.

        piece: the first slice of a text has a document start at 0. If a slice is closed, the line
        of its last document is ended by this call. The line of an open document, or of a last
        document without ids, is ended when the next document starts or the sink is closed.

        Raises OutputError for ids that can't be written or are not in the vocabulary.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete the output, and give it its final name."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the unfinished output, if possible."""


class TokenWriter(TokenSink):
    """Writes ids to one output.

    match_facts: facts about the match rule for side files, see `Vocabulary.match_facts`.
    """

    def __init__(self, path: str | Path, vocabulary_size: int) -> None:
        """Open `path` ("-": standard output) for ids below `vocabulary_size`."""
        super().__init__()
        self.match_facts: Mapping[str, str] = {}
        self._vocabulary_size = vocabulary_size
        self._output = OutputFile(path)
        self.is_direct = self._output.is_direct

    def prepare(self, piece: EncodedSlice) -> EncodedSlice:
        """Check ids, and convert the ids to bytes; see `TokenSink.prepare`."""
        require_ids(piece.ids, self._vocabulary_size)
        return replace(piece, content=self._content(piece))

    def write(self, piece: EncodedSlice) -> None:
        """Write the next ids, see `TokenSink.write`."""
        prepared = self.prepare(piece) if piece.content is None else piece
        with output_errors(self._output.path):
            self._write(prepared)
            if self.is_direct:
                self._output.stream.flush()
        self.ids += len(piece.ids)
        self.documents += len(piece.document_starts)

    def close(self) -> None:
        """Complete the file, and give it its final name."""
        try:
            with output_errors(self._output.path):
                self._finish()
        except BaseException:
            self.abort()
            raise
        self._output.commit()

    def abort(self) -> None:
        """Remove the unfinished output, if possible."""
        self._output.discard()

    def _content(self, piece: EncodedSlice) -> Any:
        """Return the bytes of a slice for `_write`. Any thread may call this."""
        return None

    @abstractmethod
    def _write(self, piece: EncodedSlice) -> None: ...

    @abstractmethod
    def _finish(self) -> None:
        """Complete the output after the last ids."""
