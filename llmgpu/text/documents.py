r"""Text cut into documents: fields of rows, separators, lines, and invalid UTF-8.

- The encoding policy is applied first, to the unchanged bytes of a file, so that an offset in a
  message is an offset in the file. Separators are searched for in the resulting bytes.
- Separators are matched from the start of the text. At each position the longest separator that
  matches wins. A separator belongs to no document. As with `bytes.split`, k separators make k + 1
  documents; documents may be empty.
- With line documents, each document between separators is also cut after every newline. An empty
  document has no lines and is dropped.
- Text is cut block by block. The last bytes of a block are held back until the next block only if
  a separator or a UTF-8 sequence may begin in them.
- A template such as ``{question}\n{answer}`` makes the text of several fields of a row. ``{field}``
  is replaced by the value of a field, and ``{a.b}`` by the value of field ``b`` of the object in
  field ``a``; ``{{`` and ``}}`` are braces. Python's other format specifications are refused.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile, zip_longest
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.texts import line_starts
from llmgpu.errors import InputError
from llmgpu.input_files import listed, number_of, quote, require_known, source_name
from llmgpu.spelling import spelled

ENCODING_POLICIES = ("strict", "replace", "raw")
ROW_POLICIES = ("error", "skip")
# Written as a number: for a character's name, Python would load a library, for which there may be
# no memory.
REPLACEMENT = "\ufffd"

# Reading stops at this number of documents, since empty documents never fill a buffer.
MANY_DOCUMENTS = 1 << 21
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[^{}]+", re.DOTALL)
_BETWEEN_FIELDS = "\n"
_CHECK_BYTES = 1 << 20  # bytes checked at a time; decoded text needs up to four times the memory


@dataclass(frozen=True, eq=False)
class Piece:
    """A stretch of text, with the positions at which documents begin.

    text: uint8 (n,).
    starts: int64, ascending positions in [0, n] at which documents begin. A position is repeated
        for empty documents. All pieces of a text together have exactly one start per document.
    closed: whether a document ends at the end of this text. The next byte, if any, then begins
        another document.
    end: whether this is the last piece.
    """

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    closed: bool
    end: bool = False

    @staticmethod
    def document(text: bytes) -> Piece:
        """Return a whole document as a piece."""
        return Piece(np.frombuffer(text, np.uint8), FIRST, closed=True)

    @property
    def length(self) -> int:
        """Bytes of the text."""
        return len(self.text)


FIRST = np.zeros(1, np.int64)  # the starts of a single document
NO_TEXT = Piece(np.empty(0, np.uint8), np.empty(0, np.int64), closed=True, end=True)


class PieceReader:
    """Copies pieces into buffers of any size."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        """Read from `pieces`, up to a piece with `end`, whose text is empty."""
        self._pieces = pieces
        self._piece = NO_TEXT
        self._position = 0  # position in the text of the current piece
        self._next_start = 0  # index in the starts of the current piece

    def read(self, view: NDArray[np.uint8]) -> Piece:
        """Fill the front of `view` from one piece. The text of the result may be empty."""
        if self.is_used_up:
            following = next(self._pieces, NO_TEXT)
            if following.end:
                return NO_TEXT
            self._piece, self._position, self._next_start = following, 0, 0
        # Copy as much of the piece as fits.
        piece, begin = self._piece, self._position
        end = min(len(piece.text), begin + len(view))
        text = view[: end - begin]
        text[:] = piece.text[begin:end]
        if end == len(piece.text):
            last, closed = len(piece.starts), piece.closed
        else:
            # If a document starts at the cut, this text is closed. The next call returns the start.
            last = int(np.searchsorted(piece.starts, end))
            closed = last < len(piece.starts) and bool(piece.starts[last] == end)
        starts = piece.starts[self._next_start : last] - begin
        self._position, self._next_start = end, last
        return Piece(text, starts, closed)

    @property
    def is_used_up(self) -> bool:
        """Whether `read` has returned the current piece to its end."""
        piece = self._piece
        return self._position == len(piece.text) and self._next_start == len(piece.starts)


class TextFilter(Protocol):
    """Changes a text on its way to an encoder, piece by piece.

    A filter may hold back the end of the text while later text can still change it, but never
    beyond the end of a document.
    """

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the filtered text, up to the first place that later text may still change.

        starts: positions in `text` at which documents begin. final: whether a document ends with
            `text`.
        """


class InputPolicy:
    """The handling of invalid UTF-8 and of bad rows.

    Invalid UTF-8: "strict" raises InputError, "replace" writes U+FFFD, "raw" keeps the bytes.
    Bad rows: "error" raises InputError, "skip" leaves the rows out.

    invalid_sequences: number of invalid sequences in all files so far that were replaced, or, under
    "raw", kept. bad_rows: number of invalid rows that were left out. null_rows: number of rows
    without text, which are always left out.
    """

    def __init__(self, policy: str, rows: str = "error") -> None:
        """Set one of ENCODING_POLICIES and one of ROW_POLICIES; InputError for another name."""
        require_known("policy for bad rows", rows, ROW_POLICIES)
        require_known("policy for encoding errors", policy, ENCODING_POLICIES)
        self.policy, self._rows = policy, rows
        self.invalid_sequences = self.bad_rows = self.null_rows = 0
        self._first_bad_row = ""
        self._invalid_in: dict[str, None] = {}  # keys: files with kept invalid bytes, in order
        self.begin("")

    @property
    def notes(self) -> list[str]:
        """Remarks for the user on invalid UTF-8 and bad rows so far."""
        notes = []
        invalid = number_of(self.invalid_sequences, "invalid UTF-8 sequence")
        if self._invalid_in:
            kept = f"{invalid} kept as bytes in {listed([*self._invalid_in])}"
            notes.append(f"{kept}; use --encoding-errors strict or replace to change this")
        elif self.invalid_sequences:
            notes.append(f"{invalid} replaced by U+FFFD")
        if self.bad_rows:
            bad = number_of(self.bad_rows, "bad row")
            notes.append(f"{bad} skipped; the first: {self._first_bad_row}")
        return notes

    def begin(self, name: str, offset: int = 0) -> None:
        """Begin a file. The next byte is at `offset` of the file `name`."""
        self._name = name
        self._held = b""  # incomplete UTF-8 at the end; under "strict", it is returned already
        self._offset = offset  # offset in the file of the first held byte

    def leave_out(self, error: InputError) -> None:
        """Count a bad row. Under "error", raise the row's error."""
        if self._rows == "error":
            raise InputError(
                f"{error}; use {spelled('--bad-rows')} skip to skip such rows"
            ) from error
        self._first_bad_row = self._first_bad_row or str(error)
        self.bad_rows += 1

    def apply(self, text: NDArray[np.uint8], final: bool) -> NDArray[np.uint8]:
        """Apply the policy to the next bytes of the file.

        final: whether the file ends with these bytes. Under "replace", an incomplete sequence is
        held back. Raises InputError for invalid bytes under "strict".
        """
        if self.policy == "raw":
            return text
        valid, end = [], max(len(text), 1)
        for begin in range(0, end, _CHECK_BYTES):
            block = text[begin : begin + _CHECK_BYTES].tobytes()
            valid.append(self.replace(block, final and begin + _CHECK_BYTES >= end))
        return text if self.policy == "strict" else np.frombuffer(b"".join(valid), np.uint8)

    def count(self, block: bytes, final: bool) -> None:
        """Count invalid sequences in the next bytes of a file; final: whether they are the last."""
        self._invalid_in[source_name(self._name)] = None
        self.replace(block, final)

    def replace(self, block: bytes, final: bool) -> bytes:
        """Return the next bytes of a file with invalid sequences replaced by U+FFFD.

        An incomplete sequence at the end is held back, unless the file ends there (`final`). Raises
        InputError for an invalid sequence under "strict".
        """
        data = self._held + block
        try:
            consumed = codecs.utf_8_decode(data, "strict", final)[1]
            valid = data[:consumed]
        except UnicodeDecodeError as error:
            if self.policy == "strict":
                found = data[error.start : error.end].hex(" ")
                raise InputError(
                    f"{self._name}: invalid UTF-8 at byte {self._offset + error.start} ({found}): "
                    f"repair it, or use {spelled('--encoding-errors')} replace (or raw)"
                ) from error
            text, consumed = codecs.utf_8_decode(data, "replace", final)
            valid = text.encode()
            present = data[:consumed].count(REPLACEMENT.encode())
            self.invalid_sequences += text.count(REPLACEMENT) - present
        self._held = data[consumed:]
        self._offset += consumed
        return valid


class MissingFieldError(InputError):
    """A row lacks the field, or a table lacks the column."""


class Template(NamedTuple):
    """Fields in order, and the texts before, between and after the fields."""

    fields: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def joined(cls, fields: Sequence[str]) -> Template:
        """Return the template that joins one or more fields by newlines."""
        return cls(tuple(fields), ("", *[_BETWEEN_FIELDS] * (len(fields) - 1), ""))

    @classmethod
    def parse(cls, source: str) -> Template:
        """Parse a template such as ``{question} {answer}``.

        Raises InputError for a stray brace, or a text without a field.
        """
        fields: list[str] = []
        texts = [""]
        position = 0
        # Take one part after another: a doubled brace, a field, or text without braces.
        while position < len(source):
            found = _PART.match(source, position)
            if found is None:
                raise InputError(
                    f"the template {quote(source)} has a stray {source[position]} at character "
                    f"{position + 1}: a field is {{name}}, and a brace is {{{{ or }}}}"
                )
            if found[1] is None:
                texts[-1] += {"{{": "{", "}}": "}"}.get(found[0], found[0])
            elif not found[1] or re.search(r"[:!\[\]\s]", found[1]):
                raise InputError(
                    f"the template {quote(source)} has {found[0]}, which is not a field: write "
                    "{name} or {outer.name}, without conversions"
                )
            else:
                fields.append(found[1])
                texts.append("")
            position = found.end()
        if not fields:
            raise InputError(f"the template {quote(source)} has no field such as {{text}}")
        return cls(tuple(fields), tuple(texts))

    @property
    def source(self) -> str:
        """The text that spells the template."""
        texts = [text.replace("{", "{{").replace("}", "}}") for text in self.texts]
        fields = [f"{{{field}}}" for field in self.fields]
        return "".join(chain.from_iterable(zip_longest(texts, fields, fillvalue="")))

    def fill(self, values: Sequence[str]) -> str:
        """Return the text with these values in place of the fields, in the order of `fields`."""
        after = zip(values, self.texts[1:], strict=True)
        return self.texts[0] + "".join(value + text for value, text in after)


def field_hint(name: str, known: Sequence[str]) -> str:
    """Return the advice for a missing field, by its name and the names of the known fields."""
    numbers = [part for part in name.split(".") if part.isdecimal()]
    if numbers:
        return f"; fields are chosen by name, and {numbers[-1]} is no position in a row or a list"
    parts = [part.strip() for part in name.split(",")]
    if len(parts) < 2 or not {part.split(".")[0] for part in parts} <= set(known):
        choose, leave_out = spelled("--text-field"), spelled("--exclude")
        return f"; choose one with {choose}, or leave the file out with {leave_out}"
    flags = " ".join(f"--text-field {part}" for part in parts)
    return f"; for several fields, {spelled(flags, 'use a Template')}"


class DocumentSplitter:
    """Cuts texts at separators and into lines."""

    def __init__(self, separators: Sequence[bytes], line_documents: bool) -> None:
        """Set the separators, if any; InputError for an empty separator."""
        if not all(separators):
            raise InputError("a document separator is empty: it needs at least one byte")
        self._separators = sorted(set(separators), key=len, reverse=True)
        self._longest = max(map(len, separators), default=0)  # bytes
        self._pattern = re.compile(b"|".join(map(re.escape, self._separators)))
        self._line_documents = line_documents
        self.begin()

    def begin(self, continues: bool = False) -> None:
        """Begin another text; continues: whether the text begins inside a document."""
        self._held = b""
        self._due = not continues  # the start of the first document has yet to be returned
        self._closed = True
        self._fresh = True  # whether the next byte begins a line

    def split(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Cut each document of the pieces, which have whole documents, into further documents."""
        if not (self._separators or self._line_documents):
            yield from pieces
            return
        for piece in pieces:
            for begin, end in pairwise([*piece.starts.tolist(), piece.length]):
                self.begin()
                yield self.feed(piece.text[begin:end], final=True)

    def feed(self, block: NDArray[np.uint8], final: bool) -> Piece:
        """Return the text that later blocks can't change; final: whether this is the last block."""
        text, cuts = block, NO_TEXT.starts
        if self._longest:
            data = self._held + block.tobytes()
            spans, decided = self._find_separators(data, final)
            self._held = data[decided:]
            text = np.frombuffer(data, np.uint8, decided)
            if spans:
                text, cuts = remove_spans(text, np.array(spans, np.int64))
        if self._line_documents:
            starts = self._find_lines(text, cuts)
            return Piece(text, starts, self._fresh or final)
        if self._due:
            cuts = np.concatenate([FIRST, cuts]) if len(cuts) else FIRST
            self._due = False
        if len(text) or len(cuts):
            self._closed = bool(len(cuts)) and bool(cuts[-1] == len(text))
        return Piece(text, cuts, self._closed or final)

    def _find_lines(self, text: NDArray[np.uint8], cuts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions at which lines begin, in the next stretch of text.

        cuts: further positions that begin lines, in ascending order. A line that begins at the end
        of the text is reported with the next byte, if any.
        """
        starts = line_starts(text)
        if len(cuts):
            starts = np.union1d(starts, cuts)
        if self._fresh and not (len(starts) and starts[0] == 0):
            starts = np.concatenate([FIRST, starts])
        self._fresh = bool(len(starts)) and bool(starts[-1] == len(text))
        return starts[:-1] if self._fresh else starts

    def _find_separators(self, data: bytes, final: bool) -> tuple[list[tuple[int, int]], int]:
        """Find the separators in a block.

        Returns their (begin, end), and the position up to which the search is complete.
        """
        # Find the first position at which a separator may begin that the next block completes.
        last = range(len(data) if final else max(0, len(data) - self._longest + 1), len(data))
        may_begin = (place for place in last if self._may_continue(data[place:]))
        end = next(may_begin, len(data))
        matches = takewhile(lambda match: match.start() < end, self._pattern.finditer(data))
        spans = [match.span() for match in matches]
        return spans, max(end, spans[-1][1] if spans else 0)

    def _may_continue(self, rest: bytes) -> bool:
        return any(len(s) > len(rest) and s.startswith(rest) for s in self._separators)


def remove_spans(
    text: NDArray[np.uint8], spans: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Remove spans from a text.

    text: uint8 (n,). spans: int64 (K, 2), begin and end of each. Returns the remaining text, and
    the position in it of each removed span, int64 (K,).
    """
    begins, lengths = spans[:, 0], spans[:, 1] - spans[:, 0]
    kept = np.ones(len(text), np.bool_)
    for length in np.unique(lengths):
        same = begins[lengths == length]
        kept[(same[:, None] + np.arange(length)).ravel()] = False
    return text[kept], spans[:, 1] - np.cumsum(lengths)
