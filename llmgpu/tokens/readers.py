"""Reading token ids back, in the formats that `llmgpu.tokens.writers` writes.

Ids come in blocks of bounded size, documents end to end. An id is a number from 0 to 2^32 - 1;
whether a vocabulary has it is for its decoder to say. Decimal text is parsed with NumPy, all
numbers of a block at once; a pipe's numbers are handed over as they come.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from llmgpu.errors import InputError, VocabularyError
from llmgpu.text.jsonl import jsonl_lines, parse_json_object
from llmgpu.text.streams import STANDARD_INPUT, ByteStream, Source, read_blocks
from llmgpu.tokens.layouts import (
    LAYOUTS,
    LLMC_HEADER_BYTES,
    header_bytes,
    parse_llmc_header,
    require_layout,
)
from llmgpu.tokens.writers import FORMATS, SIDE_FORMAT, SIDE_VERSION, id_dtype, side_path

MAX_ID = (1 << 32) - 1

_BLOCK_BYTES = 1 << 20
_BLOCK_IDS = 1 << 18
_MAX_DIGITS = 10
_IS_SPACE = np.zeros(256, np.bool_)
_IS_SPACE[list(b" \t\r\n")] = True
_WORD = re.compile(rb"[^ \t\r\n]+")
# What NumPy lets out while it reads the Python literal in a header.
_HEADER_ERRORS = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError)
_SIDE_FIELDS: dict[str, type] = {
    "dtype": str,
    "count": int,
    "bytes": int,
    "vocabulary_size": int,
    "fingerprint": str,
    "document_offsets": list,
}


def read_tokens(
    path: str | Path, format: str, *, vocabulary_size: int | None = None, layout: str = "raw"
) -> Iterator[NDArray[np.int64]]:
    """Return an iterator over the ids in `path` ("-": standard input), int64, block by block.

    vocabulary_size, layout: say what the numbers of a ``bin`` stream without a side file are (a
        pipe), and what is before them.
    InputError for an unknown format or layout, a file that can't be read or what is no id in it,
    with file and line or position.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    name = str(path)
    if name != STANDARD_INPUT and not os.path.exists(name):
        raise InputError(f"no such file: {name!r}")
    require_layout(layout)
    if format == "bin":
        return _read_bin(name, _bin_facts(name, vocabulary_size, layout))
    return {"ids": _read_ids, "jsonl": _read_jsonl, "npy": _read_npy}[format](name)


def read_side_file(path: str | Path) -> dict[str, object]:
    """Return what the side file of the ``bin`` file `path` says, with its fields' types checked.

    A layout that isn't named is "raw".
    InputError when it is missing, damaged, of another format or of a newer version.
    """
    name = side_path(path)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise InputError(
            f"can't read {name}, the side file of {path}: {error.strerror}; without it the "
            "type of the numbers isn't known"
        ) from error
    side = parse_json_object(data, name)
    if side.get("format") != SIDE_FORMAT:
        raise InputError(f"{name}: not a side file of token ids (its format: {SIDE_FORMAT!r})")
    version = side.get("version")
    if version != SIDE_VERSION:
        raise InputError(f"{name}: version {version!r}, but this build reads {SIDE_VERSION}")
    for field, kind in _SIDE_FIELDS.items():
        value = side.get(field)
        if type(value) is not kind or (type(value) is int and value < 0):
            raise InputError(f"{name}: field {field!r} is missing or not of type {kind.__name__}")
    if side["dtype"] not in ("uint16", "uint32"):
        raise InputError(f"{name}: dtype {side['dtype']!r} is neither uint16 nor uint32")
    layout = side.setdefault("layout", "raw")
    if layout not in LAYOUTS:
        raise InputError(f"{name}: layout {layout!r} is none of {', '.join(LAYOUTS)}")
    _check_offsets(name, cast(list[object], side["document_offsets"]), cast(int, side["count"]))
    return side


@dataclass(frozen=True)
class BinFile:
    """What is known of a ``bin`` file on disk, which has as many bytes as it should.

    offset: bytes before the numbers. count: ids. text_bytes: bytes of text they stand for.
    fingerprint: of the vocabulary they were made with.
    """

    path: str
    dtype: np.dtype[np.integer]
    offset: int
    count: int
    text_bytes: int
    fingerprint: str


def describe_bin_file(path: str | Path) -> BinFile:
    """Return what the side file and the header of the ``bin`` file `path` say.

    InputError if one of them can't be read, or if they or the file's length don't fit together.
    """
    name = str(path)
    if not os.path.isfile(name):
        raise InputError(f"no such file: {name!r}")
    side = read_side_file(name)
    facts = _side_facts(name, side, is_stream=False)
    assert facts.dtype is not None and facts.count is not None
    if facts.layout == "llmc":
        with _open(name) as stream:
            _check_header(_buffered(stream), name, facts)
    return BinFile(
        name,
        facts.dtype,
        header_bytes(facts.layout),
        facts.count,
        cast(int, side["bytes"]),
        cast(str, side["fingerprint"]),
    )


def check_fingerprint(name: str, made_with: str, fingerprint: str, vocabulary_name: str) -> None:
    """Raise a VocabularyError if the token file `name` was made with another vocabulary.

    made_with: the fingerprint that the file has; fingerprint: that of the vocabulary in the file
    `vocabulary_name`.
    """
    if made_with != fingerprint:
        raise VocabularyError(
            f"{name} was made with the vocabulary {made_with[:12]}, "
            f"{vocabulary_name} is {fingerprint[:12]}; use the vocabulary it was made with"
        )


def _check_offsets(name: str, offsets: list[object], count: int) -> None:
    if set(map(type, offsets)) - {int}:
        raise InputError(f"{name}: document_offsets holds what is no whole number")
    numbers = cast(list[int], offsets)
    if sorted(numbers) != numbers:
        raise InputError(f"{name}: document_offsets are not in ascending order")
    if numbers and not 0 <= numbers[0] <= numbers[-1] <= count:
        raise InputError(f"{name}: a document begins outside of the {count} ids")


def _open(name: str) -> ByteStream:
    return ByteStream(Source(name, None))


def _buffered(stream: ByteStream) -> io.BufferedIOBase:
    return io.BufferedReader(stream, _BLOCK_BYTES)


def _read_ids(name: str) -> Iterator[NDArray[np.int64]]:
    with _open(name) as stream:
        line = 1
        rest = b""  # a number that may go on in the next block
        for block in read_blocks(stream, _BLOCK_BYTES):
            text = rest + block
            cut = 1 + max(text.rfind(b" "), text.rfind(b"\n"), text.rfind(b"\t"), text.rfind(b"\r"))
            if len(text) - cut > _MAX_DIGITS:  # too long for an id already
                cut = len(text)
            rest = text[cut:]
            ids = _parse_decimals(text[:cut], name, line)
            line += text.count(b"\n", 0, cut)
            if len(ids):
                yield ids
        if rest:
            yield _parse_decimals(rest, name, line)


def _parse_decimals(text: bytes, name: str, line: int) -> NDArray[np.int64]:
    """Return the numbers in `text`, which ends no number early; `line` is that of its begin."""
    data = np.frombuffer(text, np.uint8)
    digits = data - np.uint8(ord("0"))  # what is no digit wraps around or is 10 and more
    is_digit = digits < 10
    known = is_digit | _IS_SPACE[data]
    if not known.all():
        raise _not_an_id(text, int(np.argmin(known)), name, line)
    border = np.zeros(len(data) + 2, np.bool_)
    border[1:-1] = is_digit
    edges = np.flatnonzero(border[1:] != border[:-1])
    begins, ends = edges[::2], edges[1::2]
    lengths = ends - begins
    longest = int(lengths.max(initial=0))
    if longest > _MAX_DIGITS:
        raise _not_an_id(text, int(begins[np.argmax(lengths > _MAX_DIGITS)]), name, line)
    ids = np.zeros(len(begins), np.int64)
    for place in range(longest):
        # Where a number has no such digit, what stands there is multiplied by 0.
        found = digits.take(ends - 1 - place, mode="clip")
        ids += np.where(lengths > place, found, 0) * np.int64(10**place)
    if longest == _MAX_DIGITS and int(ids.max()) > MAX_ID:
        raise _not_an_id(text, int(begins[np.argmax(ids > MAX_ID)]), name, line)
    return ids


def _not_an_id(text: bytes, position: int, name: str, line: int) -> InputError:
    begin = max(text.rfind(space, 0, position) for space in (b" ", b"\t", b"\r", b"\n")) + 1
    found = _WORD.match(text, begin)
    word = found[0] if found else b""
    shown = word[:40].decode("utf-8", "backslashreplace") + ("..." if len(word) > 40 else "")
    where = f"{name}, line {line + text.count(bytes([10]), 0, position)}"
    return InputError(f"{where}: {shown!r} is not a token id (a number from 0 to {MAX_ID})")


def _read_jsonl(name: str) -> Iterator[NDArray[np.int64]]:
    with _open(name) as stream:
        pending: list[int] = []  # of short lines, unless the next has to be waited for
        for number, line in jsonl_lines(_buffered(stream), name):
            pending += _line_ids(line, f"{name}, line {number}")
            if len(pending) >= _BLOCK_IDS or not stream.wait(0):
                for begin in range(0, len(pending), _BLOCK_IDS):
                    yield np.array(pending[begin : begin + _BLOCK_IDS], np.int64)
                pending = []
        if pending:
            yield np.array(pending, np.int64)


def _line_ids(line: bytes, where: str) -> list[int]:
    ids = parse_json_object(line, where).get("ids")
    if not isinstance(ids, list):
        raise InputError(f'{where}: no list of ids: a line is {{"ids": [1, 2, ...]}}')
    if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) <= MAX_ID):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i <= MAX_ID)
        shown = json.dumps(bad)[:40]
        raise InputError(f"{where}: {shown} is not a token id (a number from 0 to {MAX_ID})")
    return ids


def _read_npy(name: str) -> Iterator[NDArray[np.int64]]:
    with _open(name) as stream:
        buffered = _buffered(stream)
        dtype, count = _npy_layout(buffered, name)
        yield from _read_numbers(buffered, name, dtype, count)


def _npy_layout(stream: io.BufferedIOBase, name: str) -> tuple[np.dtype[np.integer], int]:
    try:
        version = npy_format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = npy_format.read_array_header_1_0(stream)
        elif version == (2, 0):
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


@dataclass(frozen=True)
class _BinFacts:
    """What is known of a ``bin`` file before it is read; None for what its header says."""

    layout: str
    dtype: np.dtype[np.integer] | None
    count: int | None


def _bin_facts(name: str, vocabulary_size: int | None, layout: str) -> _BinFacts:
    is_stream = name == STANDARD_INPUT or not os.path.isfile(name)
    if is_stream and not os.path.exists(side_path(name)):
        if layout == "llmc":
            return _BinFacts(layout, None, None)
        if vocabulary_size is None:
            raise InputError(
                f"{name}: a bin stream has no side file and says nothing of its numbers: use npy"
            )
        return _BinFacts(layout, id_dtype(vocabulary_size), None)
    return _side_facts(name, read_side_file(name), is_stream)


def _side_facts(name: str, side: dict[str, object], is_stream: bool) -> _BinFacts:
    """Return what a side file says, if the file is as long as it says."""
    layout = cast(str, side["layout"])
    dtype = np.dtype(cast(str, side["dtype"])).newbyteorder("<")
    count, size = cast(int, side["count"]), os.stat(name).st_size
    if not is_stream and size != header_bytes(layout) + count * dtype.itemsize:
        behind = f" behind a header of {LLMC_HEADER_BYTES} bytes" if layout == "llmc" else ""
        raise InputError(
            f"{name} has {size} bytes, but by its side file {side_path(name)} it has {count} ids "
            f"of {dtype.itemsize} bytes{behind}: they don't belong together, or one is cut short"
        )
    return _BinFacts(layout, dtype, count)


def _read_bin(name: str, facts: _BinFacts) -> Iterator[NDArray[np.int64]]:
    with _open(name) as stream:
        buffered = _buffered(stream)
        dtype, count = facts.dtype, facts.count
        if facts.layout == "llmc":
            dtype, count = _check_header(buffered, name, facts)
        assert dtype is not None
        yield from _read_numbers(buffered, name, dtype, count)


def _check_header(
    stream: io.BufferedIOBase, name: str, facts: _BinFacts
) -> tuple[np.dtype[np.integer], int]:
    """Return what the header of llm.c says; InputError if the side file says something else."""
    dtype, count = parse_llmc_header(stream.read(LLMC_HEADER_BYTES), name)
    if facts.dtype is not None and (dtype, count) != (facts.dtype, facts.count):
        raise InputError(
            f"{name}: its header says {count} ids of {dtype.itemsize} bytes, its side file "
            f"{side_path(name)} does not"
        )
    return dtype, count


def _read_numbers(
    stream: io.BufferedIOBase, name: str, dtype: np.dtype[np.integer], count: int | None
) -> Iterator[NDArray[np.int64]]:
    """Yield `count` numbers (None: all there are) as ids; the stream must end with them."""
    done = 0
    rest = b""  # a number that goes on in the next block
    while block := stream.read1(_BLOCK_BYTES):
        data = rest + block
        whole = len(data) // dtype.itemsize
        rest = data[whole * dtype.itemsize :]
        numbers = np.frombuffer(data, dtype, whole)
        if count is not None and done + whole > count:
            raise InputError(f"{name}: more bytes than its {count} ids take")
        _check_range(numbers, name, done)
        done += whole
        if whole:
            yield numbers.astype(np.int64)
    if rest or (count is not None and done < count):
        expected = "a whole number of ids" if count is None else f"{count} ids"
        raise InputError(f"{name}: ends after {done} ids and {len(rest)} bytes, not {expected}")


def _check_range(numbers: NDArray[np.integer], name: str, done: int) -> None:
    if not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) <= MAX_ID):
        return
    position = int(np.argmax((numbers < 0) | (numbers > MAX_ID)))
    raise InputError(
        f"{name}, number {done + position}: {numbers[position]} is not a token id (a number from "
        f"0 to {MAX_ID})"
    )
