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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from llmgpu.errors import InputError

_ZSTD_READ_BYTES = 1 << 20
_ZSTD_STEP_BYTES = 1 << 13  # bytes of input in a step; the output may be 32,768 times as long
# blocks (up to 128 KiB each) decompressed in a step, if the ends of the blocks are known
_ZSTD_BLOCKS = 8


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
PYARROW_IPC = Package("pyarrow.ipc", "parquet")
PYARROW_COMPUTE = Package("pyarrow.compute", "parquet")


class ZstdFile:
    """Decompresses a .zst file, of any number of frames, in steps of bounded size.

    A file that ends inside a frame is damaged.
    """

    def __init__(self, raw: BinaryIO) -> None:
        """Decompress `raw`; InputError if the package zstandard is missing."""
        self._raw = raw
        self._decoder = ZSTANDARD.require(".zst").ZstdDecompressor()
        self._frame: Any = None  # decoder of the current frame; None between frames
        self._is_empty = True
        # offset of the next block in `_compressed`, None if unknown
        self._next_block: int | None = None
        self._compressed = memoryview(b"")
        self._text = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the front of `buffer`; return the number of bytes, 0 at the end.

        Raises ZstdError or EOFError for a damaged file.
        """
        while not self._text:
            if not self._compressed:
                self._compressed = memoryview(self._raw.read(_ZSTD_READ_BYTES) or b"")
            if not self._compressed:
                if self._frame is not None or self._is_empty:
                    raise EOFError("it ends inside a frame")
                return 0
            self._text = memoryview(self._decompress())
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def close(self) -> None:
        self._compressed = self._text = memoryview(b"")

    def _decompress(self) -> bytes:
        """Decompress the next few of the compressed bytes, and return their text."""
        if self._frame is None:
            self._frame, self._is_empty = self._decoder.decompressobj(), False
            self._next_block = _first_zstd_block(self._compressed)
        step = self._compressed[: self._step_bytes()]
        text: bytes = self._frame.decompress(step)
        used = len(step)
        if self._frame.eof:
            used -= len(self._frame.unused_data)
            self._frame = None
        elif self._next_block is not None:
            self._next_block -= used
        self._compressed = self._compressed[used:]
        return text

    def _step_bytes(self) -> int:
        """Return how many compressed bytes to decompress next: some blocks (RFC 8878), else 8 KiB.

        A smaller step needs less memory for its output. The text does not depend on the step.
        """
        data, end = self._compressed, 0
        # Walk over the headers of blocks as long as the end of the block is known.
        for _ in range(_ZSTD_BLOCKS):
            if self._next_block is None or self._next_block >= len(data):
                break
            end = self._next_block
            header = data[end : end + 3]
            number = int.from_bytes(header, "little")
            is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
            if len(header) == 3:
                # a block of kind 1 stores one byte, to be repeated
                end += 3 + (1 if kind == 1 else size)
            self._next_block = None if is_last or len(header) < 3 else end
        return min(self._next_block or end, len(data)) or _ZSTD_STEP_BYTES


def _first_zstd_block(data: memoryview) -> int | None:
    """Return the offset of the first block of a frame; None if unknown.

    data: the first bytes of the frame.
    """
    if len(data) < 5 or bytes(data[:4]) != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = data[4]
    is_single = descriptor >> 5 & 1
    size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
    return 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3] + size_bytes


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
