"""What the first bytes say of text that comes without a name: whether it is compressed, or no text.

- Standard input is decompressed if it begins as a compressed file does.
- A file that is read as text and begins as files of some binary format do is refused: taken for
  text, it would give tokens that mean nothing. The format is taken for certain where, besides its
  mark, there is what text does not have: control characters, or bytes that are not UTF-8.
- Zero bytes alone are no proof, so they are only told.
- ``--input-format bytes`` (`llmgpu.text.sources.Selection`) takes the bytes as they are.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import numpy as np

from llmgpu.errors import InputError
from llmgpu.input_files import source_name
from llmgpu.outputs import binary_kind
from llmgpu.spelling import spelled

HEAD_BYTES = 4096


def as_bytes() -> str:
    """Return the advice to read a file that is not text as bytes."""
    return f"read it as raw bytes with {spelled('--input-format')} bytes"


_COMPRESSED = {  # how files begin, by suffixes in `llmgpu.text.compressions.COMPRESSIONS`
    ".gz": b"\x1f\x8b\x08",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\0",
    ".zst": b"\x28\xb5\x2f\xfd",
}
_TAR = slice(257, 262), b"ustar"
_WIDE = {b"\xff\xfe": "<u2", b"\xfe\xff": ">u2"}  # byte order marks of UTF-16
_PACKED = ("an archive of tar", "a compressed file")
NOTES = (  # on files with zero bytes, with a byte order mark and with lines of JSON
    "NUL bytes in {}, which may not be text; --exclude GLOB skips files",
    "a byte order mark (3 bytes) at the start of {} was kept as text",
    "{}: read as plain text, but looks like JSON Lines: --input-format jsonl reads the field named "
    "by --text-field",
)
_PARQUET = "a Parquet file"  # see `llmgpu.outputs`
_CONTROL = bytes(code for code in range(32) if code not in b"\a\b\t\n\v\f\r\x1b")
_OBJECT = re.compile(rb'\s*\{\s*"')


def read_mark(read: Callable[[int], bytes]) -> tuple[bytes, str]:
    """Read from a stream until it is known how it is compressed, and return what was read.

    read: returns up to a number of bytes, b"" at the end. Waits for more than a first byte only if
    what is there may be the beginning of a compressed file.

    Returns the bytes, and a suffix in `llmgpu.text.compressions.COMPRESSIONS`, "" for none.
    """
    head = read(HEAD_BYTES) or b""
    while any(len(head) < len(mark) and mark.startswith(head) for mark in _COMPRESSED.values()):
        if not head or not (more := read(HEAD_BYTES)):
            break
        head += more
    return head, next((name for name, mark in _COMPRESSED.items() if head.startswith(mark)), "")


class Rewound(io.RawIOBase):
    """A pipe of which the first bytes were read, from its beginning on."""

    def __init__(self, head: bytes, raw: BinaryIO) -> None:
        """Give `head` before what is left in `raw`."""
        super().__init__()
        self._head, self._raw, self._position = head, raw, 0

    @property
    def has_head(self) -> bool:
        """Whether there are bytes that were read already."""
        return bool(self._head)

    def readable(self) -> bool:
        """Say yes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._raw.fileno()

    def tell(self) -> int:
        """Return how many bytes were handed over."""
        return self._position

    def readinto(self, buffer: Any, /) -> int | None:
        """Fill the front of `buffer`."""
        view = memoryview(buffer).cast("B")
        count: int | None = min(len(view), len(self._head))
        if count:
            view[:count] = self._head[:count]
            self._head = self._head[count:]
        else:
            count = cast(io.RawIOBase, self._raw).readinto(view)
        self._position += count or 0
        return count


def binary_format(head: bytes) -> str | None:
    """Return what a file is, in a few words, if it is surely not text; head: its first bytes."""
    if look_at_text(head)[0]:  # most files are
        return None
    if _is_wide(head):
        return "text in UTF-16, not UTF-8"
    place, mark = _TAR
    return "an archive of tar" if head[place] == mark else binary_kind(head)


def has_zero_bytes(head: bytes) -> bool:
    """Whether there are zero bytes in the first bytes of a file, as in most that are not text."""
    return b"\0" in head


def check_text(head: bytes, name: str) -> None:
    """Raise InputError if a file, by its first bytes, is not text.

    name: what the message calls it.
    """
    kind = binary_format(head)
    if kind is not None:
        todo = [] if name == source_name("-") else [f"exclude it ({spelled('--exclude')})"]
        if kind.startswith("text"):
            todo = ["convert it with iconv"]
        elif kind in _PACKED:
            todo.insert(0, "unpack it")
        elif kind == _PARQUET and not todo:
            todo = ["name the file, which can't be read from a pipe"]
        advice = ", ".join([*todo, f"or {as_bytes()}"] if todo else [as_bytes()])
        raise InputError(f"{name} is {kind}: {advice}")


def looks_like_jsonl(head: bytes, least: int) -> bool:
    """Whether text begins with JSON objects, a line each, of which there are `least` or more."""
    if not _OBJECT.match(head):
        return False
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) < least or not all(_OBJECT.match(line) for line in lines):
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return len(lines) == 1 and len(head) == HEAD_BYTES  # the line is longer than what is there


def _is_wide(head: bytes) -> bool:
    """Whether this is UTF-16 for certain: a quarter of its characters are ASCII."""
    kind = _WIDE.get(head[:2])
    if kind is None:
        return False
    units = np.frombuffer(head[2 : len(head) // 2 * 2], kind)
    return 4 * int(np.count_nonzero(units < 0x80)) >= max(len(units), 1)


def look_at_text(head: bytes) -> tuple[bool, bool]:
    """Return whether bytes may begin a text in UTF-8, and whether they are valid UTF-8 at least."""
    try:
        codecs.utf_8_decode(head, "strict", False)
    except UnicodeDecodeError:
        return False, False
    return len(head.translate(None, _CONTROL)) == len(head), True
