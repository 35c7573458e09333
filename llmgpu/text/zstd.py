"""Bytes of a ``.zst`` file, decompressed in pieces of bounded size.

A file is any number of frames; one that ends inside a frame is damaged.
"""

from __future__ import annotations

from typing import BinaryIO

from llmgpu.text.extras import ZSTANDARD

_READ_BYTES = 1 << 20
_STEP_BYTES = 1 << 13  # decompressed at a time, to up to 32,768 times as many bytes


class ZstdFile:
    """Reads a compressed stream."""

    def __init__(self, raw: BinaryIO) -> None:
        """Take the compressed bytes of `raw`; InputError without the package for it."""
        self._raw = raw
        self._package = ZSTANDARD.require(".zst")
        self._decoder = self._package.ZstdDecompressor()
        self._frame = self._decoder.decompressobj()  # what is being read; None between frames
        self._compressed = memoryview(b"")
        self._text = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the front of `buffer`; 0 at the end. OSError, EOFError for damaged files."""
        while not self._text:
            if not self._compressed:
                self._compressed = memoryview(self._raw.read(_READ_BYTES) or b"")
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            self._text = memoryview(self._decompress())
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def close(self) -> None:
        """Drop what is buffered."""
        self._compressed = self._text = memoryview(b"")

    def _decompress(self) -> bytes:
        """Decompress the next few bytes."""
        if self._frame is None:
            self._frame = self._decoder.decompressobj()
        step = self._compressed[:_STEP_BYTES]
        try:
            text: bytes = self._frame.decompress(step)
        except self._package.ZstdError as error:
            raise OSError(str(error)) from error
        used = len(step)
        if self._frame.eof:
            used -= len(self._frame.unused_data)
            self._frame = None
        self._compressed = self._compressed[used:]
        return text
