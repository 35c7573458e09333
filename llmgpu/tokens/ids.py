"""Token ids as text, one line per document: decimals with single spaces, or JSON lines.

Each document is a line. A document without ids is an empty line among decimals. JSON lines are
``{"ids": [1,2]}`` or ``{"ids": []}``. NumPy parses all decimals of a block at once.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.vocabulary.spelling import readable
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library
from llmgpu.cpu.texts import CELL_IDS, format_ids, spell_cells
from llmgpu.errors import InputError
from llmgpu.forking import cached_property
from llmgpu.input_files import STANDARD_INPUT, source_name
from llmgpu.spelling import spelled
from llmgpu.text.jsonl import jsonl_lines, parse_json_object
from llmgpu.text.streams import ByteStream, Rewound
from llmgpu.tokens.sinks import (
    BLOCK_BYTES,
    MAX_ID,
    TokenWriter,
    not_an_id,
    open_stream,
)

_BLOCK_IDS = 1 << 18  # ids that Python formats, or reads from JSON lines, at a time
_LEAST_IDS = 1 << 12  # in a slice of at least as many ids, making a table of spelled ids saves time
_MAX_DIGITS = 10
# Bytes that may stand between ids; commas and brackets for lists as programs print them.
_SPACES = b" \t\r\n,[]"
_BLANKED, _PLAIN = bytes.maketrans(_SPACES, b" " * len(_SPACES)), b"0123456789 "
_ZEROS = re.compile(rb" 0\d{%d}" % _MAX_DIGITS)
_WORD = re.compile(rb"[^%b]+" % re.escape(_SPACES))


def read_decimals(name: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a text in blocks, and the ids of a pipe as they arrive.

    A pipe may have JSON lines.
    """
    with open_stream(name) as stream:
        blocks = iter(partial(stream.read, BLOCK_BYTES), b"")
        first = bytes(next(blocks, b""))
        if name == STANDARD_INPUT and first.startswith(b"{"):
            yield from _ids_of_lines(Rewound(first, cast(BinaryIO, stream)), stream, name)
            return
        line = 1
        rest = b""  # beginning of a number that may continue in the next block
        for block in chain([first], blocks):
            text = rest + block
            cut = 1 + max(text.rfind(space) for space in _SPACES)
            if len(text) - cut > _MAX_DIGITS:  # already too long for an id
                cut = len(text)
            rest = text[cut:]
            ids = _parse_decimals(text[:cut], name, line)
            line += text.count(b"\n", 0, cut)
            if len(ids):
                yield ids
        if rest:
            yield _parse_decimals(rest, name, line)


def _parse_decimals(text: bytes, name: str, line: int) -> NDArray[np.int64]:
    """Return the numbers in `text`, which begins and ends between numbers.

    line: number of the line in which `text` starts.
    """
    blanked = b" " + text.translate(_BLANKED)
    # The fast parser needs plain decimals. A number with more digits than an id either has leading
    # zeros, which `_ZEROS` finds, or is above MAX_ID.
    if blanked.strip() and not blanked.translate(None, _PLAIN) and not _ZEROS.search(blanked):
        ids: NDArray[np.int64] = np.fromstring(blanked, np.int64, sep=" ")
        if int(ids.max()) <= MAX_ID:
            return ids
    for found in _WORD.finditer(text):
        word = found[0]
        if word.isdigit() and len(word) <= _MAX_DIGITS and int(word) <= MAX_ID:
            continue
        more = "..." if len(word) > 40 else ""
        shown = repr(word[:40].decode("utf-8", "backslashreplace") + more)
        if word.startswith(b"{"):
            shown += f" (JSON lines need {spelled('--format')} jsonl)"
        number = line + text.count(b"\n", 0, found.start())
        raise not_an_id(f"{source_name(name)}, line {number}", shown)
    return np.empty(0, np.int64)


class TextWriter(TokenWriter):
    """Writes ids as decimal text, using a table of spelled ids.

    `_content` spells a slice as if the slice continued a document that already has ids. If not,
    `_put` leaves out the first bytes: the separator, or the end of the previous document.
    """

    # Bytes between two ids, before a document, and after a document.
    SEPARATOR, BEFORE, AFTER = b" ", b"", b"\n"

    def __init__(self, path: str | Path, vocabulary: Vocabulary) -> None:
        super().__init__(path, vocabulary)
        self._is_open = False  # whether a document has begun and has not ended
        self._is_empty = True  # whether no id of the document is written yet

    @cached_property
    def _cells(self) -> NDArray[np.uint64]:
        return spell_cells(self._vocabulary.size, self.SEPARATOR)

    def _content(self, piece: EncodedSlice) -> bytes | memoryview:
        ids, starts, border = piece.ids, piece.document_starts, self.AFTER + self.BEFORE
        if self._vocabulary.size <= CELL_IDS and len(ids) >= _LEAST_IDS and library() is not None:
            return format_ids(self._cells, ids, starts, border)
        # Spell block by block. A document that starts between two blocks belongs to the second.
        parts = []
        for begin in range(0, max(len(ids), 1), _BLOCK_IDS):
            end = min(begin + _BLOCK_IDS, len(ids))
            low = np.searchsorted(starts, begin)
            high = len(starts) if end == len(ids) else np.searchsorted(starts, end)
            parts.append(_format(ids[begin:end], starts[low:high] - begin, self.SEPARATOR, border))
        return b"".join(parts)

    def _put(self, piece: EncodedSlice) -> None:
        ids, starts = piece.ids, piece.document_starts
        left_out = 0
        if len(starts) and starts[0] == 0:
            left_out = 0 if self._is_open else len(self.AFTER)
        elif len(ids) and self._is_empty:
            left_out = len(self.SEPARATOR)
        self._output.stream.write(memoryview(piece.content)[left_out:])
        if len(starts):
            self._is_open = True
            self._is_empty = bool(starts[-1] == len(ids))
        elif len(ids):
            self._is_empty = False
        if piece.closed and not self._is_empty:
            self._finish()

    def _finish(self) -> None:
        if self._is_open:
            self._output.stream.write(self.AFTER)
        self._is_open = False
        self._is_empty = True


def _format(
    ids: NDArray[np.uint32], starts: NDArray[np.int64], separator: bytes, border: bytes
) -> bytes:
    """Return ids as text: `border` before each document, `separator` before every other id."""
    decimals = [b"%d" % number for number in ids.tolist()]
    bounds = pairwise([0, *starts.tolist(), len(ids)])
    documents = [separator.join(decimals[begin:end]) for begin, end in bounds]
    if documents[0]:
        documents[0] = separator + documents[0]
    return border.join(documents)


class JsonlWriter(TextWriter):
    """Writes ids as JSON lines."""

    SEPARATOR, BEFORE, AFTER = b",", b'{"ids": [', b"]}\n"


def read_jsonl(name: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a file in blocks, and of a pipe as they arrive."""
    with open_stream(name) as stream:
        yield from _ids_of_lines(stream, stream, name)


def _ids_of_lines(raw: io.RawIOBase, stream: ByteStream, name: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of JSON lines; raw: reads the bytes of `stream`."""
    # Collect the ids of lines until no further line is ready, or there are enough.
    pending: list[int] = []
    for number, line in jsonl_lines(io.BufferedReader(raw, BLOCK_BYTES), name):
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
        raise not_an_id(where, json.dumps(bad)[:40])
    return ids


Style = Literal["lines", "colours", "borders"]

# Numbers of background colours in the palette of 256 colours. The first are used in turn for tokens
# with black text, the others for special tokens.
_GROUNDS = (153, 157, 229, 217)
_SPECIAL_GROUNDS = (88, 54)
_BORDER = "│"


class ShownTokens(TokenWriter):
    """Writes tokens as readable text, with an empty line between documents.

    Style "lines" has a line for each token, with id and text. The other styles show the text with
    its own line breaks. With "colours" tokens have backgrounds of different colours, with "borders"
    a border after each token.
    """

    def __init__(self, path: str | Path, vocabulary: Vocabulary, style: Style = "lines") -> None:
        """Open `path` ("-": standard output) for the tokens of a vocabulary."""
        super().__init__(path, vocabulary)
        self._tokens, self._style = vocabulary.tokens, style
        self._special = frozenset(vocabulary.special_tokens.values())
        self._readable = cache(lambda token_id: readable(vocabulary.tokens[token_id]))
        self._turn = 0

    def _put(self, piece: EncodedSlice) -> None:
        bounds = [0, *piece.document_starts.tolist(), len(piece.ids)]
        text = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if number and self.documents + number > 1:  # no empty line before the first document
                text.append("\n" if self._style == "lines" else "\n\n")
            text += self._show(piece.ids[begin:end])
        self._output.stream.write("".join(text).encode())

    def _finish(self) -> None:
        if self._style != "lines" and self.ids:
            self._output.stream.write(b"\n")

    def _show(self, ids: NDArray[np.uint32]) -> Iterator[str]:
        for token_id in ids.tolist():
            text = self._readable(token_id)
            line_end = "\n" if self._tokens[token_id].endswith(b"\n") else ""
            if self._style == "lines":
                yield f"{token_id}\t{text}\n"
            elif self._style == "borders":
                yield f"{text}{_BORDER}{line_end}"
            else:
                yield f"\x1b[{self._colours(token_id)}m{text}\x1b[0m{line_end}"

    def _colours(self, token_id: int) -> str:
        """Return the colours of the next token, as parameters of a terminal's escape sequence."""
        self._turn = (self._turn + 1) % len(_GROUNDS)
        if token_id in self._special:
            return f"38;5;231;48;5;{_SPECIAL_GROUNDS[self._turn % len(_SPECIAL_GROUNDS)]}"
        return f"38;5;16;48;5;{_GROUNDS[self._turn]}"
