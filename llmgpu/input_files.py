"""Reading files within limits of size, and formatting names, counts and values for messages.

The size and the first bytes of a file are checked before the whole file is read. A file that is too
long for its kind, a binary file where text is expected, and an endless device are refused.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from llmgpu.errors import InputError, LlmgpuError, VocabularyError

# Largest size, in bytes, of a file that is read as a whole, by kind of file.
MAX_BYTES = {
    "vocabulary": 1 << 30,
    "vocabulary of another tool": 1 << 26,  # twice the largest tokenizer.json in use
    "model description": 1 << 26,
    "record of measurements": 1 << 26,
    "file of options": 1 << 20,
    "description of a run": 1 << 30,  # a description lists the corpus files
    "list of shards": 1 << 30,
    "record of a finished part": 1 << 30,  # a record lists the corpus files
    "side file": 1 << 32,  # a side file lists the documents
    "training log": 1 << 30,
    "log of merges": 1 << 30,
    "file of prompts": 1 << 28,
}
_LONG_TEXT = ("description of a run", "list of shards", "side file", "training log")

_HEAD_BYTES = 64
_BLOCK_BYTES = 1 << 20
_SHOWN = 60  # characters of a quoted text in a message
_LISTED = 3  # names that a note lists before it counts the rest

STANDARD_INPUT = "-"  # the name of standard input on command lines

# Characters that control a terminal, and lone surrogates, which UTF-8 can't encode.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)

# Receives notes of a reader or writer. A note is a line of text, not an error.
Note = Callable[[str], None]


def no_notes(text: str) -> None:
    """Ignore a note."""


def printable(text: str, keep: str = "") -> str:
    """Return `text` with escapes for control characters, except characters in `keep`."""

    def escape(found: re.Match[str]) -> str:
        character = found[0]
        return character if character in keep else f"\\u{ord(character):04x}"

    return _UNPRINTABLE.sub(escape, text)


def listed(texts: Sequence[str]) -> str:
    """Return the first few texts, quoted, and the number of further texts."""
    shown = ", ".join(map(quote, texts[:_LISTED]))
    rest = len(texts) - _LISTED
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def source_name(path: str) -> str:
    """Return the name of a source for messages: "standard input", or its path."""
    return "standard input" if path == STANDARD_INPUT else path


def number_of(count: int, noun: str) -> str:
    """Format a count with a noun and its regular plural: 1 document, 2 documents."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def spell(value: object) -> str:
    """Return ``repr(value)``; if the value is nested too deep for `repr`, return a description."""
    try:
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def quote(value: object) -> str:
    """Return a value for a message, cut short if it is long."""
    shown = spell(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[: 2 * _SHOWN]}..."


def require_known(
    what: str, name: str, known: Collection[str], error: type[LlmgpuError] = InputError
) -> None:
    """Raise an error unless a name is one of the known names; what: the kind of name."""
    if name not in known:
        raise error(f"unknown {what} {quote(name)}: use one of {', '.join(known)}")


@contextmanager
def input_errors(path: str | Path) -> Iterator[None]:
    """Turn an OSError of the block into an InputError about `path`."""
    try:
        yield
    except OSError as error:
        raise read_error(path, error) from error


def read_error(path: str | Path, error: OSError) -> InputError:
    """Return the InputError for a failure of reading a file."""
    return InputError(f"can't read {path}: {error.strerror or error}")


def read_head(path: str | Path, nbytes: int) -> bytes:
    """Return the first bytes of a file; InputError if it can't be read."""
    with input_errors(path), open(path, "rb", buffering=0) as file:
        return file.read(nbytes)


@contextmanager
def naming(name: str | Path, kind: type[LlmgpuError] = VocabularyError) -> Iterator[None]:
    """Put a name in front of the message of an error that the block raises.

    name: of a file or variable. kind: class of the error, also of the new error.
    """
    try:
        yield
    except kind as error:
        raise kind(f"{name}: {error}") from error


def read_whole(
    path: str | Path, kind: str, check_head: Callable[[bytes], None] | None = None
) -> bytes:
    """Return the bytes of a file.

    kind: a key of MAX_BYTES.
    check_head: called with the first bytes; raises an error if the file is of another kind.

    Raises OSError, with a reason in `strerror`, for an unreadable or too long file, and for binary
    content where text is expected.
    """
    most = MAX_BYTES[kind]
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed below)
    except ValueError as error:  # the name contains a zero byte
        raise OSError(errno.EINVAL, str(error)) from error
    with stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size <= most:
            head = stream.read(_HEAD_BYTES)
            if check_head is not None:
                check_head(head)
            if kind in _LONG_TEXT and b"\0" in head:
                raise OSError(errno.EINVAL, f"a {kind} is text, and this has zero bytes")
            blocks, left = [head], most + 1 - len(head)
            # Read in blocks, because one read of `left` bytes would allocate memory for the whole
            # limit.
            while left and (block := stream.read(min(left, _BLOCK_BYTES))):
                blocks.append(block)
                left -= len(block)
            if left:
                return b"".join(blocks)
    raise OSError(errno.EFBIG, f"longer than {most >> 20} MiB: no {kind} is")


def read_limited(path: str | Path, kind: str = "vocabulary of another tool") -> bytes:
    """Return the bytes of a file; VocabularyError if it can't be read or is too long."""
    try:
        return read_whole(path, kind)
    except OSError as error:
        prefix = "" if error.errno == errno.EFBIG else "can't read it: "
        raise VocabularyError(f"{prefix}{error.strerror or error}") from error


def decode_text(data: bytes) -> str:
    """Return `data` as text; VocabularyError, with the offset, unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise VocabularyError(f"not UTF-8 at byte {error.start}") from error


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises VocabularyError for invalid JSON, repeated keys and NaN."""
    text = decode_text(data)
    if not text:
        raise VocabularyError("not valid JSON: the file is empty")
    try:
        return json.loads(text, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise VocabularyError(f"not valid JSON: {reason}") from error


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise VocabularyError(f"the key {quote(repeated)} is repeated")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise VocabularyError(f"not valid JSON: {name}")
