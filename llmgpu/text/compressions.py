"""Compressions of files, and the optional packages that reading files may need.

The standard library decompresses ``.gz``, ``.bz2`` and ``.xz``. If the package isal is installed,
it decompresses ``.gz`` faster. ``.zst`` needs a package; an error names a missing package. To add a
compression, add a line to COMPRESSIONS.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import sys
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from llmgpu.errors import InputError

_ZSTD_READ_BYTES = 1 << 20
_ZSTD_STEP_BYTES = 1 << 13  # bytes taken at a time of a frame without text
_ZSTD_HEAD_BYTES = 5  # first bytes of a frame, which tell the length of its header
_ZSTD_MARK = b"\x28\xb5\x2f\xfd"


class Decompressor(Protocol):
    """Decompresses a file while the file is read."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the front of `buffer`; return the number of bytes, 0 at the end."""

    def close(self) -> None:
        """Free the buffers."""


@dataclass(frozen=True)
class Package:
    """An optional package: the module to import, and the extra of llmgpu that installs it."""

    module: str
    extra: str

    def require(self, path: str) -> Any:
        """Import the package and return its module.

        Raises InputError if the package is missing; the message says how to install it to read
        `path`.
        """
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise InputError(
                f"{path}: reading it needs the package {self.module}: "
                f"pip install 'llmgpu[{self.extra}]'"
            ) from error


ZSTANDARD = Package("zstandard", "zstd")
PYARROW, PYARROW_PARQUET = Package("pyarrow", "parquet"), Package("pyarrow.parquet", "parquet")
PYARROW_COMPUTE = Package("pyarrow.compute", "parquet")


class ZstdFile:
    """Decompresses a .zst file, of any number of frames, a block (up to 128 KiB) at a time.

    A file that ends inside a frame is damaged.
    """

    def __init__(self, raw: BinaryIO) -> None:
        """Decompress `raw`; InputError if the package zstandard is missing."""
        self._blocks = _zstd_blocks(raw, ZSTANDARD.require(".zst"))
        self._text = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the front of `buffer`; return the number of bytes, 0 at the end.

        Raises ZstdError or EOFError for a damaged file.
        """
        while not self._text and (block := next(self._blocks, None)) is not None:
            self._text = memoryview(block)
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def close(self) -> None:
        self._blocks.close()
        self._text = memoryview(b"")


def _zstd_blocks(raw: BinaryIO, package: Any) -> Generator[bytes, None, None]:
    """Yield the text of each block of a .zst file (RFC 8878).

    The text of a whole frame may be 32,768 times as long as the frame.
    """
    held = memoryview(b"")

    def take(nbytes: int) -> bytes:
        """Return the next bytes of the file, fewer only at its end."""
        nonlocal held
        while len(held) < nbytes and (more := raw.read(_ZSTD_READ_BYTES)):
            held = memoryview(bytes(held) + more)
        taken, held = bytes(held[:nbytes]), held[nbytes:]
        return taken

    decoder, is_empty = package.ZstdDecompressor(), True
    while (data := take(_ZSTD_HEAD_BYTES)) or is_empty:
        frame, is_empty = decoder.decompressobj(), False
        has_blocks = len(data) == _ZSTD_HEAD_BYTES and data.startswith(_ZSTD_MARK)
        has_checksum = has_blocks and data[4] & 4
        if has_blocks:
            data += take(package.frame_header_size(data) - len(data))
        header, length = data, 0
        yield frame.decompress(data)
        while not frame.eof:
            data = take(3 if has_blocks else _ZSTD_STEP_BYTES)
            if not data:
                raise EOFError("it ends inside a frame")
            if has_blocks:
                number = int.from_bytes(data, "little")
                is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
                # A block of kind 1 stores one byte, to be repeated.
                data += take((1 if kind == 1 else size) + (4 if is_last and has_checksum else 0))
            text = frame.decompress(data)
            length += len(text)
            yield text
        # The package does not compare the lengths if the last block is empty; -1 is unknown.
        if has_blocks and (expected := package.frame_content_size(header)) not in (-1, length):
            raise package.ZstdError(f"a frame has {length:,} bytes instead of {expected:,}")
        if frame.unused_data:
            held = memoryview(frame.unused_data + bytes(held))


def _open_gzip(raw: BinaryIO) -> Decompressor:
    module: Any = gzip
    with suppress(ImportError):  # isal is three times as fast as the standard library
        module = importlib.import_module("isal.igzip")
    return cast(Decompressor, module.GzipFile(fileobj=raw, mode="rb"))


# By suffix, functions that decompress a stream, and the optional packages that they need.
COMPRESSIONS: dict[str, Callable[[BinaryIO], Decompressor]] = {
    ".gz": _open_gzip,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": ZstdFile,
}
PACKAGES = {".zst": ZSTANDARD}

_PACKAGE_ERRORS = (("isal.isal_zlib", "error"), ("zstandard", "ZstdError"))


def read_errors() -> tuple[type[Exception], ...]:
    """Return the errors that reading and decompressing a file may raise."""
    loaded = [(sys.modules[name], error) for name, error in _PACKAGE_ERRORS if name in sys.modules]
    own = (getattr(module, error) for module, error in loaded)
    return OSError, EOFError, zlib.error, lzma.LZMAError, *own
