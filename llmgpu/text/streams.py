"""Files opened as streams of decompressed bytes, and formats recognized by their first bytes.

- The suffix of a file decides its compression. For standard input, the first bytes decide, see
  `llmgpu.text.compressions`.
- A file that is read as text is refused if it is certainly binary, because its tokens would mean
  nothing. It is certainly binary if its first bytes have the mark of a format, and also control
  characters or invalid UTF-8, which text does not have.
- Zero bytes alone do not prove a binary format, and only cause a note.
- ``--input-format bytes`` (`llmgpu.text.sources.Selection`) accepts all bytes.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat, takewhile
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import address_of, library
from llmgpu.errors import InputError
from llmgpu.file_kinds import binary_kind
from llmgpu.input_files import STANDARD_INPUT, input_errors, read_error, source_name
from llmgpu.machine import usable_processors
from llmgpu.pipeline import Begun
from llmgpu.spelling import spelled
from llmgpu.text.compressions import COMPRESSIONS, PACKAGES, Decompressor, read_errors
from llmgpu.text.documents import InputPolicy, Piece, Template
from llmgpu.text.remote import RemoteFile, RemoteSource

AUTO, TEXT, BYTES = "auto", "text", "bytes"  # formats of sources, see `llmgpu.text.sources`

_DECOMPRESSED_BYTES = 1 << 20
_PART_BYTES = 2 << 20  # bytes of a regular file for each reading thread
_PIPE_BYTES = 1 << 20  # the largest buffer of a pipe that Linux grants to any user by default
_READ_THREADS = 8  # more threads read a file no faster
_FILES_AHEAD = 8  # most files that are opened before their turn
_BLOCK_BYTES = 1 << 20  # bytes that a thread decompresses in one step
_BLOCKS_AHEAD = 8  # blocks that a thread decompresses in advance


def files_ahead() -> int:
    """Return how many files to open before their turn: 0 with a single processor."""
    processors = min(usable_processors(), _FILES_AHEAD)
    return processors if processors > 1 else 0


class Source(NamedTuple):
    """A file of a corpus.

    path: name of the file, "-" for standard input.
    size: bytes on disk; None for a pipe or a device.
    changed_ns: time of the last change, in nanoseconds; None if unknown.
    remote: a file of another machine; None for a local file.
    span: begin and end of the bytes to read; None for the whole file. Of a .parquet, the rows that
        would begin in the span if all rows had the same size.
    continues: whether the span begins inside a document.
    format: see `input_format` of `llmgpu.text.sources.Selection`.
    """

    path: str
    size: int | None
    changed_ns: int | None = None
    remote: RemoteSource | None = None
    span: tuple[int, int] | None = None
    continues: bool = False
    format: str = AUTO

    @property
    def length(self) -> int | None:
        """Bytes to read on disk; None if unknown."""
        return self.size if self.span is None else self.span[1] - self.span[0]

    @property
    def begin(self) -> int:
        """The offset in the file at which reading begins."""
        return self.span[0] if self.span else 0

    @property
    def facts(self) -> list[str | int]:
        """Name, bytes, and time of change or version; standard input has only a name.

        If the facts are equal, the text is taken for the same.
        """
        if self.path == STANDARD_INPUT:
            return [self.path]
        changed = self.changed_ns if self.remote is None else self.remote.version
        return [self.path, self.size or 0, changed or 0]

    @property
    def is_file(self) -> bool:
        """Whether this is a regular file of this machine."""
        return self.size is not None and self.remote is None

    def open(self) -> BinaryIO:
        """Open the file, or standard input; OSError or InputError if that fails."""
        if self.remote is not None:
            return cast(BinaryIO, RemoteFile(self.remote))
        if self.path != STANDARD_INPUT:
            return cast(BinaryIO, open(self.path, "rb", buffering=0))
        if sys.stdin is None:
            raise OSError("standard input is closed")
        return cast(BinaryIO, getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))

    @property
    def suffix(self) -> str:
        """The part of the name from its last dot on, in lower case."""
        return self.path[self.path.rfind(".") :].lower()

    @property
    def compression(self) -> str:
        """The suffix of the name if it is a key of COMPRESSIONS, else ""."""
        suffix = self.suffix
        return suffix if suffix in COMPRESSIONS else ""


class DocumentFile(Protocol):
    """An open file of a format with several documents; see `llmgpu.text.sources.FORMATS`.

    has_lines: whether documents are lines. A file of lines may be compressed, and spans of it begin
        and end between lines. Spans of other files may have any bounds.
    position: number of bytes on disk that have been read, approximately.
    """

    has_lines: ClassVar[bool]
    position: int

    @staticmethod
    def check(source: Source) -> None:
        """Raise InputError if a package is missing, or the format can't be read from a pipe."""

    def __init__(self, source: Source, text_field: str, template: Template | None = None) -> None:
        """Open the file.

        text_field: name of the field or column with a document's text. template: composes the text
        from several fields, in place of `text_field`.
        """

    def documents(self, policy: InputPolicy) -> Iterator[Piece]:
        """Yield the documents of the file in order. A piece has one or more whole documents.

        NO_TEXT ends the file early: no later document fits the limit of the text.

        Rows without text are left out, and counted in `policy.null_rows`.

        Raises InputError with the name of the file and the place in the file.
        """

    def begin(self) -> None:
        """Read the first blocks of the file before its turn. Any thread may call this."""

    def check_unchanged(self) -> None:
        """Raise InputError if the file was changed after it was found."""

    def close(self) -> None:
        """Close the file."""


def with_status(source: Source, file: BinaryIO) -> Source:
    """Return the source with its size and time of change; the size is None for a pipe.

    A source that has both already keeps them. Any other source gets both from the open file.
    """
    if source.remote is not None:
        return source
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            if source.size is None or source.changed_ns is None:
                return source._replace(size=status.st_size, changed_ns=status.st_mtime_ns)
            return source
    return source._replace(size=None)


def check_unchanged(source: Source, file: BinaryIO | FileBytes) -> None:
    """Raise InputError if a file has changed since it was found; source: see `with_status`."""
    if source.remote is not None:
        source.remote.check()
    elif source.size is not None:
        status = os.fstat(file.fileno())
        size = status.st_size
        if (size, status.st_mtime_ns) != (source.size, source.changed_ns):
            what = f"has {size} now" if size != source.size else "was rewritten at the same length"
            raise InputError(
                f"{source_name(source.path)} was changed while it was read: it had {source.size} "
                f"bytes and {what}; read it again, or a copy of it"
            )


def read_at(
    source: Source, file: BinaryIO | FileBytes, data: NDArray[np.uint8], offset: int
) -> None:
    """Fill `data` with the bytes of an open file from `offset` on. Any thread may call this.

    source: see `with_status`. Raises InputError if the file can't be read, or is shorter than
    it was.
    """
    done = 0
    try:
        while done < len(data):
            got = _read_parts(file.fileno(), data[done:].data, offset + done)
            if not got:
                raise OSError("it is shorter than it was")
            done += got
    except OSError as error:
        check_unchanged(source, file)
        raise read_error(source.path, error) from error


class ByteStream(io.RawIOBase):
    """The decompressed bytes of one source. Every failure is an InputError that names the source.

    position: bytes of the source on disk that have been read.
    notes: entries of NOTES that apply to the first bytes of the source.
    is_invalid: whether the first bytes of the text have invalid UTF-8.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.name, self._source = source.path, source
        self._compression = source.compression
        self.position = 0
        self.notes: list[str] = []
        self.is_invalid = False
        self._is_begin = source.begin == 0 and not source.continues
        self._pollable: int | None = None  # descriptor of a pipe, a terminal or a device
        # Open the source. For standard input, the first bytes decide the compression.
        try:
            with input_errors(self.name):
                self._raw = source.open()
                self._source = with_status(source, self._raw)
                if source.path == STANDARD_INPUT and source.format != BYTES:
                    is_file = self._source.is_file
                    self._raw, self._compression = _begin_input(self._raw, is_file=is_file)
                if not self._compression:
                    self._pollable = _pollable_descriptor(self._raw)
            is_plain = self._source.is_file and not self._compression
            self._is_plain_file = is_plain and hasattr(os, "preadv")
        except InputError:
            super().close()  # `self.close` would close a stream that was not opened
            raise
        # Decompress while reading; a thread decompresses a local file ahead.
        self._stream = cast(Decompressor, self._raw)
        self._blocks: Begun[None, tuple[memoryview, int]] | None = None
        if self._compression:
            self._stream = COMPRESSIONS[self._compression](self._raw)
            if source.is_file and files_ahead():
                self._decompress_ahead()
        self._length = None if source.span is None else source.length
        if source.span is not None:
            self._raw.seek(source.begin)

    def _decompress_ahead(self) -> None:
        is_ended = False

        def decompress(_: None) -> tuple[memoryview, int]:
            """Return the next block, and the position in the file after it."""
            nonlocal is_ended
            block, count = np.empty(_BLOCK_BYTES, np.uint8).data, 0
            while count < len(block) and (got := self._stream.readinto(block[count:])):
                count += got
            is_ended = count < len(block)
            return block[:count], self._raw.tell()

        jobs = takewhile(lambda _: not is_ended, repeat(None))
        self._blocks = Begun(jobs, decompress, _BLOCKS_AHEAD, threads=1)
        self._decompressed = iter(self._blocks)
        self._block, self._after_block = memoryview(b""), 0

    def begin(self) -> None:
        """Decompress the first blocks before the file's turn. Any thread may call this."""
        if self._blocks is not None:
            self._blocks.begin(_BLOCKS_AHEAD)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        """Fill the front of `buffer` with one or more bytes that are ready; return 0 at the end."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._length is not None:
            view = view[: self._length - self.position]
        if self._compression:  # a decompressor copies its result, so a smaller view saves memory
            view = view[:_DECOMPRESSED_BYTES]
        try:
            count = self._read(view)
            while count is None:  # None: a non-blocking descriptor has no bytes yet
                self.wait(None)
                count = self._read(view)
        except read_errors() as error:
            self.check_unchanged()
            raise InputError(self._describe(error)) from error
        if self._blocks is None:
            self.position = self._raw.tell() if self._compression else self.position + count
        if count == 0:
            self.check_unchanged()
        elif self._is_begin:
            self._is_begin = False
            self._inspect(bytes(view[: min(count, HEAD_BYTES)]))
        return count

    def _inspect(self, head: bytes) -> None:
        """Check the first bytes of a text; InputError if they are of another format."""
        if self._source.format not in (AUTO, TEXT) or type(self) is not ByteStream:
            return
        is_input = self.name == STANDARD_INPUT
        zeros, mark, jsonl, array = NOTES
        self.notes += [mark] if head.startswith(codecs.BOM_UTF8) else []
        is_clean, is_valid = look_at_text(head)
        self.is_invalid = not is_valid
        if self._source.format == TEXT:
            return
        if not is_clean:
            check_text(head, source_name(self.name))
            self.notes += [zeros] if b"\0" in head else []
        self.notes += [jsonl] if looks_like_jsonl(head, 1 if is_input else 2) else []
        self.notes += [array] if _OBJECTS.match(head) else []

    @property
    def reads_anywhere(self) -> bool:
        """Whether `read_at` works: the source is a regular file without compression."""
        return self._is_plain_file and self.name != STANDARD_INPUT

    def read_at(self, data: NDArray[np.uint8], offset: int) -> None:
        """Fill `data` with the bytes of the file from `offset` on. Any thread may call this."""
        read_at(self._source, self._raw, data, offset)

    def upcoming(self, least: int, most: int, before: int) -> FileBytes | None:
        """Return the range of the next `least` to `most` bytes without reading them.

        The range never includes the last byte of the file. Returns None if there are fewer bytes,
        if the stream is compressed or not a regular file, or if invalid UTF-8 has to be counted.

        before: number of bytes in front of the next byte that the range also includes.
        """
        if self._is_begin or self.is_invalid or not self.reads_anywhere:
            return None
        begin = self._raw.tell()
        nbytes = min(most, self._end_of_file - begin - 1)
        if nbytes < least:
            return None
        with suppress(OSError):  # the process has no descriptor left
            descriptor = os.dup(self._raw.fileno())
            return FileBytes(self._source, descriptor, begin - before, before + nbytes)
        return None

    def peek(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`, counted from the next byte; see `read_at`."""
        data = np.empty(end - begin, np.uint8)
        self.read_at(data, self._raw.tell() + begin)
        return data.tobytes()

    def skip(self, nbytes: int) -> None:
        """Skip the next bytes, which the file is known to have."""
        self._raw.seek(nbytes, os.SEEK_CUR)
        self.position += nbytes

    def check_unchanged(self) -> None:
        """Raise InputError if a regular file was changed after it was found."""
        check_unchanged(self._source, self._raw)

    @property
    def _end_of_file(self) -> int:
        """The offset at which reading ends: the end of the span, or of the file as it was found."""
        return self._source.begin + (self._source.length or 0)

    def _read(self, view: memoryview) -> int | None:
        if self._blocks is not None:
            return self._copy_block(view)
        if len(view) >= 2 * _PART_BYTES and self._is_plain_file:
            first = self._raw.tell()
            count = _read_parts(self._raw.fileno(), view, first)
            self._raw.seek(first + count)
            return count
        return self._stream.readinto(view)

    def _copy_block(self, view: memoryview) -> int:
        if not self._block:
            self._block, self._after_block = next(self._decompressed, (self._block, self.position))
        count = min(len(view), len(self._block))
        view[:count] = self._block[:count]
        self._block = self._block[count:]
        if not self._block:
            self.position = self._after_block
        return count

    def wait(self, seconds: float | None) -> bool:
        """Wait for up to `seconds` (None: forever); return whether reading would not block."""
        if self._pollable is None or (isinstance(self._raw, Rewound) and self._raw.head):
            return True
        try:
            return bool(select.select([self._pollable], [], [], seconds)[0])
        # The system's `select` can't wait for pipes, so every read may block.
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if not self.closed and self.name != STANDARD_INPUT:
            if self._blocks is not None:
                self._blocks.close()
                self._block = memoryview(b"")
            self._stream.close()
            self._raw.close()
        super().close()

    def _describe(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or error
        if self._compression and getattr(error, "errno", None) is None:
            is_input = self.name == STANDARD_INPUT
            remedy = "" if is_input else f": repair or {spelled('--exclude')} it"
            return f"{self.name}: damaged or truncated {self._compression} file ({reason}){remedy}"
        return f"can't read {self.name}: {reason}"


def head_of(source: Source) -> bytes | None:
    """Return the first HEAD_BYTES decompressed bytes of a file; None if they are damaged.

    Raises InputError if the file can't be read.
    """
    head, block = 0, np.empty(HEAD_BYTES, np.uint8).data
    remote, decompress = source.remote, COMPRESSIONS.get(source.compression)
    with input_errors(source.path), ExitStack() as opened:
        file = source.open() if remote is None else RemoteFile(remote, _HEAD_BLOCK_BYTES)
        raw = cast(BinaryIO, opened.enter_context(file))
        stream = decompress(raw) if decompress else cast(Decompressor, raw)
        opened.callback(stream.close)
        try:
            while head < HEAD_BYTES and (got := stream.readinto(block[head:])):
                head += got
        except read_errors() as error:
            if getattr(error, "errno", None) is not None:
                raise
            return None
    return block[:head].tobytes()


class FileBytes:
    """A byte range of a file. Any thread may read it, even after the stream is closed.

    begin: offset of the range in the file. nbytes: length of the range.
    """

    def __init__(self, source: Source, descriptor: int, begin: int, nbytes: int) -> None:
        """Take over `descriptor`, an open file, and close it when this object is deleted."""
        self._source, self._descriptor = source, descriptor
        self.begin, self.nbytes = begin, nbytes

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def read(self, data: NDArray[np.uint8], first: int) -> None:
        """Fill `data` with the bytes of the range from `first` on; InputError if that fails."""
        read_at(self._source, self, data, self.begin + first)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise InputError if the file was changed, even if the stream is already closed."""
        check_unchanged(self._source, self)


def _begin_input(raw: BinaryIO, *, is_file: bool) -> tuple[BinaryIO, str]:
    """Return standard input from its current position on, and the suffix of its compression."""
    head, compression = read_mark(raw.read)
    if package := PACKAGES.get(compression):
        package.require(f"standard input, which is {compression} data")
    if is_file:
        raw.seek(-len(head), os.SEEK_CUR)
        return raw, compression
    return cast(BinaryIO, Rewound(head, raw)), compression


def _read_parts(descriptor: int, view: memoryview, first: int) -> int:
    """Read a stretch of a regular file, in threads if it is long; return the number of bytes."""
    loaded = library()
    if loaded is None or len(view) < 2 * _PART_BYTES:
        return os.preadv(descriptor, [view], first)
    data = np.frombuffer(view, np.uint8)
    count: int = loaded.llmgpu_read(descriptor, address_of(data), len(view), first, _READ_THREADS)
    if count < 0:
        raise OSError(-count, os.strerror(-count))
    return count


def _pollable_descriptor(raw: BinaryIO) -> int | None:
    try:
        descriptor = raw.fileno()
    except (OSError, ValueError):  # a stream in memory has no descriptor
        return None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        # Enlarge the buffer of the pipe, so that writer and reader wait less often; only on Linux.
        with suppress(ImportError, AttributeError, OSError):
            import fcntl

            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return None if stat.S_ISREG(mode) else descriptor


HEAD_BYTES = 4096
_HEAD_BLOCK_BYTES = 1 << 16  # first bytes requested of a file of another machine


def as_bytes() -> str:
    """Return the advice, for an error, to read a binary file as bytes."""
    return f"read it as raw bytes with {spelled('--input-format')} bytes"


_COMPRESSED = {  # suffix of a compression, by the first bytes of its files
    ".gz": b"\x1f\x8b\x08",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\0",
    ".zst": b"\x28\xb5\x2f\xfd",
}

WIDE = {b"\xff\xfe": "<u2", b"\xfe\xff": ">u2"}  # byte order marks of UTF-16
_PACKED = ("an archive of tar", "a compressed file")
NOTES = (  # about zero bytes, a byte order mark, lines of JSON, an array of objects
    "NUL bytes in {}, which may not be text; --exclude GLOB skips files",
    "a byte order mark (3 bytes) at the start of {} was kept as text",
    "{}: read as plain text, but looks like JSON Lines: --input-format jsonl reads the field named "
    "by --text-field",
    "{}: read as plain text, but looks like an array of JSON objects: jq -c '.[]' makes JSON Lines "
    "of it",
)
_PARQUET, ARROW = "a Parquet file", "an Arrow file"  # see `llmgpu.outputs`
UTF_16 = "text in UTF-16, not UTF-8"
_CONTROL = bytes(code for code in range(32) if code not in b"\a\b\t\n\v\f\r\x1b")
_OBJECT = re.compile(rb'\s*\{\s*"')
_OBJECTS = re.compile(rb'\s*\[\s*\{\s*"')


def read_mark(read: Callable[[int], bytes]) -> tuple[bytes, str]:
    """Read enough of a stream to recognize a compression by its first bytes.

    read: given a number, returns up to this number of bytes, b"" at the end. `read` is called again
    only while the bytes so far may begin the mark of a compression.

    Returns the bytes, and a key of `llmgpu.text.compressions.COMPRESSIONS`, "" for none.
    """
    head = read(HEAD_BYTES) or b""
    while any(len(head) < len(mark) and mark.startswith(head) for mark in _COMPRESSED.values()):
        if not head or not (more := read(HEAD_BYTES)):
            break
        head += more
    return head, next((name for name, mark in _COMPRESSED.items() if head.startswith(mark)), "")


class Rewound(io.RawIOBase):
    """A pipe from which some bytes were read already; these bytes are read again first.

    head: the bytes still to be read again.
    """

    def __init__(self, head: bytes, raw: BinaryIO) -> None:
        """Read the bytes of `head` before the rest of `raw`."""
        super().__init__()
        self.head, self._raw, self._position = head, raw, 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._position

    def readinto(self, buffer: Any, /) -> int | None:
        view = memoryview(buffer).cast("B")
        count: int | None = min(len(view), len(self.head))
        if count:
            view[:count] = self.head[:count]
            self.head = self.head[count:]
        else:
            count = cast(io.RawIOBase, self._raw).readinto(view)
        self._position += count or 0
        return count


def binary_format(head: bytes) -> str | None:
    """Return the name of a binary format; None if the first bytes, `head`, may be text."""
    if look_at_text(head)[0]:  # most files are text
        return None
    if _is_wide(head):
        return UTF_16
    return "an archive of tar" if head[257:262] == b"ustar" else binary_kind(head)


def check_text(head: bytes, name: str) -> None:
    """Raise InputError if a file is certainly not text.

    head: the first bytes of the file. name: the file's name in the message.
    """
    kind = binary_format(head)
    if kind is not None:
        todo = [] if name == source_name("-") else [f"exclude it ({spelled('--exclude')})"]
        if kind.startswith("text"):
            todo.insert(0, "convert it with iconv")
        elif kind in _PACKED:
            todo.insert(0, "unpack it")
        elif kind == ARROW:
            todo.insert(0, f"name it .arrow, or use {spelled('--input-format')} arrow")
        elif kind == _PARQUET and not todo:
            todo = ["name the file, which can't be read from a pipe"]
        advice = ", ".join([*todo, f"or {as_bytes()}"] if todo else [as_bytes()])
        raise InputError(f"{name} is {kind}: {advice}")


def looks_like_jsonl(head: bytes, least: int) -> bool:
    """Whether a text begins with at least `least` lines that are JSON objects."""
    if not _OBJECT.match(head):
        return False
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) < least or not all(_OBJECT.match(line) for line in lines):
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return len(lines) == 1 and len(head) == HEAD_BYTES  # the head may end inside the only line


def _is_wide(head: bytes) -> bool:
    """Whether `head` has the mark of UTF-16 and at least a quarter of ASCII characters."""
    kind = WIDE.get(head[:2])
    if kind is None:
        return False
    units = np.frombuffer(head[2 : len(head) // 2 * 2], kind)
    return 4 * int(np.count_nonzero(units < 0x80)) >= max(len(units), 1)


def look_at_text(head: bytes) -> tuple[bool, bool]:
    """Return whether bytes are UTF-8 without control characters, and whether they are UTF-8.

    The last character may be incomplete.
    """
    try:
        codecs.utf_8_decode(head, "strict", False)
    except UnicodeDecodeError:
        return False, False
    return len(head.translate(None, _CONTROL)) == len(head), True
