"""Reading files that other tools made, within limits, and telling people what was in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from llmgpu.errors import VocabularyError

MAX_FILE_BYTES = 1 << 26  # the largest tokenizer.json in use has half of that

_SHOWN = 60  # characters of a text in a message
_LISTED = 3  # texts in a note

# Takes what a reader or writer has to say that is not an error: a line for people.
Note = Callable[[str], None]


def no_notes(text: str) -> None:
    """Take a note and drop it."""


def listed(texts: Sequence[str]) -> str:
    """Return the first few texts, quoted, and how many more there are."""
    shown = ", ".join(map(quote, texts[:_LISTED]))
    rest = len(texts) - _LISTED
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def quote(value: str | bytes | int) -> str:
    """Return a value for a message, cut short if it is long."""
    shown = repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[: 2 * _SHOWN]}..."


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the file's name before a VocabularyError of the block."""
    try:
        yield
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}") from error


def read_limited(path: str | Path) -> bytes:
    """Return the bytes of a file; VocabularyError if it can't be read or is too long."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise VocabularyError(f"can't read it: {getattr(error, 'strerror', error)}") from error
    if len(data) > MAX_FILE_BYTES:
        raise VocabularyError(f"longer than {MAX_FILE_BYTES >> 20} MiB: no vocabulary is")
    return data


def decode_text(data: bytes) -> str:
    """Return `data` as text; VocabularyError, with the offset, unless it is UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise VocabularyError(f"not UTF-8 at byte {error.start}") from error


def parse_json(data: bytes) -> Any:
    """Parse JSON strictly: VocabularyError for repeated keys and NaN, too."""
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
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise VocabularyError(f"the key {quote(repeated)} is there twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise VocabularyError(f"not valid JSON: {name}")
