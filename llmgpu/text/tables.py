"""The documents of a table, a ``.parquet`` or an ``.arrow`` file: one column, each row a document.

Rows without a value are left out and counted.

Of a .parquet file, threads decode several row groups in advance. A thread decodes a few rows of its
group at a time, up to some megabytes. So the memory depends on the longest rows, not on the size of
a row group.

Arrow, as `datasets.save_to_disk` writes it, stores record batches as a file or as a stream. One
batch is in memory at a time. A stream does not record the number of rows, so the batches of a
stream are read once more to count rows.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar, cast

import numpy as np

from llmgpu.cpu.library import library
from llmgpu.cpu.texts import is_valid_utf8
from llmgpu.errors import InputError
from llmgpu.forking import cached_property
from llmgpu.input_files import STANDARD_INPUT, input_errors, quote
from llmgpu.machine import usable_processors
from llmgpu.pipeline import Begun
from llmgpu.text.compressions import PYARROW, PYARROW_COMPUTE, PYARROW_PARQUET
from llmgpu.text.documents import (
    FIRST,
    NO_TEXT,
    InputPolicy,
    MissingFieldError,
    Piece,
    Template,
    field_hint,
)
from llmgpu.text.streams import Source, check_unchanged, with_status

_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 8192
_BUFFER_BYTES = 1 << 20
_AHEAD = 8  # row groups that are read in advance
_BEGUN = 2  # row groups of a file read while an earlier file is still being read
_AHEAD_BYTES = 16 << 20  # bytes of a row group's rows that are decoded in advance
_SHOWN_COLUMNS = 20
_FILE_MARK = b"ARROW1"  # first bytes of a file in Arrow's file format; a stream has none


class ParquetFile:
    """An open file with one column of text."""

    has_lines: ClassVar[bool] = False
    content: ClassVar[str] = "text"  # content of the column, in messages
    kind: ClassVar[str] = "a parquet file"

    @staticmethod
    def check(source: Source) -> None:
        """Raise an InputError if a package is missing, or the file is a pipe."""
        PYARROW_PARQUET.require(source.path)
        if source.size is None:
            raise InputError(f"{source.path}: Parquet can't be read from a pipe; give a file")

    def __init__(self, source: Source, column: str, template: Template | None = None) -> None:
        """Open the file; InputError if it can't be read or `column` is not a column of text.

        template: makes the text of several columns, instead of `column`.
        """
        path = source.path
        self.position = 0
        self._path = path
        self._template = template
        self._columns = (column,) if template is None else template.fields
        self._others: list[str] = []  # further columns that the template needs
        self._arrow = PYARROW.require(path)
        with input_errors(path):
            self._raw = io.BufferedReader(cast(io.RawIOBase, source.open()))
            # Threads can share a file that Arrow itself has opened. It is no memory map, which
            # would end the process if the file were shortened meanwhile.
            is_shared = source.is_file and path != STANDARD_INPUT
            self._input = self._arrow.OSFile(os.fsencode(path)) if is_shared else self._raw
        try:
            with self._damage():
                self._source = with_status(source, self._raw)
                self._size = self._raw.seek(0, os.SEEK_END)
                # Small files are read without Arrow's buffer, which grows to the size that a page
                # claims, up to 2 GB.
                self._buffer_bytes = _BUFFER_BYTES if self._size > _AHEAD_BYTES else 0
                self._file = self._open_table()
                self._names = [*map(self._find_column, self._columns)]
        except InputError:
            self._raw.close()
            raise
        # `_groups` yields the arrays of each row group in order.
        most = min(usable_processors(), _AHEAD) if is_shared else 0
        read = self._read_ahead if most > 1 else self._read
        self._groups = Begun(self._find_groups(), read, min(most, self._file.num_row_groups))

    def _open_table(self, metadata: Any = None) -> Any:
        how = {"metadata": metadata, "pre_buffer": False, "buffer_size": self._buffer_bytes}
        return PYARROW_PARQUET.require(self._path).ParquetFile(self._input, **how)

    def documents(self, policy: InputPolicy) -> Iterator[Piece]:
        """Yield the text of rows; InputError for damage or, under "strict", invalid UTF-8."""
        number = first = self._rows[0]
        rows = max(1, self._file.metadata.num_rows)
        for array in chain.from_iterable(self._groups):
            piece = _text_of(array)
            if policy.policy == "raw" or _is_valid(piece):
                yield piece
            else:
                yield from self._checked(array, number, policy)
            number += len(array)
            policy.null_rows += array.null_count
            self.position = min(self._size, self._size * (number - first) // rows)
        self.check_unchanged()

    def _checked(self, array: Any, number: int, policy: InputPolicy) -> Iterator[Piece]:
        """Yield rows after applying the policy; number: number of rows before `array`."""
        for row, value in enumerate(array.to_pylist(), number + 1):
            if value is not None:
                policy.begin(f"{self._path}, row {row}")
                text = policy.apply(np.frombuffer(value, np.uint8), final=True)
                yield Piece(text, FIRST, closed=True)

    def check_unchanged(self) -> None:
        """Raise InputError if the file has changed since the program found the file."""
        check_unchanged(self._source, self._raw)

    def close(self) -> None:
        self._groups.close()
        self._raw.close()

    def begin(self) -> None:
        """Read the first row groups, see `DocumentFile.begin`."""
        self._groups.begin(_BEGUN)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn an error of Arrow or of reading in the block into an InputError."""
        try:
            yield
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"{self._path}: damaged, or not {self.kind} ({lines[0]})") from error

    def _find_column(self, column: str) -> list[str]:
        """Return the names that lead to a column, from the outermost column on.

        Raises InputError unless the column has text.
        """
        schema = self._file.schema_arrow
        shown = [f"{field.name!r} ({field.type})" for field in schema]
        if len(shown) > _SHOWN_COLUMNS:
            shown = [*shown[:_SHOWN_COLUMNS], "..."]
        columns = f"the columns are: {', '.join(shown) or 'none'}"
        names = [column] if column in schema.names else column.split(".")
        fields = schema
        for name in names:
            is_row = fields is schema or self._arrow.types.is_struct(fields)
            found = fields.get_all_field_indices(name) if is_row else []
            if len(found) != 1:
                there = f"{len(found)} columns" if found else "no column"
                hint = field_hint(column, schema.names)
                kind = InputError if found else MissingFieldError
                raise kind(f"{self._path}: {there} {quote(column)}; {columns}{hint}")
            fields = fields.field(found[0]).type
        if not self._is_right(fields):
            raise InputError(
                f"{self._path}: column {quote(column)} is not {self.content}; {columns}"
            )
        return names

    def _is_right(self, kind: Any) -> bool:
        """Whether columns of this Arrow type can be read as text."""
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        checks = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
        return any(getattr(types, f"is_{check}")(kind) for check in checks)

    @property
    def _rows(self) -> tuple[int, int]:
        """Begin and end of the rows to read, see `Source.span`."""
        with self._damage():  # an Arrow file is read to count its rows
            rows = self._file.metadata.num_rows
        span = self._source.span
        if span is None or not self._size:
            return 0, rows
        first, last = (-(-offset * rows // self._size) for offset in span)
        return first, last

    def _find_groups(self) -> Iterator[tuple[int, int]]:
        first, last = self._rows
        begin = 0
        for group in range(self._file.num_row_groups):
            end = begin + self._file.metadata.row_group(group).num_rows
            if first < end and begin < last:
                yield group, begin
            begin = end

    def _read_ahead(self, group: tuple[int, int]) -> Iterable[Any]:
        """Return the arrays of a row group; read the first arrays now. Any thread may call this.

        Threads can't share a reader of Arrow, so each row group has its own reader.
        """
        with self._damage():
            file = self._open_table(self._file.metadata)
        batches = self._read(group, file)
        arrays = []
        nbytes = 0
        try:
            for array in batches:
                arrays.append(array)
                nbytes += array.nbytes
                if nbytes >= _AHEAD_BYTES:
                    break
        except InputError as error:
            return chain(arrays, _raising(error))
        return chain(arrays, batches)

    def _read(self, group: tuple[int, int], file: Any = None) -> Iterator[Any]:
        """Yield the rows of a row group that belong to this part, as `_prepared` returns them.

        file: an Arrow reader for this call; None: the reader of this object.
        """
        first, last = self._rows
        number, begin = group
        try:
            with self._damage():
                for batch in (file or self._file).iter_batches(
                    batch_size=self._rows_at_a_time(number),
                    row_groups=[number],
                    columns=[*self._columns, *self._others],
                    use_threads=False,
                ):
                    low, begin = begin, begin + len(batch)
                    batch = batch[max(0, first - low) : max(0, last - low)]
                    arrays = [self._prepared(_inside(batch, names), batch) for names in self._names]
                    yield arrays[0] if self._template is None else self._joined(arrays)
        except InputError:
            self.check_unchanged()
            raise

    def _rows_at_a_time(self, group: int) -> int:
        facts = self._file.metadata.row_group(group)
        bytes_a_row = facts.total_byte_size // max(1, facts.num_rows)
        rows: int = _BATCH_BYTES // max(1, bytes_a_row)
        return max(1, min(_BATCH_ROWS, rows))

    def _joined(self, arrays: Sequence[Any]) -> Any:
        """Compose the texts of rows by the template.

        The result has the type large_binary, and null in rows where one of the columns is null.
        """
        assert self._template is not None
        kind = self._arrow.large_binary()
        texts = [self._arrow.scalar(text.encode(), kind) for text in self._template.texts]
        values = [each for pair in zip(arrays, texts[1:], strict=True) for each in pair]
        join = PYARROW_COMPUTE.require(self._path).binary_join_element_wise
        return join(texts[0], *values, self._arrow.scalar(b"", kind), null_handling="emit_null")

    def _prepared(self, array: Any, batch: Any) -> Any:
        """Convert an array to the type that `documents` reads; batch: all columns of the rows."""
        if self._arrow.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return array.cast(self._arrow.large_binary())


class ArrowFile(ParquetFile):
    """An open Arrow file with one column of text, or several for a template."""

    kind: ClassVar[str] = "an Arrow file"
    _read_ahead = ParquetFile._read  # the whole file is one group, which is read in its turn

    @staticmethod
    def check(source: Source) -> None:
        """Raise an InputError if a package is missing, or the file is not on this machine."""
        PYARROW.require(source.path)
        if not source.is_file:
            raise InputError(f"{source.path}: Arrow is read from files of this machine only")

    def _open_table(self, metadata: Any = None) -> Any:
        return _Batches(self._input, self._size, self._arrow.ipc)


class _Batches:
    """An Arrow file with the methods that `ParquetFile` calls; the whole file is one row group."""

    num_row_groups = 1

    def __init__(self, file: Any, nbytes: int, ipc: Any) -> None:
        self._file, self._ipc, self.total_byte_size = file, ipc, nbytes
        file.seek(0)
        self._is_stream = file.read(len(_FILE_MARK)) != _FILE_MARK
        self.schema_arrow = self._open().schema
        self.metadata = self

    def _open(self) -> Any:
        self._file.seek(0)
        ipc = self._ipc
        return ipc.open_stream(self._file) if self._is_stream else ipc.open_file(self._file)

    def _batches(self) -> Iterator[Any]:
        reader = self._open()
        if self._is_stream:
            yield from reader
        else:
            yield from map(reader.get_batch, range(reader.num_record_batches))

    @cached_property
    def num_rows(self) -> int:
        return sum(map(len, self._batches()))

    def row_group(self, number: int) -> _Batches:
        return self

    def iter_batches(self, *, batch_size: int, columns: Sequence[str], **how: Any) -> Iterator[Any]:
        """Yield batches of up to `batch_size` rows with the named columns.

        A name such as "a.b" selects the whole column "a".
        """
        names = self.schema_arrow.names
        outer = [name if name in names else name.split(".")[0] for name in columns]
        for batch in self._batches():
            chosen = batch.select([*dict.fromkeys(outer)])
            chosen.validate(full=True)  # damaged offsets could point outside the memory
            for first in range(0, len(chosen), batch_size):
                yield chosen.slice(first, batch_size)


def _inside(batch: Any, names: Sequence[str]) -> Any:
    """Return a nested column. Its row is null if a column that contains the column is null there.

    names: the path to the column: the name of the outermost column first.
    """
    array = batch.column(names[0])
    for name in names[1:]:
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def _raising(error: InputError) -> Iterator[Any]:
    """Return an iterator that raises an error when the first item is requested."""
    raise error
    yield


def _text_of(array: Any) -> Piece:
    """Return the rows that are not null as a piece; array: of type large_binary."""
    rows = array.drop_null() if array.null_count else array
    _, offsets, data = rows.buffers()
    bounds = np.zeros(1, np.int64)
    if len(rows):
        bounds = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + len(rows) + 1]
    text = NO_TEXT.text if data is None else np.frombuffer(data, np.uint8)
    return Piece(text[bounds[0] : bounds[-1]], bounds[:-1] - bounds[0], closed=True)


def _is_valid(piece: Piece) -> bool:
    """Whether each document of a piece is known to be valid UTF-8."""
    if library() is None or not is_valid_utf8(piece.text):
        return False
    firsts = piece.text[piece.starts[piece.starts < piece.length]]
    return not ((firsts & 0xC0) == 0x80).any()  # no document begins inside a character
