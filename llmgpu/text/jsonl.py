"""The documents of a JSON Lines file: one field of the object in each line.

A line ends at a newline byte. Blank lines are skipped, as every reader of the format does. JSON can
spell lone surrogates, which are not text. They become U+FFFD, as in a str that a tokenizer encodes;
the policy "strict" refuses them. Invalid UTF-8 in a line is treated by the same policy.

Rows without the field, or with null in it, are left out and counted, as in tables. But a file is
refused if its first FIRST_ROWS rows all lack the field, or all rows of a shorter file: the text
must then be in another field.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import TEXT_PADDING, library
from llmgpu.cpu.texts import JsonlTexts, TakenTexts
from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.machine import usable_processors
from llmgpu.pipeline import Begun
from llmgpu.spelling import spelled
from llmgpu.text.documents import (
    REPLACEMENT,
    InputPolicy,
    MissingFieldError,
    Piece,
    Template,
    field_hint,
)
from llmgpu.text.streams import ByteStream, Source

_BLOCK_BYTES = 1 << 20  # bytes of a stream that are read at a time
_SPAN_BYTES = 2 << 20  # bytes of a regular file whose lines one thread reads and parses
_SEARCHED_BYTES = 1 << 15  # bytes read at a time to find where the first line of a span begins
_CHECKED_BYTES = 1 << 16  # bytes read at a time to find the first row with the field
_AHEAD = 12  # blocks or spans that threads parse in advance
_BEGUN = 2  # blocks or spans parsed while an earlier file is still being read
FIRST_ROWS = 1000  # a file is refused if this many rows at its start lack the field
# a longer line is refused, because parsing needs a multiple of its size in memory
LINE_BYTES = 1 << 30

_SURROGATE = re.compile("[\ud800-\udfff]")
# Lone surrogates, except those by which Python represents invalid bytes.
_SPELLED = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadRowError(InputError):
    """A row is not an object, or its field holds a value of the wrong type."""


_ARRAY = "; jq -c '.[]' makes JSON Lines of an array"


def jsonl_lines(stream: io.BufferedIOBase, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of every line of a file that isn't blank.

    name: the file, for errors. A byte order mark is dropped.

    Raises InputError for a line of more than LINE_BYTES.
    """
    number = 0
    while line := stream.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise _too_long(name, number, LINE_BYTES)
        line = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if not line.isspace() and line:
            yield number, line


@dataclass(frozen=True, eq=False)
class _Block:
    """Whole lines of a file: data[:end].

    is_last: whether the file ends here. The last line may then lack its newline. after: value of
    `JsonlFile.position` once the block is used up; None for a stream, where reading counts bytes.
    """

    data: NDArray[np.uint8]
    end: int
    is_last: bool = False
    after: int | None = None

    @staticmethod
    def of(lines: bytearray, *, is_last: bool = False) -> _Block:
        """Return the lines as a block, with padding that is added to `lines`."""
        lines += bytes(TEXT_PADDING)
        return _Block(np.frombuffer(lines, np.uint8), len(lines) - TEXT_PADDING, is_last)


class JsonlFile(ByteStream):
    """An open file with a document in each line.

    longest: most bytes of a line. reads_in_c: whether the C engine may extract the documents.
    """

    has_lines: ClassVar[bool] = True
    longest: ClassVar[int] = LINE_BYTES
    reads_in_c: ClassVar[bool] = True

    @staticmethod
    def check(source: Source) -> None:
        """Allow any file."""

    def __init__(self, source: Source, text_field: str, template: Template | None = None) -> None:
        """Open the file.

        A document is the field `text_field` of a line; with a template, the text that it composes.
        """
        super().__init__(source)
        self._begin, self._field, self._template = source.begin, text_field, template
        self._lines = 0
        self._has_field = False  # whether a row with the field was found
        self._missing = 0  # rows seen before the first row with the field
        self._first_missing = ""
        self._texts: JsonlTexts | None = None
        has_engine = self.reads_in_c and library() is not None
        if template is None and has_engine and _SURROGATE.search(text_field) is None:
            self._texts = JsonlTexts(text_field, self.longest)
        self._parts = self._taken_parts()

    def documents(self, policy: InputPolicy) -> Iterator[Piece]:
        """Yield the texts of the lines. The InputError of a bad line names the file and line."""
        for block, taken in self._parts:
            yield from self._take(block, policy, taken)
            if block.after is not None:
                self.position = block.after
        self.check_field()
        self.check_unchanged()

    def begin(self) -> None:
        """Parse the first blocks before the file's turn, see `DocumentFile.begin`."""
        super().begin()
        if self._texts is not None:
            self._parts.begin(_BEGUN)

    def close(self) -> None:
        self._parts.close()
        super().close()

    def value(self, document: dict[str, object], where: str) -> object:
        """Return the field's value in a line's object; None if the field is missing or null."""
        try:
            found = find_field(document, where, self._field)
        except MissingFieldError as error:
            found = None
            self._first_missing = self._first_missing or str(error)
            self._missing += not self._has_field
            if self._missing == FIRST_ROWS:
                self.check_field()
        else:
            self._has_field = True
        return found

    def check_field(self) -> None:
        """Raise InputError if all rows so far, and the first rows of the file, lack the field.

        If only a part of the file is read, the first rows of the whole file are read for this
        decision, so that all parts decide alike.
        """
        if self._has_field or not self._missing:
            return
        if self._source.span is None:
            raise MissingFieldError(self._first_missing)
        JsonlFile(self._source._replace(span=None), self._field).check_first_rows()

    def check_first_rows(self) -> None:
        """Read rows up to the first one with the field, and close the file.

        Raises MissingFieldError as `check_field` does.
        """
        with io.BufferedReader(self, _CHECKED_BYTES) as stream:
            for number, line in jsonl_lines(stream, self.name):
                where = place_of_line(self.name, number, 0)
                with suppress(BadRowError):
                    text = line.decode("utf-8", "surrogateescape")
                    self.value(parse_json_object(text, where), where)
                if self._has_field:
                    return
            self.check_field()

    def _taken_parts(self) -> Begun[Any, tuple[_Block, TakenTexts | None]]:
        """Return the blocks of the file, each with its texts; threads parse blocks in advance.

        Threads read the spans of a regular file themselves. A stream is read block by block.
        """
        has_engine = self._texts is not None
        most = min(usable_processors(), _AHEAD) if has_engine and self._pollable is None else 0
        if not (self.reads_anywhere and has_engine):
            return Begun(self._read_blocks(), self._take_block, most)
        spans = range(self._begin, self._end_of_file, _SPAN_BYTES)
        most = min(most, len(spans))
        return Begun(spans, lambda begin: self._take_block(self._read_span(begin)), most)

    def _take_block(self, block: _Block) -> tuple[_Block, TakenTexts | None]:
        return block, self._take_texts(block, 0)

    def _take_texts(self, block: _Block, begin: int) -> TakenTexts | None:
        """Return the texts that the C engine extracts from `begin` on; None without the engine."""
        if self._texts is None:
            return None
        return self._texts.take(block.data, begin, block.end, is_last=block.is_last)

    def _read_span(self, begin: int) -> _Block:
        """Return the lines that start in the span from `begin` on. Any thread may call this."""
        end = min(begin + _SPAN_BYTES, self._end_of_file)
        first = begin if begin == self._begin else self._next_line(begin, end)
        # A line that covers the whole span belongs to an earlier span.
        last = first
        if first < end:
            last = self._next_line(end, min(end + self.longest + 1, self._end_of_file))
        data = np.empty(last - first + TEXT_PADDING, np.uint8)
        lines = data[: last - first]
        self.read_at(lines, first)
        is_last = last > first and bool(lines[-1] != ord("\n"))
        return _Block(data, len(lines), is_last=is_last, after=end - self._begin)

    def _next_line(self, offset: int, end: int) -> int:
        """Return where the first line from `offset` on begins; `end` if none begins before it."""
        position = offset - 1
        while position < end - 1:
            block = np.empty(min(_SEARCHED_BYTES, end - 1 - position), np.uint8)
            self.read_at(block, position)
            if found := block.tobytes().find(b"\n") + 1:
                return position + found
            position += len(block)
        return end

    def _read_blocks(self) -> Iterator[_Block]:
        """Yield the file in blocks of whole lines."""
        data = bytearray()
        while block := self.read(_BLOCK_BYTES):
            # Yield the whole lines, and keep the incomplete line for the next block.
            end = block.rfind(b"\n") + 1
            if end:
                yield _Block.of(data + block[:end])
                data = bytearray()
            data += block[end:]
            if len(data) > self.longest:
                raise _too_long(self.name, self._lines + 1, self.longest)
        if data:
            yield _Block.of(data, is_last=True)

    def _take(
        self, block: _Block, policy: InputPolicy, taken: TakenTexts | None
    ) -> Iterator[Piece]:
        """Yield the texts of a block. The C engine leaves unusual lines to Python's json."""
        begin, end, lines = 0, block.end, b""
        while begin < end:
            # Yield the texts that C has parsed, up to the first line that C has left to Python.
            taken = taken or self._take_texts(block, begin)
            if taken is not None:
                begin = taken.end
                self._lines += taken.lines
                policy.null_rows += taken.nulls
                self._has_field |= bool(len(taken.starts) or taken.nulls)
                if len(taken.starts):
                    yield Piece(taken.text, taken.starts, closed=True)
                taken = None
                if begin == end:
                    return
            # Parse one line in Python, then continue with the engine.
            lines = lines or block.data[:end].tobytes()
            after = lines.find(b"\n", begin) + 1 or end
            line, begin = lines[begin:after], after
            self._lines += 1
            if len(line) > self.longest:
                raise _too_long(self.name, self._lines, self.longest)
            if self._lines == 1 and not self._begin:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line.isspace() and line:
                document = self._document(line, policy)
                if document is not None:
                    yield document

    def _document(self, line: bytes, policy: InputPolicy) -> Piece | None:
        """Return the text of a line; None if the line is left out, which `policy` counts."""
        where = place_of_line(self.name, self._lines, self._begin)
        decoded, has_invalid = decode_line(line, where, policy)
        try:
            return self._of_row(parse_json_object(decoded, where), where, policy, has_invalid)
        except BadRowError as error:
            policy.leave_out(error)
            return None

    def _of_row(
        self, row: dict[str, object], where: str, policy: InputPolicy, has_invalid: bool
    ) -> Piece | None:
        """Return the document of a row; None for a row without text, which `policy` counts.

        where: name of the row in errors. has_invalid: see `encode_text`.

        Raises BadRowError for a value that is not text.
        """
        text = self._text_of(row, where)
        if text is None:
            policy.null_rows += 1
            return None
        return Piece.document(encode_text(text, has_invalid, where, policy))

    def _text_of(self, row: dict[str, object], where: str) -> str | None:
        """Compose the text of a row. Raises BadRowError for a value that is not text.

        If the field is missing, the result is None and the row is left out. With a template, a
        missing field raises BadRowError, too.
        """
        if self._template is None:
            return _as_text(self.value(row, where), self._field, where)
        values = []
        for name in self._template.fields:
            try:
                found = _as_text(find_field(row, where, name), name, where)
            except MissingFieldError as error:
                raise BadRowError(str(error)) from error
            if found is None:
                return None
            values.append(found)
        return self._template.fill(values)


def _as_text(value: object, field: str, where: str) -> str | None:
    if not isinstance(value, str | None):
        what = f"is not a string but {kind_of_value(value)}"
        raise BadRowError(f"{where}: field {quote(field)} {what}")
    return value


def place_of_line(name: str, number: int, begin: int) -> str:
    """Return the name of a line in errors, such as "FILE line 3".

    number: the line's number from 1. begin: offset in the file of the line with number 1.
    """
    return f"{name}, line {number}" + (f" after byte {begin}" if begin else "")


def _too_long(name: str, number: int, most: int) -> InputError:
    return InputError(f"{name}, line {number}: longer than {most} bytes: split the document")


def parse_json_object(text: str | bytes, where: str) -> dict[str, object]:
    """Parse a JSON object. Raises BadRowError for any other text.

    where: name of the line, with which the message begins.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # some of Python's messages end with " at"
        array = _ARRAY if str(error.doc).lstrip().startswith("[") else ""
        where = f"{where}: not JSON ({what} at character {error.pos + 1}){array}"
        raise BadRowError(where) from error
    except RecursionError as error:
        raise BadRowError(f"{where}: nested too deep") from error
    except ValueError as error:
        raise BadRowError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, dict):
        array = _ARRAY if isinstance(value, list) else ""
        raise BadRowError(f"{where}: not a JSON object but {kind_of_value(value)}{array}")
    return value


def kind_of_value(value: object) -> str:
    """Return the type of a JSON value in words, for a message."""
    return _KINDS.get(type(value), "null")


def find_field(document: dict[str, object], where: str, text_field: str) -> object:
    """Return the value of a field of an object; "a.b" is field b of the object in field a.

    Raises MissingFieldError, with the names of the existing fields, if the field is missing.
    """
    names = [text_field] if text_field in document else text_field.split(".")
    value: object = document
    for depth, name in enumerate(names):
        if not isinstance(value, dict) or name not in value:
            fields = value if isinstance(value, dict) else {}
            present = ", ".join(sorted(map(repr, fields))[:10]) or "none"
            if not isinstance(value, dict):
                outer = quote(".".join(names[:depth]))
                present += f" in {outer}, which is {kind_of_value(value)}"
            chat = ""
            if "messages" in fields:
                chat = f" (conversations: tokenize, count and train take {spelled('--chat')})"
            elif "conversations" in fields:
                chat = " (ShareGPT's from and value: docs/tokenizing.md has jq for messages)"
            hint = field_hint(text_field, [*fields])
            raise MissingFieldError(
                f"{where}: no field {quote(text_field)}; the fields are: {present}{chat}{hint}"
            )
        value = value[name]
    return value


def decode_line(line: bytes, where: str, policy: InputPolicy) -> tuple[str, bool]:
    """Return the text of a line, and whether it has surrogate escapes for invalid bytes."""
    try:
        return line.decode(), False
    except UnicodeDecodeError as error:
        if policy.policy == "raw":
            policy.count(line, final=True)
            return line.decode("utf-8", "surrogateescape"), True
        if policy.policy == "replace":
            return policy.replace(line, final=True).decode(), False
        raise InputError(
            f"{where}: invalid UTF-8 at byte {error.start} of the line: repair it, or "
            f"use {spelled('--encoding-errors')} replace (or raw)"
        ) from error


def encode_text(text: str, has_invalid: bool, where: str, policy: InputPolicy) -> bytes:
    """Encode a text; has_invalid: whether its surrogate escapes represent invalid bytes."""
    try:
        return text.encode("utf-8", "surrogateescape" if has_invalid else "strict")
    except UnicodeEncodeError as error:
        if policy.policy == "strict":
            raise InputError(
                f"{where}: a lone surrogate (U+{ord(text[error.start]):04X}) is not text: repair "
                "it, or let encoding errors be 'replace' or 'raw'"
            ) from error
        # Keep surrogates that represent invalid bytes, and replace all others.
        text, count = (_SPELLED if has_invalid else _SURROGATE).subn(REPLACEMENT, text)
        policy.invalid_sequences += count if policy.policy == "replace" else 0
        return text.encode("utf-8", "surrogateescape")
