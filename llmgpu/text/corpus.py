"""A corpus: text from files, folders, globs and standard input as one stream with documents in it.

- Text is bytes. Each file is a document, and so are each line of a .jsonl and each row of a
  .parquet; separators and line documents cut further (see `llmgpu.text.documents`).
- Where the text is what the file holds (no separators, nothing to replace, no .jsonl or .parquet),
  files are read straight into the caller's buffer. Otherwise they are read in blocks of bounded
  size.
- A pipe is not waited for once there is something to hand over, so that text flows as it is
  produced. What follows within PATIENCE_SECONDS is still taken along: it makes bigger pieces.
- A limit cuts at exactly that many bytes of text; a document that would begin there doesn't count.
"""

from __future__ import annotations

import io
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmgpu.closing import Closing
from llmgpu.errors import InputError
from llmgpu.text.documents import Chunk, DocumentSplitter, LineStarts, Utf8Policy
from llmgpu.text.jsonl import jsonl_documents
from llmgpu.text.parquet import ParquetColumn
from llmgpu.text.sources import (
    STANDARD_INPUT,
    ByteStream,
    Source,
    read_blocks,
    resolve_sources,
)

PATIENCE_SECONDS = 0.02
_BLOCK_BYTES = 1 << 20
_LOOKED_AT_BYTES = 8 << 20  # of a file, read at a time where its text is looked at

_FIRST = np.zeros(1, np.int64)
_NO_STARTS = np.empty(0, np.int64)
_NO_TEXT = np.empty(0, np.uint8)


@dataclass(frozen=True)
class CorpusOptions:
    """How text is taken from its sources.

    text_field: the field of a .jsonl line or the column of a .parquet that holds the text.
    separators: byte strings that end one document and begin the next, part of neither.
    encoding_errors: "strict", "replace" or "raw", see `llmgpu.text.documents.Utf8Policy`.
    limit: bytes of text at most; None for all.
    line_documents: whether each line, its newline included, is a document.
    """

    text_field: str = "text"
    separators: tuple[bytes, ...] = ()
    encoding_errors: str = "raw"
    limit: int | None = None
    line_documents: bool = False


@dataclass(frozen=True)
class Fill:
    """What one read put into the buffer.

    length: bytes of text, at the front of the buffer.
    document_starts: int64, ascending positions in [0, length] at which documents begin, repeats for
        empty documents. Over a whole corpus there are as many as there are documents.
    closed: the text so far ends a document; the next byte, if any, is the first of one.
    end: nothing more will come.
    """

    length: int
    document_starts: NDArray[np.int64]
    closed: bool
    end: bool


class TextSource(Protocol):
    """What gives a text piece by piece: a corpus, or one that a filter has changed."""

    def read_into(self, buffer: NDArray[np.uint8]) -> Fill:
        """Write the next bytes of text to the front of a buffer; see `Corpus.read_into`."""
        ...


class _Reader(Protocol):
    """The text of one source.

    closed: the next byte, if any, is the first of a document.
    ended: there is no next byte.
    """

    closed: bool
    ended: bool

    def read(self, view: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64]]:
        """Fill the front of `view`; return how much (0 is possible before the end) and starts."""

    def wait(self, seconds: float) -> bool:
        """Whether `read` would not block, within `seconds`."""


class _Input(Protocol):
    """What the text of a source comes from: position is the bytes consumed of it on disk."""

    position: int

    def wait(self, seconds: float | None, /) -> bool: ...

    def close(self) -> None: ...


class Corpus(Closing):
    """Text sources read one after the other; a context manager.

    total_bytes: bytes of all sources on disk, None where one is no regular file.
    text_bytes, documents: handed over so far.
    left_out: entries of folders that were passed over (hidden names, links to folders, no files).
    """

    def __init__(self, sources: Sequence[str], options: CorpusOptions | None = None) -> None:
        """Find the files that `sources` name; InputError for whatever is missing or unfit."""
        found, self.left_out = resolve_sources(sources)
        sizes = [source.size for source in found]
        known = [size for size in sizes if size is not None]
        self.total_bytes = sum(known) if len(known) == len(sizes) else None
        self._begin(found, options or CorpusOptions())

    def _begin(self, sources: list[Source], options: CorpusOptions) -> None:
        if options.limit is not None and options.limit < 1:
            raise InputError(f"a limit of {options.limit} bytes leaves no text: use 1 or more")
        self.text_bytes = 0
        self.documents = 0
        self._options = options
        self._policy = Utf8Policy(options.encoding_errors)
        self._splitter = DocumentSplitter(options.separators, options.line_documents)
        self._sources = sources[::-1]  # the next one is the last
        self._begun: list[tuple[int, str]] = []  # where in the text sources begin, and which
        self._stream: _Input | None = None
        self._column: ParquetColumn | None = None
        self._null_rows = 0  # of the columns before
        self._reader: _Reader | None = None
        self._finished_bytes = 0
        self._closed = True
        self._ended = False

    @property
    def bytes_read(self) -> int:
        """Bytes of the sources consumed so far, as they are on disk."""
        return self._finished_bytes + (self._stream.position if self._stream else 0)

    @property
    def invalid_sequences(self) -> int:
        """Invalid UTF-8 sequences replaced so far."""
        return self._policy.invalid_sequences

    @property
    def null_rows(self) -> int:
        """Rows of tables so far that were left out, since they have no text."""
        return self._null_rows + (self._column.null_rows if self._column else 0)

    def close(self) -> None:
        """Close the file that is being read."""
        self._null_rows = self.null_rows
        self._column = None
        if self._stream:
            self._finished_bytes = self.bytes_read
            self._stream.close()
        self._stream = None
        self._reader = None

    def read_into(self, buffer: NDArray[np.uint8]) -> Fill:
        """Write the next bytes of the text at the front of `buffer` (uint8, contiguous).

        Fills it from files; from a pipe it takes what is there, and waits only for a first byte.
        InputError for what can't be read, decompressed, parsed or, under "strict", decoded.
        """
        limit = self._options.limit
        room = len(buffer) if limit is None else min(len(buffer), limit - self.text_bytes)
        length = 0
        starts: list[NDArray[np.int64]] = []
        deadline = 0.0
        while length < room and self._next_is_ready(length, deadline):
            reader = self._reader or self._open_next(self.text_bytes + length)
            count, found = reader.read(buffer[length:room])
            if count and not length:
                deadline = time.monotonic() + PATIENCE_SECONDS
            starts.append(found + length)
            length += count
            self._closed = reader.closed
            if reader.ended:
                self.close()
                self._ended = not self._sources
        return self._finish(length, np.concatenate(starts) if starts else _NO_STARTS)

    def place(self, offset: int) -> tuple[str, int]:
        """Return whose text an offset is in ("" for memory), and the offset in that text."""
        index = bisect_right(self._begun, offset, key=itemgetter(0)) - 1
        if index < 0:
            return "", offset
        begin, path = self._begun[index]
        return "standard input" if path == STANDARD_INPUT else path, offset - begin

    def _next_is_ready(self, length: int, deadline: float) -> bool:
        if self._ended:
            return False
        if not length:
            return True
        if self._reader is None:  # opening a pipe may take long
            return self._sources[-1].size is not None
        return self._reader.wait(max(0.0, deadline - time.monotonic()))

    def _open_next(self, offset: int) -> _Reader:
        source = self._sources.pop()
        self._begun.append((offset, source.path))
        self._policy.begin(source.path)
        self._splitter.begin()
        self._reader = self._open_table(source) if source.is_parquet else self._open_text(source)
        return self._reader

    def _open_table(self, source: Source) -> _Reader:
        column = ParquetColumn(source.path, self._options.text_field)
        self._stream = self._column = column
        return ChunkReader(self._document_chunks(column.documents(self._policy)), column)

    def _open_text(self, source: Source) -> _Reader:
        self._stream = stream = ByteStream(source)
        options = self._options
        if source.is_jsonl:
            buffered = io.BufferedReader(stream, _BLOCK_BYTES)
            field, policy = options.text_field, self._policy
            documents = jsonl_documents(buffered, source.path, field, policy)
            return ChunkReader(self._document_chunks(documents), stream)
        if options.separators or options.encoding_errors == "replace":
            return ChunkReader(self._text_chunks(stream), stream)
        looks = options.line_documents or options.encoding_errors == "strict"
        block = self._block if looks else None
        return _DirectReader(stream, self._policy, options.line_documents, block)

    @cached_property
    def _block(self) -> NDArray[np.uint8]:
        return np.empty(_LOOKED_AT_BYTES, np.uint8)

    def _text_chunks(self, stream: ByteStream) -> Iterator[Chunk]:
        policy = self._policy
        for block in read_blocks(stream, _BLOCK_BYTES):
            if policy.policy == "strict":
                policy.check(np.frombuffer(block, np.uint8), final=False)
            elif policy.policy == "replace":
                block = policy.replace(block, final=False)
            yield self._splitter.feed(block, final=False)
        if policy.policy == "strict":
            policy.check(_NO_TEXT, final=True)
        rest = policy.replace(b"", final=True) if policy.policy == "replace" else b""
        yield self._splitter.feed(rest, final=True)

    def _document_chunks(self, documents: Iterator[bytes]) -> Iterator[Chunk]:
        for document in documents:
            self._splitter.begin()
            yield self._splitter.feed(document, final=True)

    def _finish(self, length: int, starts: NDArray[np.int64]) -> Fill:
        self.text_bytes += length
        if self.text_bytes == self._options.limit:
            starts = starts[starts < length]
            self._sources.clear()
            self._ended = True
        if self._ended:
            self.close()
            self._closed = True
        self.documents += len(starts)
        return Fill(length, starts, self._closed, self._ended)


class _DirectReader:
    """Reads a file into the caller's buffer: its text is the file's bytes as they are.

    The buffer may be in memory of a device's, which is slow to read: text that is to be looked at
    is read into memory of its own first.
    """

    def __init__(
        self,
        stream: ByteStream,
        policy: Utf8Policy,
        line_documents: bool,
        block: NDArray[np.uint8] | None,
    ) -> None:
        """Read `stream`; block: memory to look at text in, None where nothing looks at it."""
        self.closed = True
        self.ended = False
        self._stream = stream
        self._policy = policy
        self._lines = LineStarts() if line_documents else None
        self._block = block
        self._begun = False

    def read(self, view: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64]]:
        block = view if self._block is None else self._block[: len(view)]
        count = self._stream.readinto(block)
        text = block[:count]
        if self._block is not None:
            view[:count] = text
        self.ended = count == 0
        if self._policy.policy == "strict":
            self._policy.check(text, self.ended)
        if self._lines:
            chunk = self._lines.find(text)
            self.closed = chunk.closed or self.ended
            return count, chunk.starts
        self.closed = self.ended
        starts = _NO_STARTS if self._begun else _FIRST
        self._begun = True
        return count, starts

    def wait(self, seconds: float) -> bool:
        return self._stream.wait(seconds)


class ChunkReader:
    """Hands chunks over in whatever pieces the caller's buffer takes.

    closed: the next byte, if any, is the first of a document.
    ended: there is no next byte.
    """

    def __init__(self, chunks: Iterator[Chunk], stream: _Input | None) -> None:
        """Take the chunks; stream: where they come from, None if they needn't be waited for."""
        self.closed = True
        self.ended = False
        self._chunks = chunks
        self._stream = stream
        self._chunk = Chunk(_NO_TEXT, _NO_STARTS, True)
        self._position = 0  # in the chunk's text
        self._next_start = 0  # in the chunk's starts

    def read(self, view: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64]]:
        """Fill the front of `view` from one chunk; return how much (maybe 0) and starts."""
        if self.is_used_up:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.closed = self.ended = True
                return 0, _NO_STARTS
            self._chunk, self._position, self._next_start = chunk, 0, 0
        return self._hand_over(self._chunk, view)

    def wait(self, seconds: float) -> bool:
        """Whether `read` would not block, within `seconds`."""
        return not self.is_used_up or self._stream is None or self._stream.wait(seconds)

    @property
    def is_used_up(self) -> bool:
        """Whether all of the last chunk was handed over."""
        chunk = self._chunk
        return self._position == len(chunk.text) and self._next_start == len(chunk.starts)

    def _hand_over(self, chunk: Chunk, view: NDArray[np.uint8]) -> tuple[int, NDArray[np.int64]]:
        begin, starts = self._position, chunk.starts
        end = min(len(chunk.text), begin + len(view))
        view[: end - begin] = chunk.text[begin:end]
        if end == len(chunk.text):
            last = len(starts)
            self.closed = chunk.closed
        else:  # a start at the cut goes with the byte behind it
            last = int(np.searchsorted(starts, end))
            self.closed = last < len(starts) and bool(starts[last] == end)
        found = starts[self._next_start : last] - begin
        self._position, self._next_start = end, last
        return end - begin, found


class _MemoryCorpus(Corpus):
    """Documents that are in memory already."""

    def __init__(self, documents: Sequence[bytes]) -> None:
        self._begin([], CorpusOptions())
        self.left_out = 0
        text = np.frombuffer(b"".join(documents), np.uint8)
        self.total_bytes = len(text)
        ends = np.cumsum(np.fromiter(map(len, documents), np.int64, len(documents)))
        starts = np.concatenate([_FIRST, ends])[: len(documents)]
        self._reader = ChunkReader(iter([Chunk(text, starts, True)]), None)

    @property
    def bytes_read(self) -> int:
        return self.text_bytes


def corpus_from_bytes(data: bytes | Sequence[bytes]) -> Corpus:
    """Return a corpus of one document, or of several when `data` is a list (empty: of none)."""
    return _MemoryCorpus([data] if isinstance(data, bytes) else data)
