"""The documents of an ``.arrow`` file, such as `datasets.save_to_disk` writes: one in each row.

Arrow stores record batches as a file or as a stream. One batch is in memory at a time. A stream
does not record the number of rows, so the batches of a stream are read once more to count rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from llmgpu.errors import InputError
from llmgpu.text.compressions import PYARROW, PYARROW_IPC
from llmgpu.text.parquet import ParquetFile
from llmgpu.text.streams import Source

_FILE_MARK = b"ARROW1"  # first bytes of a file in Arrow's file format; a stream has none


class ArrowFile(ParquetFile):
    """An open Arrow file with one column of text, or several for a template."""

    kind: ClassVar[str] = "an Arrow file"
    reads_groups: ClassVar[bool] = False

    @staticmethod
    def check(source: Source) -> None:
        """Raise an InputError if a package is missing, or the file is not on this machine."""
        PYARROW.require(source.path)
        if source.size is None or source.remote is not None:
            raise InputError(f"{source.path}: Arrow is read from files of this machine only")

    @property
    def _rows(self) -> tuple[int, int]:
        with self._damage():
            return super()._rows

    def _open_table(self) -> Any:
        return _Batches(self._path, PYARROW.require(self._path), PYARROW_IPC.require(self._path))


class _Batches:
    """An Arrow file with the methods that `ParquetFile` calls; the whole file is one row group."""

    num_row_groups = 1

    def __init__(self, path: str, arrow: Any, ipc: Any) -> None:
        self._arrow, self._ipc, self._path = arrow, ipc, path
        with open(path, "rb") as file:
            self._is_stream = file.read(len(_FILE_MARK)) != _FILE_MARK
        self.schema_arrow = self._open().schema
        self.metadata = self
        self.total_byte_size = os.path.getsize(path)

    def _open(self) -> Any:
        # No memory map: reading it would end the process if the file were shortened meanwhile.
        file = self._arrow.OSFile(self._path)
        return self._ipc.open_stream(file) if self._is_stream else self._ipc.open_file(file)

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
