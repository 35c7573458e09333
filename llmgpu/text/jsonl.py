"""The documents of a JSON Lines file: one field of the object in each line.

A line ends at a newline byte; blank lines are skipped, as every reader of the format does. JSON can
spell lone surrogates, which are not text: under the policy "raw" they become the three bytes that
UTF-8 would give them, under "replace" U+FFFD, and "strict" refuses them. Bytes of a line that are
not UTF-8 are treated by the same policy.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import ClassVar

from llmgpu.errors import InputError
from llmgpu.input_files import quote
from llmgpu.text.documents import REPLACEMENT, Utf8Policy
from llmgpu.text.streams import ByteStream, Source

_BLOCK_BYTES = 1 << 20  # of the file, read at a time
LINE_BYTES = 1 << 30  # a longer line is refused: the memory a line takes is a multiple of it

_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = {
    bool: "a truth value",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def jsonl_lines(
    stream: io.BufferedIOBase, name: str, *, is_begin: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of every line that isn't blank.

    is_begin: the stream begins where the file does. A byte order mark there is dropped.

    InputError for a line of more than LINE_BYTES.
    """
    number = 0
    while line := stream.readline(LINE_BYTES + 1):
        number += 1
        if len(line) > LINE_BYTES:
            raise InputError(
                f"{name}, line {number}: longer than {LINE_BYTES} bytes: split the document"
            )
        line = line.removeprefix(_BYTE_ORDER_MARK) if is_begin and number == 1 else line
        if not line.isspace() and line:
            yield number, line


class JsonlFile(ByteStream):
    """A file of which each line is a document, opened."""

    may_be_compressed: ClassVar[bool] = True
    cut_at_lines: ClassVar[bool] = True

    @staticmethod
    def check(source: Source) -> None:
        """Allow any file."""

    def __init__(self, source: Source, text_field: str) -> None:
        """Open the file; `text_field` of each line's object is its text."""
        super().__init__(source)
        self._text_field = text_field
        self._begin = source.begin

    def documents(self, policy: Utf8Policy) -> Iterator[bytes]:
        """Yield the text of each line; InputError names the file and the line."""
        buffered, begin = io.BufferedReader(self, _BLOCK_BYTES), self._begin
        after = f" after byte {begin}" if begin else ""
        for number, line in jsonl_lines(buffered, self.name, is_begin=not begin):
            where = f"{self.name}, line {number}{after}"
            decoded, has_invalid = _decode(line, where, policy)
            yield _encode(_field(decoded, where, self._text_field), has_invalid, where, policy)


def parse_json_object(text: str | bytes, where: str) -> dict[str, object]:
    """Return the JSON object that `text` is; InputError says `where` it isn't one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error})") from error
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "null")
        raise InputError(f"{where}: not a JSON object but {kind}")
    return value


def _field(line: str, where: str, text_field: str) -> str:
    """Return the text in a field of an object, or in one of an object within it: "a.b"."""
    document = parse_json_object(line, where)
    names = [text_field] if text_field in document else text_field.split(".")
    value: object = document
    for name in names:
        if not isinstance(value, dict) or name not in value:
            fields = value if isinstance(value, dict) else {}
            present = ", ".join(sorted(map(repr, fields))[:10]) or "none"
            raise InputError(f"{where}: no field {quote(text_field)}; the fields are: {present}")
        value = value[name]
    if not isinstance(value, str):
        kind = _KINDS.get(type(value), "null")
        raise InputError(f"{where}: field {quote(text_field)} is not a string but {kind}")
    return value


def _decode(line: bytes, where: str, policy: Utf8Policy) -> tuple[str, bool]:
    """Return the line as text and whether invalid bytes are in it as surrogate escapes."""
    try:
        return line.decode(), False
    except UnicodeDecodeError as error:
        if policy.policy == "raw":
            return line.decode("utf-8", "surrogateescape"), True
        if policy.policy == "replace":
            text = line.decode("utf-8", "replace")
            present = line.count(REPLACEMENT.encode())
            policy.invalid_sequences += text.count(REPLACEMENT) - present
            return text, False
        raise InputError(
            f"{where}: invalid UTF-8 at byte {error.start} of the line: repair it, or let "
            "encoding errors be 'replace' or 'raw'"
        ) from error


def _encode(text: str, has_invalid: bool, where: str, policy: Utf8Policy) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape" if has_invalid else "strict")
    except UnicodeEncodeError as error:
        if policy.policy == "raw":
            return _encode_surrogates(text, has_invalid)
        if policy.policy == "replace":
            text, count = _SURROGATE.subn(REPLACEMENT, text)
            policy.invalid_sequences += count
            return text.encode()
        raise InputError(
            f"{where}: a lone surrogate (U+{ord(text[error.start]):04X}) is not text: repair it, "
            "or let encoding errors be 'replace' or 'raw'"
        ) from error


def _encode_surrogates(text: str, has_invalid: bool) -> bytes:
    if not has_invalid:
        return text.encode("utf-8", "surrogatepass")
    # Both in one line: U+DC80 to U+DCFF stand for bytes, the other surrogates were spelled.
    parts = re.split(f"({_SURROGATE.pattern})", text)
    return b"".join(
        part.encode("utf-8", "surrogateescape" if "\udc80" <= part <= "\udcff" else "surrogatepass")
        for part in parts
    )
