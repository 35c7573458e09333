"""Reading files that others made, within limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from llmgpu.errors import VocabularyError

MAX_FILE_BYTES = 1 << 26  # the largest tokenizer.json in use has half of that
MAX_IDS = 1 << 22  # a file of one line could ask for any number of empty tokens


_SHOWN = 60  # characters of a text in a message


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the file's name before a VocabularyError of the block."""
    try:
        yield
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}") from error


def read_limited(path: str | Path) -> bytes:
    """Return the bytes of a file; VocabularyError if it can't be read or has too many."""
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
    """Parse JSON as the standard has it: no repeated keys, no NaN; VocabularyError otherwise."""
    text = decode_text(data)
    if not text:
        raise VocabularyError("no valid JSON: the file is empty")
    try:
        return json.loads(text, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise VocabularyError(f"no valid JSON: {reason}") from error


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise VocabularyError(f"the key {quote(repeated)} is there twice")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise VocabularyError(f"no valid JSON: {name}")


def quote(value: str | bytes | int) -> str:
    """Return a value for a message, cut short if it is long."""
    shown = repr(value[:_SHOWN] if isinstance(value, (str, bytes)) else value)
    return shown if len(shown) <= 2 * _SHOWN else f"{shown[: 2 * _SHOWN]}..."


def check_id(what: str, number: object) -> int:
    """Return `number` if it can be an id; VocabularyError about `what` otherwise."""
    if type(number) is not int:
        raise VocabularyError(f"{what} has a {type(number).__name__} as its id")
    if not 0 <= number < MAX_IDS:
        shown = quote(number)
        raise VocabularyError(f"{what} has id {shown}: ids are whole numbers below {MAX_IDS}")
    return number


def place_tokens(ordinary: Mapping[int, bytes], special: Mapping[str, int]) -> tuple[bytes, ...]:
    """Return the tokens by id, empty where there is none.

    VocabularyError if there are no tokens, two have one id, or a special one is no valid Unicode.
    """
    size = max([*ordinary, *special.values()], default=-1) + 1
    if size == 0:
        raise VocabularyError("there are no tokens")
    tokens = [b""] * size
    for number, token in ordinary.items():
        tokens[number] = token
    taken: dict[int, str] = {}
    for text, number in special.items():
        if number in taken or number in ordinary:
            other = quote(taken[number] if number in taken else ordinary[number])
            raise VocabularyError(f"special token {quote(text)} has the id {number} of {other}")
        taken[number] = text
        try:
            tokens[number] = text.encode()
        except UnicodeEncodeError as error:
            raise VocabularyError(f"special token {quote(text)} is not valid Unicode") from error
    return tuple(tokens)
