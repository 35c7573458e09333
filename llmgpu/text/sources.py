"""Where a corpus comes from: names turned into files, and files opened as streams of bytes.

- A source is a file, a folder (walked; the files in it in byte order of their relative names), a
  glob (the files it matches, folders among them walked, each file once, in byte order) or ``-``
  for standard input. A name that exists is that file even when it looks like a glob.
- In folders, names that begin with a dot, links to folders and what is no regular file are left
  out and counted.
- Compression and format go by suffix; ``.gz``, ``.bz2`` and ``.xz`` are read through the standard
  library, ``.zst`` and ``.parquet`` through packages that are asked for when they are needed.
- Everything that can be known to fail is checked before the first byte is read.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, Protocol, cast

from llmgpu.errors import InputError
from llmgpu.text.extras import require_package
from llmgpu.text.parquet import require_pyarrow
from llmgpu.text.zstd import ZstdFile

STANDARD_INPUT = "-"


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...

    def close(self) -> None: ...


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], _Readable]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": ZstdFile,
}
_DECOMPRESSED_BYTES = 1 << 20
_PIECE_BYTES = 2 << 20  # of a regular file that one thread reads at a time
_HAS_PREADV = hasattr(os, "preadv")
_READERS = 8  # threads that read pieces


@dataclass(frozen=True)
class Source:
    """One file of a corpus.

    path: its name, "-" for standard input.
    size: bytes on disk; None for what is no regular file.
    """

    path: str
    size: int | None

    @property
    def compression(self) -> str:
        """The suffix of a compression that is read, or ""."""
        suffix = os.path.splitext(self.path)[1].lower()
        return suffix if suffix in _DECOMPRESSORS else ""

    @property
    def is_jsonl(self) -> bool:
        """Whether each line is a JSON object."""
        name = self.path.lower()
        return name.removesuffix(self.compression).endswith(".jsonl")

    @property
    def is_parquet(self) -> bool:
        """Whether it is a table, of which one column is text."""
        return self.path.lower().endswith(".parquet")


def resolve_sources(names: Sequence[str]) -> tuple[list[Source], int]:
    """Return the files that `names` stand for, in order, and how many folder entries were left out.

    InputError for no names, a missing or unreadable path, a folder or glob without files, a format
    that needs a package which is missing, or standard input named twice.
    """
    if not names:
        raise InputError("no corpus given: name a file, a folder, a glob or - for standard input")
    if list(names).count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) is named twice, but can be read only once")
    sources: list[Source] = []
    left_out = 0
    for name in names:
        paths, skipped = _expand(name)
        sources += [_check(path) for path in paths]
        left_out += skipped
    return sources, left_out


def _expand(name: str) -> tuple[list[str], int]:
    if name == STANDARD_INPUT:
        return [name], 0
    if os.path.isdir(name):
        return _walk(name)
    if os.path.lexists(name):
        return [name], 0
    if not glob.has_magic(name):
        raise InputError(f"no such file or folder: {name!r}")
    paths: set[str] = set()
    left_out = 0
    for match in glob.glob(name, recursive=True):
        found, skipped = _walk(match) if os.path.isdir(match) else ([match], 0)
        paths.update(os.path.normpath(path) for path in found)
        left_out += skipped
    if not paths:
        raise InputError(f"no file matches {name!r}")
    return sorted(paths, key=os.fsencode), left_out


def _walk(folder: str) -> tuple[list[str], int]:
    def fail(error: OSError) -> None:
        raise InputError(f"can't read the folder {error.filename}: {error.strerror}") from error

    paths: list[str] = []
    left_out = 0
    for parent, folders, files in os.walk(folder, onerror=fail):
        entered = [name for name in folders if not _is_left_out(parent, name)]
        left_out += len(folders) - len(entered)
        folders[:] = entered
        found = [os.path.join(parent, name) for name in files if not name.startswith(".")]
        regular = [path for path in found if os.path.isfile(path)]
        left_out += len(files) - len(regular)
        paths += regular
    if not paths:
        raise InputError(f"no files in the folder {folder!r} ({left_out} entries left out)")
    return sorted(paths, key=os.fsencode), left_out


def _is_left_out(parent: str, folder: str) -> bool:
    return folder.startswith(".") or os.path.islink(os.path.join(parent, folder))


def _check(path: str) -> Source:
    if path == STANDARD_INPUT:
        return Source(path, _standard_input_size())
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from error
    if not os.access(path, os.R_OK):
        raise InputError(f"can't read {path}: permission denied")
    source = Source(path, status.st_size if stat.S_ISREG(status.st_mode) else None)
    if source.compression == ".zst":
        require_package("zstandard", "zstd", path)
    if source.is_parquet:
        require_pyarrow(path)
        if source.size is None:
            raise InputError(f"{path}: a parquet file is read from its end: it can't be a pipe")
    return source


def _standard_input_size() -> int | None:
    """Bytes left in a file that standard input was redirected from; None for anything else."""
    try:
        descriptor = sys.stdin.fileno()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return max(0, status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR))
    except (AttributeError, OSError, ValueError):
        return None


class ByteStream(io.RawIOBase):
    """The bytes of one source, decompressed; whatever goes wrong is an InputError that names it.

    position: bytes of the source on disk that were consumed.
    """

    def __init__(self, source: Source) -> None:
        """Open `source`."""
        super().__init__()
        self.name = source.path
        self._compression = source.compression
        self.position = 0
        self._pollable: int | None = None  # the descriptor of a pipe, a terminal or a device
        try:
            self._raw = _open_raw(source.path)
            if not self._compression:
                self._pollable = _pollable_descriptor(self._raw)
        except OSError as error:
            raise InputError(f"can't read {self.name}: {error.strerror or error}") from error
        wrap = _DECOMPRESSORS.get(self._compression)
        self._stream = wrap(self._raw) if wrap else cast(_Readable, self._raw)

    def readable(self) -> bool:
        """Say yes, as `io.BufferedReader` asks."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read what is there, at most `buffer`'s length; wait only for a first byte. 0: the end."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._compression:  # decompressors make a copy of what they are asked for
            view = view[:_DECOMPRESSED_BYTES]
        try:
            count = self._read(view)
            while count is None:  # a descriptor somebody set to non-blocking
                self.wait(None)
                count = self._read(view)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise InputError(self._describe(error)) from error
        self.position = self._raw.tell() if self._compression else self.position + count
        return count

    def _read(self, view: memoryview) -> int | None:
        large = len(view) >= 2 * _PIECE_BYTES
        if large and not self._compression and self._pollable is None and _HAS_PREADV:
            return _read_pieces(self._raw, view)
        return self._stream.readinto(view)

    def wait(self, seconds: float | None) -> bool:
        """Whether reading would not block, within `seconds` (None: however long that takes)."""
        if self._pollable is None:
            return True
        try:
            return bool(select.select([self._pollable], [], [], seconds)[0])
        except (OSError, ValueError):  # no select for pipes here: take each read by itself
            return False

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if not self.closed and self.name != STANDARD_INPUT:
            self._stream.close()
            self._raw.close()
        super().close()

    def _describe(self, error: Exception) -> str:
        reason = getattr(error, "strerror", None) or error
        if self._compression and getattr(error, "errno", None) is None:
            return f"{self.name}: damaged or truncated {self._compression} file ({reason})"
        return f"can't read {self.name}: {reason}"


def _open_raw(path: str) -> BinaryIO:
    if path != STANDARD_INPUT:
        return cast(BinaryIO, open(path, "rb", buffering=0))
    if sys.stdin is None:
        raise OSError("standard input is closed")
    buffered = sys.stdin.buffer
    return cast(BinaryIO, getattr(buffered, "raw", buffered))


@cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked one has none of its parent's."""
    return ThreadPoolExecutor(_READERS, thread_name_prefix="llmgpu-read")


def _read_pieces(file: BinaryIO, view: memoryview) -> int:
    """Read from a regular file with several threads: one alone is slower than memory."""
    first, descriptor = file.tell(), file.fileno()

    def read(start: int) -> int:
        return os.preadv(descriptor, [view[start : start + _PIECE_BYTES]], first + start)

    starts = range(0, len(view), _PIECE_BYTES)
    count = 0
    for start, got in zip(starts, _readers(os.getpid()).map(read, starts), strict=True):
        if count == start:  # what is behind a short piece is not in sequence: read it again
            count += got
    file.seek(first + count)
    return count


def _pollable_descriptor(raw: BinaryIO) -> int | None:
    try:
        descriptor = raw.fileno()
    except (OSError, ValueError):  # a stream in memory
        return None
    return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor


def read_blocks(stream: io.RawIOBase, block_bytes: int) -> Iterator[bytes]:
    """Yield what `stream` gives, in pieces of at most `block_bytes`, as they come."""
    while block := stream.read(block_bytes):
        yield block
