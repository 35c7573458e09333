"""Writing token ids, in four formats.

- ``ids``: decimal ids separated by single spaces, one line a document (an empty document is an
  empty line).
- ``jsonl``: ``{"ids": [1,2]}``, one line a document.
- ``npy``: one array of NumPy's format, all documents end to end.
- ``bin``: the same numbers raw, little-endian, with a side file ``PATH.json`` that says what they
  are; a pipe or a device gets no side file. A layout may put a header before them, see
  `llmgpu.tokens.layouts`.

The numbers of ``npy`` and ``bin`` are uint16 where every id of the vocabulary fits, else uint32.
Ids come piece by piece and are written at once; a document may go over any number of pieces.
Reading is `llmgpu.tokens.readers`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError, OutputError
from llmgpu.files import OutputFile, output_errors
from llmgpu.tokens.layouts import (
    LLMC_MAX_TOKENS,
    header_bytes,
    make_header,
    require_layout,
)

FORMATS = ("ids", "jsonl", "npy", "bin")
SIDE_FORMAT = "llmgpu-tokens"
SIDE_VERSION = 1

_UINT16_IDS = 1 << 16
_PIECE_IDS = 1 << 20  # ids made into text at a time


def id_dtype(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """The numbers that ids of a vocabulary are stored as: little-endian uint16 or uint32."""
    return np.dtype("<u2" if vocabulary_size <= _UINT16_IDS else "<u4")


def side_path(path: str | Path) -> str:
    """The name of the side file of the ``bin`` file `path`."""
    return f"{path}.json"


def require_ids(ids: NDArray[np.uint32], vocabulary_size: int) -> None:
    """Raise OutputError for an id that is beyond the vocabulary."""
    if len(ids) and int(ids.max()) >= vocabulary_size:
        raise OutputError(f"id {ids.max()} is beyond the vocabulary of {vocabulary_size} tokens")


class TokenSink(ABC):
    """Takes ids piece by piece; a context manager that gives up on an exception.

    ids, documents: taken so far.
    is_direct: what is written can be seen at once, so somebody may wait for it.
    """

    is_direct = False

    def __init__(self) -> None:
        self.ids = 0
        self.documents = 0

    def __enter__(self) -> Self:
        """Return the sink."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish, or give up if the block failed."""
        if kind is None:
            self.close()
        else:
            self.abort()

    @abstractmethod
    def write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        *,
        text_bytes: int = 0,
        closed: bool = False,
    ) -> None:
        """Take the next `ids`.

        document_starts: ascending positions in [0, len(ids)] at which documents begin, repeats for
            empty documents; the first piece of a stream has one at 0.
        text_bytes: bytes of text these ids stand for.
        closed: the next id, if any, is the first of a document: the line of the last one is
            finished now, not when the next begins (a document without ids is left open).

        OutputError when the ids can't be written or are beyond the vocabulary.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is missing and give what was written its name."""

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written, where that is possible."""


class TokenWriter(TokenSink):
    """Writes ids to one output."""

    def __init__(self, path: str | Path, vocabulary_size: int) -> None:
        """Open `path` ("-": standard output) for ids below `vocabulary_size`."""
        super().__init__()
        self._vocabulary_size = vocabulary_size
        self._output = OutputFile(path)
        self.is_direct = self._output.is_direct

    def write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        *,
        text_bytes: int = 0,
        closed: bool = False,
    ) -> None:
        """Write the next `ids`, see `TokenSink.write`."""
        require_ids(ids, self._vocabulary_size)
        with output_errors(self._output.path):
            self._write(ids, document_starts, text_bytes, closed)
            if self.is_direct:
                self._output.stream.flush()
        self.ids += len(ids)
        self.documents += len(document_starts)

    def close(self) -> None:
        """Write what is missing and give the file its name."""
        try:
            with output_errors(self._output.path):
                self._finish()
        except BaseException:
            self.abort()
            raise
        self._output.commit()

    def abort(self) -> None:
        """Remove what was written, where that is possible."""
        self._output.discard()

    @abstractmethod
    def _write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        text_bytes: int,
        closed: bool,
    ) -> None: ...

    @abstractmethod
    def _finish(self) -> None:
        """Complete what was written; nothing follows."""


class _TextWriter(TokenWriter):
    """Ids as decimal text: a cell of fixed width for each id, its unused bytes taken out at last.

    A cell is the separator that goes before an id, its digits, and zero bytes. A document's begin
    and end are cells of their own, put between those of the ids.
    """

    def __init__(
        self, path: str | Path, vocabulary_size: int, separator: bytes, before: bytes, after: bytes
    ) -> None:
        super().__init__(path, vocabulary_size)
        self._before, self._after = before, after
        longest = max(1 + len(str(vocabulary_size)), len(before), len(after))
        width = -(-longest // 8) * 8
        digits = np.arange(vocabulary_size).astype(f"S{width - 1}")
        self._cells = np.char.add(separator, digits).astype(f"S{width}")
        self._width = width
        self._is_open = False  # a document has begun and its end is not written
        self._is_empty = True  # no id of it is written

    def _write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        text_bytes: int,
        closed: bool,
    ) -> None:
        for begin in range(0, max(len(ids), 1), _PIECE_IDS):
            piece = ids[begin : begin + _PIECE_IDS]
            end = begin + len(piece)
            # A start between two pieces goes with the second.
            low = np.searchsorted(document_starts, begin)
            is_last = end == len(ids)
            high = len(document_starts) if is_last else np.searchsorted(document_starts, end)
            starts = document_starts[low:high] - begin
            self._output.stream.write(self._format(piece, starts))
        if closed and not self._is_empty:
            self._finish()

    def _format(self, ids: NDArray[np.uint32], starts: NDArray[np.int64]) -> bytes:
        cells = np.take(self._cells, ids)
        firsts = np.unique(starts[starts < len(ids)])
        if self._is_empty and len(ids):
            firsts = np.concatenate([np.zeros(1, np.int64), firsts])
        cells.view(np.uint8).reshape(-1, self._width)[firsts, 0] = 0  # no separator there
        if len(starts):
            borders = np.array([self._after, self._before], cells.dtype)
            borders = np.tile(borders, len(starts))[0 if self._is_open else 1 :]
            positions = np.repeat(starts, 2)[-len(borders) :]
            cells = np.insert(cells, positions, borders)
            self._is_open = True
            self._is_empty = bool(starts[-1] == len(ids))
        elif len(ids):
            self._is_empty = False
        return cells.tobytes().translate(None, b"\0")

    def _finish(self) -> None:
        if self._is_open:
            self._output.stream.write(self._after)
        self._is_open = False
        self._is_empty = True


class _NumbersWriter(TokenWriter):
    """Ids as raw numbers of the vocabulary's dtype, behind a header.

    The header has their count: known only at the end, so put in then. What can't be gone back to is
    collected in a temporary file first.
    """

    def __init__(self, path: str | Path, vocabulary_size: int) -> None:
        super().__init__(path, vocabulary_size)
        self._dtype = id_dtype(vocabulary_size)
        self._numbers: BinaryIO = self._output.stream
        header = self._header(0)
        self._is_collected = bool(header) and self.is_direct
        if self._is_collected:
            self._numbers = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        else:
            self._numbers.write(header)

    @abstractmethod
    def _header(self, count: int) -> bytes:
        """The bytes before `count` numbers, as many whatever it is."""

    def _write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        text_bytes: int,
        closed: bool,
    ) -> None:
        self._numbers.write(np.ascontiguousarray(ids, self._dtype).data.cast("B"))

    def _finish(self) -> None:
        stream, header = self._output.stream, self._header(self.ids)
        if self._is_collected:
            stream.write(header)
            self._numbers.seek(0)
            shutil.copyfileobj(self._numbers, stream, 1 << 20)
            self._numbers.close()
        elif header:
            stream.seek(0)
            stream.write(header)

    def abort(self) -> None:
        if self._is_collected:
            self._numbers.close()
        super().abort()


class _NpyWriter(_NumbersWriter):
    """Numbers behind the header of NumPy's format."""

    def _header(self, count: int) -> bytes:
        return _npy_header(self._dtype, count)


class BinWriter(_NumbersWriter):
    """Raw numbers in a layout; at the end a side file says what they are.

    continues: the first ids belong to the last document of the file before.
    """

    def __init__(
        self,
        path: str | Path,
        vocabulary_size: int,
        fingerprint: str,
        layout: str,
        *,
        continues: bool = False,
    ) -> None:
        """Open `path` for ids in one of LAYOUTS; InputError for another layout."""
        require_layout(layout)
        self._layout = layout
        super().__init__(path, vocabulary_size)
        self._fingerprint = fingerprint
        self._continues = continues
        self._text_bytes = 0
        self._offsets: list[NDArray[np.int64]] = []

    def _header(self, count: int) -> bytes:
        return make_header(self._layout, self._dtype, count)

    def _write(
        self,
        ids: NDArray[np.uint32],
        document_starts: NDArray[np.int64],
        text_bytes: int,
        closed: bool,
    ) -> None:
        if self._layout == "llmc" and self.ids + len(ids) > LLMC_MAX_TOKENS:
            raise OutputError(
                f"{self._output.path}: more than {LLMC_MAX_TOKENS} tokens, the most that a file of "
                "the layout llmc may have: use --shard-tokens"
            )
        super()._write(ids, document_starts, text_bytes, closed)
        self._offsets.append(document_starts + self.ids)
        self._text_bytes += text_bytes

    def close(self) -> None:
        """Write the side file, and give both their names."""
        if self.is_direct:
            super().close()
            return
        try:
            side = OutputFile(side_path(self._output.path))
        except BaseException:
            self.abort()
            raise
        try:
            with output_errors(side.path):
                side.stream.write(self._description())
            super().close()
        except BaseException:
            self.abort()
            side.discard()
            raise
        side.commit()

    def _description(self) -> bytes:
        offsets = np.concatenate(self._offsets).tolist() if self._offsets else []
        side = {
            "format": SIDE_FORMAT,
            "version": SIDE_VERSION,
            "dtype": self._dtype.name,
            "byte_order": "little",
            "layout": self._layout,
            "offset": header_bytes(self._layout),
            "count": self.ids,
            "bytes": self._text_bytes,
            "vocabulary_size": self._vocabulary_size,
            "fingerprint": self._fingerprint,
            "documents": self.documents,
            "continues": self._continues,
            "document_offsets": offsets,
        }
        return json.dumps(side).encode() + b"\n"


def open_writer(
    path: str | Path, format: str, *, vocabulary_size: int, fingerprint: str, layout: str = "raw"
) -> TokenWriter:
    """Open `path` ("-": standard output) for ids in one of FORMATS.

    vocabulary_size: number of ids; fingerprint: the vocabulary's, for the side file; layout: one
    of LAYOUTS, for ``bin``.
    InputError for an unknown format or layout, OutputError when `path` can't be written.
    """
    if format == "ids":
        return _TextWriter(path, vocabulary_size, b" ", b"", b"\n")
    if format == "jsonl":
        return _TextWriter(path, vocabulary_size, b",", b'{"ids": [', b"]}\n")
    if format == "npy":
        return _NpyWriter(path, vocabulary_size)
    if format == "bin":
        return BinWriter(path, vocabulary_size, fingerprint, layout)
    raise InputError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")


def _npy_header(dtype: np.dtype[np.unsignedinteger], count: int) -> bytes:
    """The 128 bytes before the numbers; as long whatever `count` is, so that it can be put in."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
