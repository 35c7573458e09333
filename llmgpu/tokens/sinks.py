"""Sinks of token ids, and the common code of all formats: ids are written slice by slice.

Numbers are uint16 if every id of the vocabulary fits, uint32 otherwise. Format ``npy`` is one array
of NumPy's format, in which documents follow each other without a mark.

On a RAM disk, writing numbers spends most time on allocating new pages of memory. So several
threads write, or one thread allocates pages before the first ids are written.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ctypes import byref, c_int
from dataclasses import replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import Closing, undoing
from llmgpu.cpu.library import address_of, library
from llmgpu.errors import InputError, OutputError
from llmgpu.files import OutputFile, output_errors
from llmgpu.machine import free_memory, usable_processors
from llmgpu.pipeline import start_thread
from llmgpu.text.streams import BYTES, ByteStream, Source

BLOCK_BYTES = 1 << 20  # bytes read at a time
MAX_ID = (1 << 32) - 1
HEADER_BYTES = 128  # header of every array that llmgpu writes
_MAX_HEADER_BYTES = 1 << 16
# For texts of at least as many bytes, reserving memory for the ids saves time.
_LEAST_RESERVED = 64 << 20
_TOKEN_BYTES = 4  # usual bytes of text per token
_LEAST_SHARED = 4 << 20  # for at least as many bytes, starting threads saves time
# The largest share of the free memory that is reserved for a file is 1 / _MOST_OF_FREE.
_MOST_OF_FREE = 4
_WRITE_THREADS = min(4, usable_processors() // 2)  # more than 4 threads write no faster

# Errors that NumPy raises while it parses the Python literal in a header.
_HEADER_ERRORS = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError)

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
    """Counts ids slice by slice. Subclasses also write them, and remove the output on an exception.

    ids, documents, text_bytes: numbers of ids, of documents and of bytes of text written so far.
    is_direct: whether each slice is written before the next one is encoded, because a reader may be
        waiting for it, or because writing takes no time.
    """

    def __init__(self, *, is_direct: bool = False) -> None:
        self.ids = self.documents = self.text_bytes = 0
        self.is_direct = is_direct

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

    def write(self, piece: EncodedSlice) -> None:
        """Write the next ids, prepared or not, and add their sizes to the counts.

        piece: the first slice of a text has a document start at 0. If a slice is closed, the line
        of its last document is ended by this call. The line of an open document, or of a last
        document without ids, is ended when the next document starts or the sink is closed.

        Raises OutputError for ids that can't be written or are not in the vocabulary.
        """
        self._write(self.prepare(piece) if piece.content is None else piece)
        self.ids += len(piece.ids)
        self.documents += len(piece.document_starts)
        self.text_bytes += piece.text_bytes

    def _write(self, piece: EncodedSlice) -> None:
        """Write a slice that `prepare` has returned."""

    def close(self) -> None:
        """Complete the output, and give it its final name."""

    def abort(self) -> None:
        """Remove the unfinished output, if possible."""


class TokenWriter(TokenSink):
    """Writes ids to one output."""

    def __init__(self, path: str | Path, vocabulary: Vocabulary) -> None:
        """Open `path` ("-": standard output) for the ids of a vocabulary."""
        super().__init__()
        self._vocabulary = vocabulary
        self._output = OutputFile(path)
        self.is_direct = self._output.is_direct

    def prepare(self, piece: EncodedSlice) -> EncodedSlice:
        """Check ids, and convert the ids to bytes; see `TokenSink.prepare`."""
        require_ids(piece.ids, self._vocabulary.size)
        return replace(piece, content=self._content(piece))

    def _write(self, piece: EncodedSlice) -> None:
        with output_errors(self._output.path):
            self._put(piece)
            if self.is_direct:
                self._output.stream.flush()

    def close(self) -> None:
        """Complete the file, and give it its final name."""
        with undoing(self.abort), output_errors(self._output.path):
            self._finish()
        self._output.commit()

    def abort(self) -> None:
        """Remove the unfinished output, if possible."""
        self._output.discard()

    def _content(self, piece: EncodedSlice) -> Any:
        """Return the bytes of a slice for `_put`. Any thread may call this."""
        return None

    @abstractmethod
    def _put(self, piece: EncodedSlice) -> None:
        """Write a prepared slice in the format of the output."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the output after the last ids."""


def npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    """Return the 128 bytes before `count` numbers."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({count},), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


class Reservation:
    """Memory for a file on a RAM disk, reserved by a thread before the first ids are written.

    No memory is reserved for files on other disks.
    """

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        """Begin to reserve memory for the first `nbytes` of a file.

        The file's length does not change.

        At most 1/4 of the free memory is reserved, and none if the process can't start a thread.
        Raises OSError if the process has no descriptor left.
        """
        # A duplicate, because another thread may close the file.
        self._descriptor = os.dup(file.fileno())
        self._has_ended = c_int()
        self._threads: list[threading.Thread] = []
        start_thread(partial(self._reserve, nbytes), self._threads)

    def _reserve(self, nbytes: int) -> None:
        free, loaded = free_memory(), library()
        if loaded is not None:
            most = nbytes if free is None else min(nbytes, free // _MOST_OF_FREE)
            loaded.llmgpu_reserve(self._descriptor, most, byref(self._has_ended))

    def end(self) -> None:
        """Stop reserving disk space ahead of the writes, and free the space beyond the end."""
        self._has_ended.value = True
        for thread in self._threads:
            thread.join()
        with suppress(OSError):  # after an error the file keeps the space
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size)
        os.close(self._descriptor)


def write_in_parts(file: BinaryIO, content: memoryview) -> None:
    """Write `content` at the position of a file that no other process writes.

    Several threads write 4 MiB or more to a RAM disk.
    """
    loaded, count = library(), 0
    if loaded is not None and len(content) >= _LEAST_SHARED and _WRITE_THREADS > 1:
        file.flush()
        data = np.frombuffer(content, np.uint8)
        place, begin = address_of(data), file.tell()
        count = loaded.llmgpu_write(file.fileno(), place, len(data), begin, _WRITE_THREADS)
        file.seek(begin + count)
    file.write(content[count:])


class NumbersWriter(TokenWriter):
    """Writes ids as plain numbers of the vocabulary's type, after a header.

    The header contains the number of ids, which is known only at the end. So `_finish` overwrites
    the header; an output without seeking is collected in a temporary file first.
    """

    def __init__(self, path: str | Path, vocabulary: Vocabulary) -> None:
        super().__init__(path, vocabulary)
        self._dtype = id_dtype(vocabulary.size)
        self._numbers: BinaryIO = self._output.stream
        header = self._header(0)
        self._reservations = ExitStack()  # closing it ends them
        self._is_collected = bool(header) and self.is_direct
        if self._is_collected:
            import tempfile

            self._numbers = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
        else:
            self._numbers.write(header)

    @abstractmethod
    def _header(self, count: int) -> bytes:
        """Return the bytes before the numbers. The length does not depend on `count`."""

    def expect(self, text_bytes: int | None) -> None:
        """Reserve memory for the ids of a text, see `TokenSink.expect`."""
        if text_bytes is None or text_bytes < _LEAST_RESERVED or self.is_direct:
            return
        nbytes = text_bytes // _TOKEN_BYTES * self._dtype.itemsize
        with suppress(OSError):  # writing also works without a reservation
            self._reservations.callback(Reservation(self._numbers, nbytes).end)

    def _content(self, piece: EncodedSlice) -> memoryview:
        return np.ascontiguousarray(piece.ids, self._dtype).data.cast("B")

    def _put(self, piece: EncodedSlice) -> None:
        if self._is_collected or not self.is_direct:
            write_in_parts(self._numbers, piece.content)
        else:
            self._numbers.write(piece.content)

    def _finish(self) -> None:
        stream, header = self._output.stream, self._header(self.ids)
        self._reservations.close()
        if self._is_collected:
            stream.write(header)
            self._numbers.seek(0)
            shutil.copyfileobj(self._numbers, stream, 1 << 20)
            self._numbers.close()
        elif header:
            stream.seek(0)
            stream.write(header)

    def abort(self) -> None:
        """Remove the unfinished output, if possible."""
        self._reservations.close()
        if self._is_collected:
            self._numbers.close()
        super().abort()


class NpyWriter(NumbersWriter):
    """Writes numbers after the header of NumPy's format."""

    def _header(self, count: int) -> bytes:
        return npy_header(self._dtype, count)


def read_npy(name: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of an array of one dimension in blocks."""
    with open_stream(name) as stream:
        buffered = io.BufferedReader(stream, BLOCK_BYTES)
        dtype, count = _npy_layout(buffered, name)
        yield from read_numbers(buffered, name, dtype, count)


def _npy_layout(stream: io.BufferedReader[Any], name: str) -> tuple[np.dtype[np.integer], int]:
    try:
        version = npy_format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
            if int.from_bytes(stream.peek(4)[:4], "little") > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of more than {_MAX_HEADER_BYTES} bytes")
            shape, _, dtype = npy_format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is not read")
    except _HEADER_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: not an npy file of ids ({reason})") from error
    if len(shape) != 1 or shape[0] < 0:
        raise InputError(f"{name}: an array of shape {shape}, but ids are one row of numbers")
    if not np.issubdtype(dtype, np.integer):
        raise InputError(f"{name}: an array of {dtype}, but ids are whole numbers")
    return dtype, shape[0]


def read_numbers(
    stream: io.BufferedIOBase, name: str, dtype: np.dtype[np.integer], count: int | None
) -> Iterator[NDArray[np.int64]]:
    """Yield `count` numbers as ids, or all numbers for None; the stream must end there."""
    done = 0
    rest = b""  # beginning of a number that continues in the next block
    while block := stream.read1(BLOCK_BYTES):
        data = rest + block
        whole = len(data) // dtype.itemsize
        rest = data[whole * dtype.itemsize :]
        numbers = np.frombuffer(data, dtype, whole)
        if count is not None and done + whole > count:
            raise InputError(f"{name}: more bytes than its {count} ids take")
        if whole and not 0 <= int(numbers.min()) <= int(numbers.max()) <= MAX_ID:
            place = int(np.argmax((numbers < 0) | (numbers > MAX_ID)))
            raise not_an_id(f"{name}, number {done + place}", str(numbers[place]))
        done += whole
        if whole:
            yield numbers.astype(np.int64)
    if rest or (count is not None and done < count):
        expected = "a whole number of ids" if count is None else f"{count} ids"
        raise InputError(f"{name}: ends after {done} ids and {len(rest)} bytes, not {expected}")
