"""A corpus: text from files, folders, globs and standard input as one stream with documents in it.

- Text is bytes. Each file is a document, and so is each line of a .jsonl and each row of a
  .parquet; separators and line documents cut further (see `llmgpu.text.documents`).
- A file of text is read straight into the caller's buffer if its bytes need no inspection: without
  separators and line documents, and under the policy "raw". Other files are read in blocks of
  bounded size.
- Text of a pipe is returned as it arrives. But after its first bytes, a read waits up to
  PATIENCE_SECONDS for more, because larger pieces are cheaper to encode.
- A limit cuts the text after exactly this many bytes. A document that would begin at the cut is not
  counted.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from llmgpu.closing import Closing
from llmgpu.cpu.library import library
from llmgpu.cpu.texts import SMALL_BYTES, read_small_files
from llmgpu.errors import InputError
from llmgpu.input_files import STANDARD_INPUT, listed, source_name
from llmgpu.pipeline import in_order
from llmgpu.spelling import spelled
from llmgpu.text.chat import Chat, ChatArrow, ChatFile, ChatTable, Collector
from llmgpu.text.documents import (
    FIRST,
    MANY_DOCUMENTS,
    NO_TEXT,
    DocumentSplitter,
    InputPolicy,
    Piece,
    PieceReader,
    Template,
    TextFilter,
)
from llmgpu.text.jsonl import JsonlFile
from llmgpu.text.sources import Sources, format_of, resolve_sources
from llmgpu.text.streams import (
    BYTES,
    NOTES,
    ByteStream,
    DocumentFile,
    FileBytes,
    Source,
    files_ahead,
)
from llmgpu.text.tables import ArrowFile, ParquetFile

PATIENCE_SECONDS = 0.02
LEAST_PART = 16  # the whole size is estimated after 1 / 16 of the files has been read
LEAST_BYTES = 1 << 14  # least bytes that a filter reads at a time, even for a smaller buffer
MOST_BYTES = 1 << 18  # bytes that a filter gets at a time, so that copies stay in caches
_BLOCK_BYTES = 1 << 20
_SMALL_FILES = 1024  # most files that one call of the engine reads

_File = ByteStream | DocumentFile  # an open file


class TextSource(Protocol):
    """A text that is read piece by piece."""

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        """Write the next bytes of text at the front of `buffer` (uint8, contiguous).

        Returns a piece whose text is a view of the buffer.
        """


class TextWatch(Protocol):
    """Receives the text of a corpus while the corpus is read, to write notes about the text."""

    def see(self, nbytes: int, read: Callable[[int, int], bytes]) -> None:
        """Inspect the next `nbytes` bytes of the text.

        read: returns the bytes between two positions, counted from the first of these bytes. Call
            `read` only until `see` returns.
        """


@dataclass(frozen=True)
class CorpusOptions:
    """How to read text from files.

    text_field: the field of .jsonl lines or the column of .parquet files that holds the text.
    separators: byte strings that separate documents and belong to no document.
    encoding_errors: "strict", "replace" or "raw", see `llmgpu.text.documents.InputPolicy`.
    limit: read at most this many bytes of text; None for all.
    template: composes the text from several fields or columns, in place of `text_field`. A str such
        as "{question} {answer}" is parsed.
    bad_rows: "error" raises InputError for an invalid row, "skip" leaves the row out.
    line_documents: whether each line, including its newline, is a document.
    chat: renders the conversation of each row as text; None if rows are not conversations.
    """

    text_field: str = "text"
    separators: tuple[bytes, ...] = ()
    encoding_errors: str = "raw"
    limit: int | None = None
    line_documents: bool = False
    chat: Chat | None = None
    bad_rows: str = "error"
    template: Template | str | None = None

    def __post_init__(self) -> None:
        """Parse a template that is a str. Raises InputError if the str is no template."""
        if isinstance(self.template, str):
            object.__setattr__(self, "template", Template.parse(self.template))
        if not isinstance(self.text_field, str):
            raise TypeError("text_field names one field; for several give a template")

    @property
    def row_template(self) -> Template | None:
        """The template, parsed."""
        assert not isinstance(self.template, str)
        return self.template


class Begin(NamedTuple):
    """The start of a source in the text of a corpus.

    offset: position in the text of all sources. documents: number of documents before the source.
    skipped: bytes at the front of the source's own text that are not read.
    """

    offset: int
    documents: int
    path: str
    skipped: int = 0


class Corpus(Closing):
    """Text sources read one after the other; a context manager.

    sources: the files of the corpus.
    options: how the files are read.
    policy: decides what becomes of invalid text; counts it, and the rows that were left out.
    total_bytes: bytes of all sources on disk, None if a source is not a regular file.
    text_bytes, documents: numbers of bytes and documents that `read_into` has returned.
    begun: where each source that has been opened so far starts in the text.
    watch: a `TextWatch` that sees the text read after it was set, or None.
    """

    def __init__(
        self, sources: Sequence[str] | Sources, options: CorpusOptions | None = None
    ) -> None:
        """Prepare to read sources, given by name or as `Sources`.

        Raises InputError if a source is missing, unreadable or in a format that can't be read.
        """
        self.sources = resolve_sources(sources)
        self.options = options or CorpusOptions()
        limit = self.options.limit
        if limit is not None and limit < 1:
            raise InputError(f"a limit of {limit} bytes leaves no text; use 1 or more")
        if self.options.chat is not None:
            _check_chat(self.sources, self.options)
        self.total_bytes = self.sources.total_bytes
        self.text_bytes = 0
        self.documents = 0
        self.policy = InputPolicy(self.options.encoding_errors, self.options.bad_rows)
        self._splitter = DocumentSplitter(self.options.separators, self.options.line_documents)
        self._files = _Files(self.sources.files, self.options)
        self.begun: list[Begin] = []
        self.watch: TextWatch | None = None
        self._file: _File | None = None
        self._reader: DirectReader | PieceReader | None = None
        self._finished_bytes = 0
        self._told: dict[str, list[str]] = {note: [] for note in NOTES}
        self._closed = True
        self._ended = not self._files.left
        self._most_small = _SMALL_FILES  # most files that the next call of `read_small` reads

    @property
    def notes(self) -> list[str]:
        """Remarks for the user on the files and rows read so far."""
        told = [note.format(listed(names)) for note, names in self._told.items() if names]
        return [*self.sources.notes, *told, *self.policy.notes]

    @property
    def bytes_read(self) -> int:
        """Bytes of the files on disk that have been read so far."""
        return self._finished_bytes + (self._file.position if self._file else 0)

    @property
    def left(self) -> float | None:
        """Estimated ratio of all text to the text read so far; None if too little was read."""
        parts = []
        if self.total_bytes:
            parts.append(self.bytes_read / self.total_bytes)
        if self.options.limit:
            parts.append(self.text_bytes / self.options.limit)
        part = max(parts, default=0.0)
        return 1 / part if part * LEAST_PART >= 1 else None

    def close(self) -> None:
        """Close all files."""
        self._close_file()
        self._files.close()

    def _close_file(self) -> None:
        if self._file:
            self._finished_bytes = self.bytes_read
            if isinstance(self._file, ByteStream):
                for note in self._file.notes:
                    self._told[note].append(source_name(self._file.name))
            self._file.close()
        self._file = None
        self._reader = None

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        """Write the next bytes of the text at the front of `buffer` (uint8, contiguous).

        Files fill the buffer. A pipe returns the bytes that are ready; only an empty pipe blocks.
        Raises InputError for files that can't be read, decompressed, parsed or, under "strict",
        decoded.
        """
        limit = self.options.limit
        room = len(buffer) if limit is None else min(len(buffer), limit - self.text_bytes)
        length = documents = 0
        starts = [NO_TEXT.starts]
        deadline = 0.0
        # Read source after source, until the buffer is full or the next read would block.
        while length < room and documents < MANY_DOCUMENTS:
            if not self._next_is_ready(length, deadline):
                break
            piece = self._read_small(buffer[length:room], length, documents)
            if piece is None:
                reader = self._reader or self._open_next(length, documents)
                piece = reader.read(buffer[length:room])
            if piece.length and not length:
                deadline = time.monotonic() + PATIENCE_SECONDS
            if len(piece.starts):
                starts.append(piece.starts + length)
                documents += len(piece.starts)
            length += piece.length
            self._closed = piece.closed
            if piece.end:
                self._close_file()
                self._ended = not self._files.left
        return self._hand_over(buffer[:length], np.concatenate(starts))

    def _read_small(self, view: NDArray[np.uint8], length: int, documents: int) -> Piece | None:
        """Read the next small files that fit the buffer in one call; None if a larger file is next.

        view: the rest of the caller's buffer. length, documents: bytes and documents that the
        buffer already has.
        """
        some = [] if self._reader else self._files.small(self._most_small, len(view))
        if not some:
            return None
        count = read_small(some, view)
        self._most_small = min(2 * count + 1, _SMALL_FILES)
        if not count:
            return None
        *starts, end = accumulate((source.size or 0 for source in some[:count]), initial=0)
        offset, number = self.text_bytes + length, self.documents + documents
        for k, start in enumerate(starts):
            self.begun.append(Begin(offset + start, number + k, self._files.take().path))
        self._finished_bytes += end
        self._ended = not self._files.left
        return Piece(view[:end], np.array(starts, np.int64), closed=True)

    def upcoming(self, least: int, most: int, before: int) -> FileBytes | None:
        """Return a range of the next `least` to `most` bytes of the text without reading them.

        Returns None if the current document has fewer bytes left, or is not read straight from a
        file.

        before: number of bytes, the last ones already returned, that the range also includes.
        """
        is_direct = isinstance(self._reader, DirectReader) and self._reader.has_begun
        if self.options.limit is not None or not is_direct:
            return None
        return cast(ByteStream, self._file).upcoming(least, most, before)

    def skip(self, nbytes: int) -> None:
        """Skip text that the caller reads through a range from `upcoming`."""
        assert isinstance(self._file, ByteStream)
        if self.watch:
            self.watch.see(nbytes, self._file.peek)
        self._file.skip(nbytes)
        self.text_bytes += nbytes

    def place(self, offset: int) -> tuple[str, int]:
        """Return the name of the source at an offset of the text, and the offset within the source.

        Text from memory has the name "".
        """
        index = bisect_right(self.begun, offset, key=itemgetter(0)) - 1
        if index < 0:
            return "", offset
        begin, _, path, skipped = self.begun[index]
        return source_name(path), offset - begin + skipped

    def _next_is_ready(self, length: int, deadline: float) -> bool:
        if self._ended:
            return False
        if not length:
            return True
        if self._reader is None:  # a pipe is not opened yet, since opening it may block
            return self._files.next_one().size is not None
        if isinstance(self._reader, PieceReader) and not self._reader.is_used_up:
            return True
        seconds = max(0.0, deadline - time.monotonic())
        return not isinstance(self._file, ByteStream) or self._file.wait(seconds)

    def _open_next(self, length: int, documents: int) -> DirectReader | PieceReader:
        """Open the next source, and note in `begun` where it starts.

        length, documents: bytes and documents of earlier sources in the caller's buffer.
        """
        source = self._files.take()
        is_text = format_of(source) is None
        offset, skipped = self.text_bytes + length, source.begin if is_text else 0
        self.begun.append(Begin(offset, self.documents + documents, source.path, skipped))
        self.policy.begin(source.path, skipped)
        self._splitter.begin(source.continues)
        self._file = file = self._files.open(source)
        options = self.options
        as_it_is = not (options.separators or options.line_documents)
        if not is_text or options.chat is not None:
            pieces = self._splitter.split(cast(DocumentFile, file).documents(self.policy))
            self._reader = PieceReader(pieces)
        elif as_it_is and options.encoding_errors == "raw":
            self._reader = DirectReader(cast(ByteStream, file), self.policy, source.continues)
        else:
            self._reader = PieceReader(self._text_pieces(cast(ByteStream, file)))
        return self._reader

    def _text_pieces(self, stream: ByteStream) -> Iterator[Piece]:
        # All blocks share one buffer: a caller uses up each piece before requesting another.
        policy, block, is_end = self.policy, np.empty(_BLOCK_BYTES, np.uint8), False
        while not is_end:
            text = block[: stream.readinto(block)]
            is_end = not len(text)
            if stream.is_invalid and policy.policy == "raw":
                policy.count(text.tobytes(), is_end)
            yield self._splitter.feed(policy.apply(text, is_end), is_end)

    def _hand_over(self, text: NDArray[np.uint8], starts: NDArray[np.int64]) -> Piece:
        if self.watch:
            self.watch.see(len(text), lambda begin, end: text[begin:end].tobytes())
        self.text_bytes += len(text)
        if self.text_bytes == self.options.limit and not self._ended:
            if self._file:
                self._file.check_unchanged()
            starts = starts[starts < len(text)]
            self._ended = True
        if self._ended:
            self.close()
            self._closed = True
        self.documents += len(starts)
        return Piece(text, starts, self._closed, self._ended)


# Classes that read conversations, by the class of the format. Standard input has no suffix and is
# read as lines of JSON.
_CHAT_FILES: dict[type[DocumentFile] | None, Callable[[Source, str, Collector], _File]]
_CHAT_FILES = {JsonlFile: ChatFile, ParquetFile: ChatTable, ArrowFile: ChatArrow}


class _Files:
    """The files of a corpus, in order. Threads open the next compressed or structured files early.

    Neither the threads nor the files refer to the corpus, so that an unused corpus is freed at
    once.
    """

    def __init__(self, files: Sequence[Source], options: CorpusOptions) -> None:
        chat = options.chat
        self._collector = None if chat is None else Collector(chat, options.limit)
        self._files, self._taken = files, 0  # `take` has returned the first `_taken` files
        # Without the engine, each file is read by a call of its own. On Windows the engine reads no
        # files.
        has_engine = library() is not None and os.name != "nt"
        cuts = options.separators or options.line_documents or chat
        self._reads_small = has_engine and options.encoding_errors == "raw" and not cuts
        self._opened: list[_File] = []  # files that threads have opened before their turn
        self._open = partial(_open_file, options, self._collector)
        begin = partial(_begin_file, self._open, files[:1], self._opened)
        early = filter(_is_begun_early, files)
        self._begun = in_order(early, begin, min(files_ahead(), len(files)))

    @property
    def left(self) -> int:
        """Number of files that `take` has not returned yet; 0 beyond the limit of the text."""
        is_full = self._collector is not None and self._collector.is_full
        return 0 if is_full else len(self._files) - self._taken

    def next_one(self) -> Source:
        """Return the next file without removing it."""
        return self._files[self._taken]

    def small(self, most: int, room: int) -> Sequence[Source]:
        """Return up to `most` small files that come next and together have up to `room` bytes."""
        following = self._files[self._taken : self._taken + most] if self._reads_small else ()
        for number, source in enumerate(following):
            room -= source.size or 0
            if room < 0 or not is_small(source):
                return following[:number]
        return following

    def take(self) -> Source:
        """Remove and return the next file, which the caller opens or reads."""
        self._taken += 1
        return self._files[self._taken - 1]

    def open(self, source: Source) -> _File:
        """Open a file that `take` returned."""
        if not _is_begun_early(source):
            return self._open(source)
        file = next(self._begun)
        self._opened.remove(file)
        return file

    def close(self) -> None:
        """Close the files that were opened before their turn."""
        self._begun.close()
        while self._opened:
            self._opened.pop().close()


def _open_file(options: CorpusOptions, collector: Collector | None, source: Source) -> _File:
    """Open a file with the class for its format and for the options of a corpus."""
    kind, field = format_of(source), options.text_field
    if collector is not None:
        return _CHAT_FILES.get(kind, ChatFile)(source, field, collector)
    return kind(source, field, options.row_template) if kind else ByteStream(source)


def _is_begun_early(source: Source) -> bool:
    """Whether a thread opens the file before its turn.

    True for a local file that has to be decompressed or parsed.
    """
    return source.is_file and (bool(source.compression) or format_of(source) is not None)


def _begin_file(
    open_file: Callable[[Source], _File],
    first: Sequence[Source],
    opened: list[_File],
    source: Source,
) -> _File:
    """Open a file before its turn, and read ahead.

    first: the first file, which the caller needs at once: nothing is read ahead. opened: receives
    the opened file.
    """
    file = open_file(source)
    opened.append(file)
    if source not in first and files_ahead():
        file.begin()
    return file


def _check_chat(sources: Sources, options: CorpusOptions) -> None:
    """Raise InputError for options and formats that can't be combined with conversations."""
    if options.separators or options.line_documents:
        raise InputError(
            f"{spelled('--chat')} can't be combined with "
            f"{spelled('--doc-separator', 'separators')} or {spelled('--line-documents')}"
        )
    for source in sources.files:
        if source.path != STANDARD_INPUT and format_of(source) not in _CHAT_FILES:
            kinds = ".jsonl, .parquet or .arrow files"
            raise InputError(f"{source.path}: {spelled('--chat')} reads {kinds}")


class _MemoryCorpus(Corpus):
    """A corpus of documents in memory."""

    def __init__(
        self,
        pieces: Iterator[Piece],
        total_bytes: int | None = None,
        options: CorpusOptions | None = None,
    ) -> None:
        super().__init__(Sources([], 0), options)
        self.total_bytes = total_bytes
        self._ended = False
        self._reader = PieceReader(self._splitter.split(pieces))

    @property
    def bytes_read(self) -> int:
        return self.text_bytes


def corpus_from_bytes(data: bytes | Sequence[bytes]) -> Corpus:
    """Return a corpus of one document, or of the documents in a list, which may be empty."""
    documents = [data] if isinstance(data, bytes) else data
    text = np.frombuffer(b"".join(documents), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, documents), np.int64, len(documents)))
    starts = np.concatenate([FIRST, ends])[: len(documents)]
    return _MemoryCorpus(iter([Piece(text, starts, closed=True)]), len(text))


def corpus_from_documents(
    documents: Iterable[bytes], options: CorpusOptions | None = None
) -> Corpus:
    """Return a corpus of documents from an iterable, which is consumed as the corpus is read."""
    return _MemoryCorpus(map(Piece.document, documents), options=options)


class FilteredSource:
    """A text source that passes the text of another source through a filter."""

    def __init__(
        self, source: TextSource, text_filter: TextFilter, least_bytes: int = LEAST_BYTES
    ) -> None:
        """Read text from `source` and pass it through `text_filter`.

        least_bytes: least number of bytes read at a time, 1 or more.
        """
        self._source = source
        self._filter = text_filter
        self._block = np.empty(least_bytes, np.uint8)
        self._room = 0
        self._ended = False
        self._has_more = False  # whether a part of the last block read is not filtered yet
        self._reader = PieceReader(self._pieces())

    def read_into(self, buffer: NDArray[np.uint8]) -> Piece:
        """Write the next bytes of text to the front of a buffer, as `TextSource.read_into` does."""
        self._room = len(buffer)
        length, found = 0, list[NDArray[np.int64]]()
        while True:
            piece = self._reader.read(buffer[length:])
            found.append(piece.starts + length)
            length += piece.length
            end = self._ended and self._reader.is_used_up
            # Fill the buffer from one block. The source may have to wait for another.
            is_enough = length == len(buffer) or not self._has_more
            if end or (is_enough and (length or any(map(len, found)))):
                return Piece(buffer[:length], np.concatenate(found), piece.closed, end)

    def _pieces(self) -> Iterator[Piece]:
        while not self._ended:
            if len(self._block) < self._room:
                self._block = np.empty(self._room, np.uint8)
            piece = self._source.read_into(self._block)
            starts, closed = piece.starts, piece.closed or piece.end
            # Filter the block in parts, so that copies stay in the processor's caches.
            for begin in range(0, max(piece.length, 1), MOST_BYTES):
                end = begin + MOST_BYTES
                self._has_more = end < piece.length
                self._ended = piece.end and not self._has_more
                count = int(np.searchsorted(starts, end)) if self._has_more else len(starts)
                here, starts = starts[:count] - begin, starts[count:]
                final = closed and not self._has_more
                yield self._filter.feed(piece.text[begin:end], here, final)


def is_small(source: Source) -> bool:
    """Whether a file is small enough for `read_small`, and plain text by its name."""
    if source.remote or source.span or source.continues or source.compression:
        return False
    is_in_range = 0 < (source.size or 0) <= SMALL_BYTES and source.changed_ns is not None
    return is_in_range and format_of(source) is None


def read_small(sources: Sequence[Source], view: NDArray[np.uint8]) -> int:
    """Read small files end to end to the front of `view`; return the number of files read.

    Reading stops before a file that has an error or is not plain text. `DirectReader` then reads
    this file alone and raises the error.
    """
    files = [(s.path, s.size or 0, s.changed_ns or 0, s.format == BYTES) for s in sources]
    return read_small_files(files, view)


class DirectReader:
    """Reads a file whose text is exactly its bytes, straight into the caller's buffer.

    has_begun: whether the start of the document was returned.
    """

    def __init__(self, stream: ByteStream, policy: InputPolicy, continues: bool) -> None:
        """Prepare to read `stream`; continues: whether the stream begins inside a document."""
        self._stream, self._policy, self.has_begun = stream, policy, continues

    def read(self, view: NDArray[np.uint8]) -> Piece:
        """Read the next bytes into `view`."""
        if self.has_begun and not self._stream.is_invalid:
            text = view[: self._stream.readinto(view)]
        else:
            # Invalid bytes are counted here. `view` may be memory of a device, which is slow to
            # read, so these bytes pass through memory of the process.
            block = self._stream.read(min(len(view), _BLOCK_BYTES))
            if self._stream.is_invalid:
                self._policy.count(block, not block)
            text = view[: len(block)]
            text[...] = np.frombuffer(block, np.uint8)
        is_end = not len(text)
        starts = NO_TEXT.starts if self.has_begun else FIRST
        self.has_begun = True
        return Piece(text, starts, is_end, is_end)
