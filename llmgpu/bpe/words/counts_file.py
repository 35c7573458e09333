"""Files of word counts: all facts of a corpus that training needs. Files can be added up.

- A msgpack map comes first, its entries always in the same order: ``format`` and ``version``, the
  pattern that cut the text, the separators that were left out, and the totals. If the pattern has
  character classes, the file has version 2 and names their Unicode version. Otherwise the file has
  version 1.
- The words follow, sorted by their bytes: all lengths (32 bits), all counts (64 bits), both
  little-endian, then all bytes. Last comes the SHA-256 of everything before it.
- Equal counts give equal files. If a corpus is counted in parts, the sum of the parts' files equals
  the file of the whole corpus.
- A file is checked from front to back before it is used.
- To add up files, all files are read at the same time and their words are merged into a temporary
  file, so memory does not grow with the number of words.

A file whose name ends in .parquet is a table, for exchange with other programs. Column ``word`` has
the bytes of a word, column ``count`` the number of occurrences. The other facts are in the file's
metadata, as JSON under ``llmgpu``; tables of other programs lack them. Rows may be in any order,
and a word may have several rows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import is_ascending, offsets_of
from llmgpu.bpe.pretokens.slices import MAX_WORD_BYTES
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.words.distinct_words import (
    MAX_TEXT_BYTES,
    NO_WORDS,
    DistinctWords,
    WordCounts,
    add_up,
    join,
    words_of,
)
from llmgpu.bpe.words.spilling import RunFile, WordAccumulator, merge_runs
from llmgpu.closing import Closing, undoing
from llmgpu.errors import InputError, LlmgpuError, OutputError
from llmgpu.files import atomic_output
from llmgpu.input_files import naming, quote
from llmgpu.progress import Progress, no_progress
from llmgpu.spelling import spelled
from llmgpu.text.compressions import PYARROW, PYARROW_PARQUET

FORMAT_NAME = "llmgpu word counts"
_OF_OTHERS = (
    f"not a file of {FORMAT_NAME}; counts of other tools are read from .parquet files, and in "
    "Python by Tokenizer.train_from_counts"
)
FORMAT_VERSION = 2
_VERSION_WITHOUT_UNICODE = 1

_MAX_HEADER_BYTES = 1 << 24
_HASH_BYTES = hashlib.sha256().digest_size
_LENGTH, _COUNT = np.dtype("<u4"), np.dtype("<i8")
_MOST_FIELDS = 10
_TOTALS = "documents", "text_bytes", "words", "data_bytes"


def save_counts(path: str | Path, counts: WordCounts) -> dict[str, Any]:
    """Write a file of word counts; returns and raises as `write_counts` does."""
    words = add_up([counts.words])
    return write_counts(path, counts, lambda: iter([words]))


def write_counts(
    path: str | Path, facts: WordCounts, blocks: Callable[[], Iterator[DistinctWords]]
) -> dict[str, Any]:
    """Write a file of word counts atomically.

    facts: the facts of the corpus; `facts.words` is ignored. blocks: returns a new iterator over
    the words in blocks, ascending by bytes; called once for each pass over the words.

    Returns "output", "distinct_words", "text_bytes" and "documents".

    Raises OutputError if the file can't be written.
    """
    # Add up the totals in a first pass over the blocks, because a file begins with them.
    words = data_bytes = text_bytes = 0
    for block in blocks():
        words, data_bytes = words + len(block), data_bytes + len(block.data)
        text_bytes += block.text_bytes
    totals = {"distinct_words": words, "text_bytes": text_bytes, "documents": facts.documents}
    summary = {"output": os.fspath(path), **totals}
    if is_parquet(path):
        write_parquet(path, facts, blocks)
        return summary
    header = _packed_header(facts, text_bytes, words, data_bytes)
    if len(header) > _MAX_HEADER_BYTES:
        raise OutputError(f"can't write {path}: the document separators are too long")
    # Write one column after the other, each by a pass over the blocks.
    digest = hashlib.sha256(header)
    with atomic_output(path) as stream:
        stream.write(header)
        for name, dtype in (("lengths", _LENGTH), ("counts", _COUNT), ("data", np.uint8)):
            for block in blocks():
                content = np.ascontiguousarray(getattr(block, name), dtype).data
                digest.update(content)
                stream.write(content)
        stream.write(digest.digest())
    return summary


def load_counts(
    path: str | Path, pattern: str | None = None, separators: tuple[bytes, ...] = ()
) -> WordCounts:
    """Read a file of word counts.

    pattern, separators: facts of a ``.parquet`` of another program, which does not record them.

    Raises InputError if the file can't be read, is another kind of file or version, is damaged, or
    was counted by a pattern unknown to this llmgpu.
    """
    if is_parquet(path):
        return read_parquet(path, pattern, separators)
    with CountsReader(path) as file:
        words = join([*file.blocks(_BLOCK_BYTES)])
    return replace(file.facts, words=words)


class CountsReader(Closing):
    """Reads a file of word counts block by block in bounded memory; a context manager.

    facts: the counts without the words. text_bytes: bytes of the text that was counted.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a file and read it to its end to check it; raises the errors of `load_counts`."""
        self._path = path
        with _errors_of(path):
            self._stream: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by `close`)
            with undoing(self.close):
                facts, self._header, self._begin = self._check_whole()
        self.text_bytes: int = self._header["text_bytes"]
        self.facts = replace(facts, source=str(path))

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def blocks(self, block_bytes: int) -> Iterator[DistinctWords]:
        """Yield the words in blocks of about `block_bytes` bytes; a longer word has its own block.

        Raises InputError if the words are not in order, or contradict the header's totals.
        """
        words, data_bytes = self._header["words"], self._header["data_bytes"]
        counts_begin = self._begin + words * _LENGTH.itemsize
        data_begin = counts_begin + words * _COUNT.itemsize
        most = max(1, block_bytes // (_LENGTH.itemsize + 2 * _COUNT.itemsize))
        first = begin = text_bytes = 0
        last_word = b""
        with _errors_of(self._path):
            while first < words:
                # Choose a number of words by their lengths, then read the bytes and the counts.
                lengths = self._column(self._begin, _LENGTH, first, min(most, words - first))
                ends = np.cumsum(lengths.astype(np.int64))
                count = max(1, int(np.searchsorted(ends, block_bytes, side="right")))
                offsets = offsets_of(lengths[:count])
                if begin + offsets[-1] > data_bytes:
                    raise InputError("damaged: the lengths of its words do not match its data")
                data = self._column(data_begin, np.dtype(np.uint8), begin, int(offsets[-1]))
                counts = self._column(counts_begin, _COUNT, first, count).astype(np.int64)
                block = DistinctWords(data, offsets, counts)
                if not 1 <= block.lengths.min() <= block.lengths.max() <= MAX_WORD_BYTES:
                    raise InputError("damaged: a word has no bytes, or too many")
                if counts.min() < 1:
                    raise InputError("damaged: a count is less than 1")
                # The words must ascend, within the block and after the last word of the previous
                # block.
                if last_word >= block.spell(0) or not is_ascending(data, offsets):
                    raise InputError("damaged: its words are not in order")
                last_word = block.spell(count - 1)
                first, begin = first + count, begin + len(data)
                text_bytes += block.text_bytes
                yield block
            if (begin, text_bytes) != (data_bytes, self.text_bytes):
                size = f"{self.text_bytes:,} bytes of text"
                raise InputError(f"damaged: its words don't add up to {size}")

    def _check_whole(self) -> tuple[WordCounts, dict[str, Any], int]:
        """Check the length and the digest of the file; return what `_read_header` returns.

        A pipe is kept in memory, up to one byte beyond the length in its header.
        """
        stream, kept = self._stream, BytesIO()
        # `read` allocates memory for as many bytes as requested, so request at most the file's
        # size, which is 0 for a pipe.
        size = os.fstat(stream.fileno()).st_size or _MAX_HEADER_BYTES
        block = stream.read(min(size, _MAX_HEADER_BYTES))
        found = _, header, begin = _read_header(block)
        left = begin + header["data_bytes"] + header["words"] * (_LENGTH.itemsize + _COUNT.itemsize)
        digest, end = hashlib.sha256(), b""
        while block:
            if not stream.seekable():
                kept.write(block)
            digest.update(block[:left])
            end += block[left:]
            left -= len(block[:left])
            more = max(0, left + _HASH_BYTES + 1 - len(end))
            block = stream.read(min(more, size, _MAX_HEADER_BYTES))
        if end != digest.digest():
            raise InputError("damaged or cut short: its SHA-256 does not match its content")
        if not stream.seekable():
            stream.close()
            self._stream = kept
        return found

    def _column(self, begin: int, dtype: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
        """Return entries first .. first + count - 1 of the column that begins at byte `begin`."""
        self._stream.seek(begin + first * dtype.itemsize)
        content = self._stream.read(count * dtype.itemsize)
        if len(content) < count * dtype.itemsize:
            raise InputError("it was changed while it was read")
        return np.frombuffer(content, dtype)


@contextmanager
def _errors_of(path: str | Path) -> Iterator[None]:
    """Turn an error in the block into an InputError that names the file."""
    try:
        with naming(path, InputError):
            yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"can't read {path}: {reason}") from error


def add_counts(counts: Sequence[WordCounts]) -> WordCounts:
    """Add up one or more word counts, such as the counts of the parts of a corpus.

    Raises InputError, with the names of both files, if two counts differ in the pattern, the
    Unicode version or the separators.
    """
    check_counted_alike(counts)
    accumulator = WordAccumulator()
    for part in counts:
        accumulator.add(part.words)
    return replace(
        counts[0],
        words=accumulator.result(),
        documents=sum(part.documents for part in counts),
        source=", ".join(part.source for part in counts),
    )


def check_counted_alike(counts: Sequence[WordCounts]) -> None:
    """Raise InputError, with the names of both files, if two counts can't be added up.

    Counts can be added up if their pattern, Unicode version and separators are equal.
    """
    first = counts[0]
    for part in counts:
        for what, one, other in (
            ("pattern", first.pattern, part.pattern),
            ("Unicode version", first.cut.unicode, part.cut.unicode),
            ("document separators", first.separators, part.separators),
        ):
            if one != other:
                raise InputError(
                    f"{first.source} and {part.source} can't be added up: {what} {quote(one)} and "
                    f"{quote(other)}; count one of the corpora again"
                )


def _read_header(data: bytes) -> tuple[WordCounts, dict[str, Any], int]:
    """Return the facts at the beginning of a file, the map that has them, and its length in bytes.

    Raises InputError, with the reason, unless the data begin like a file of word counts.
    """
    # Limit the reader: a damaged header must not allocate more than the file's size.
    size = len(data)  # no value in the header may have more entries or bytes
    unpacker = msgpack.Unpacker(
        strict_map_key=True,
        max_buffer_size=size + 1,
        max_str_len=size,
        max_bin_len=size,
        max_array_len=size,
        max_map_len=_MOST_FIELDS,
        max_ext_len=0,
    )
    unpacker.feed(memoryview(data)[:_MAX_HEADER_BYTES])
    try:
        header = unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        known = FORMAT_NAME.encode() in data[:64]
        raise InputError(f"damaged or cut short: {error}" if known else _OF_OTHERS) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT_NAME:
        raise InputError(_OF_OTHERS)
    if (version := header.get("version")) not in (_VERSION_WITHOUT_UNICODE, FORMAT_VERSION):
        raise InputError(
            f"version {quote(version)} of the format, but this llmgpu reads versions up to "
            f"{FORMAT_VERSION}: count the corpus again, or use the llmgpu that wrote it"
        )
    length = unpacker.tell()
    return _check_header(header, data[:length]), header, length


def _packed_header(facts: WordCounts, text_bytes: int, words: int, data_bytes: int) -> bytes:
    """Return the map at the beginning of a file."""
    unicode = facts.cut.unicode
    entries = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION if unicode else _VERSION_WITHOUT_UNICODE,
        "pattern": facts.pattern,
        "expression": facts.cut.expression,
        "separators": list(facts.separators),
        "text_bytes": text_bytes,
        "documents": facts.documents,
        "words": words,
        "data_bytes": data_bytes,
    }
    packed: bytes = msgpack.packb(entries | ({"unicode": unicode} if unicode else {}))
    return packed


def _check_header(header: dict[str, Any], packed: bytes) -> WordCounts:
    """Accept only the header that `write_counts` would write, so equal counts give equal files.

    Returns the facts in the header.
    """
    every: list[Any] = [header.get(name) for name in _TOTALS]
    documents, *totals = every
    name, expression = header.get("pattern"), header.get("expression")
    separators: Any = header.get("separators")
    unicode = header.get("unicode", DEFAULT_VERSION)
    are_sound = isinstance(separators, list) and all(
        type(separator) is bytes and separator for separator in separators
    )
    are_sound &= all(type(total) is int and 0 <= total <= MAX_TEXT_BYTES for total in every)
    # Refuse the words if this version of llmgpu cuts text differently by the pattern of that name.
    try:
        facts = WordCounts(
            NO_WORDS,
            documents,
            str(name),
            tuple(separators) if are_sound else (),
            unicode=str(unicode),
        )
    except LlmgpuError:
        facts = None
    if facts is None or facts.cut.expression != expression:
        raise InputError(
            f"its words were cut by pattern {quote(name)}, {quote(expression)}, of Unicode "
            f"{unicode}, which this llmgpu does not know: count the corpus again"
        )
    if not are_sound or packed != _packed_header(facts, *totals):
        raise InputError("damaged: its header is not in canonical form")
    return facts


# Bytes of words that are read from all files together at a time. Merging takes about 10 times as
# much memory.
_BLOCK_BYTES = 4 << 20
_LEAST_BLOCK = 1 << 12


def merge_counts(
    paths: Sequence[str | Path],
    output: str | Path,
    weights: Sequence[int] | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the sum of one or more files of word counts to another file.

    weights: factor of each file's counts, 1 or more; None: 1 for all files.

    Returns "output", "distinct_words", "text_bytes" and "documents" of the sum.

    Raises:
        InputError: a file can't be read or is damaged, the words were not counted in the same way,
            or all text together has more than MAX_TEXT_BYTES.
        OutputError: the output or a temporary file can't be written.
    """
    # Open all files, and check that their counts may be added up.
    weights = [1] * len(paths) if weights is None else weights
    block_bytes = max(_LEAST_BLOCK, _BLOCK_BYTES // len(paths))
    with ExitStack() as opened:
        files = [opened.enter_context(CountsReader(path)) for path in paths]
        check_counted_alike([file.facts for file in files])
        weighted = list(zip(files, weights, strict=True))
        text_bytes = sum(file.text_bytes * weight for file, weight in weighted)
        documents = sum(file.facts.documents * weight for file, weight in weighted)
        if max(text_bytes, documents) > MAX_TEXT_BYTES:
            raise InputError(
                f"the weighted counts add up to {text_bytes:,} bytes of text in {documents:,} "
                f"documents, but the limit is {MAX_TEXT_BYTES:,}: use smaller weights"
            )
        # Merge all words into a temporary file first: the output's header needs the totals.
        runs = [
            _weighted(file.blocks(block_bytes), weight)
            for file, weight in weighted
            if file.text_bytes
        ]
        merged = RunFile(block_bytes)
        opened.callback(merged.close)
        done = 0

        def counted() -> Iterator[DistinctWords]:
            nonlocal done
            for block in merge_runs(runs):
                yield block
                done += block.text_bytes
                progress("merging", done, text_bytes)

        run = merged.write(counted())
        facts = replace(files[0].facts, documents=documents, source=str(output))
        return write_counts(output, facts, lambda: merged.read(run))


def _weighted(blocks: Iterator[DistinctWords], weight: int) -> Iterator[DistinctWords]:
    for block in blocks:
        yield replace(block, counts=block.counts * weight)


_METADATA = b"llmgpu"
_ROWS = 1 << 16  # rows read or written at a time


def is_parquet(path: str | Path) -> bool:
    """Whether a file of word counts is a table: its name ends in .parquet."""
    return str(path).lower().endswith(".parquet")


def write_parquet(
    path: str | Path, facts: WordCounts, blocks: Callable[[], Iterator[DistinctWords]]
) -> None:
    """Write words and their counts to a table; see `write_counts`.

    Raises InputError if pyarrow is missing, OutputError if the file can't be written.
    """
    arrow, parquet = PYARROW.require(str(path)), PYARROW_PARQUET.require(str(path))
    known = {
        "pattern": facts.pattern,
        "unicode": facts.unicode,
        "separators": [separator.hex() for separator in facts.separators],
        "documents": facts.documents,
    }
    schema = arrow.schema(
        [("word", arrow.binary()), ("count", arrow.int64())],
        metadata={_METADATA: json.dumps(known)},
    )
    with atomic_output(path) as stream, parquet.ParquetWriter(stream, schema) as writer:
        for block in blocks():
            for first in range(0, len(block), _ROWS):
                part = block.take_range(first, min(len(block), first + _ROWS))
                words = [part.spell(k) for k in range(len(part))]
                columns = [arrow.array(words, arrow.binary()), arrow.array(part.counts)]
                writer.write_table(arrow.table(columns, schema=schema))


def read_parquet(
    path: str | Path, pattern: str | None, separators: tuple[bytes, ...]
) -> WordCounts:
    """Read words and their counts from a table, and add up the counts of equal words.

    pattern, separators: facts for a file in which none are recorded; see `WordCounts`.

    Raises InputError if the file can't be read or is damaged, lacks a column, has a word without
    bytes or a count below 1, or if no pattern is recorded or given.
    """
    arrow, parquet = PYARROW.require(str(path)), PYARROW_PARQUET.require(str(path))
    try:
        file = parquet.ParquetFile(path)
        words = _read_rows(arrow, file, path)
        recorded = (file.schema_arrow.metadata or {}).get(_METADATA)
        if recorded is None and pattern is None:
            raise InputError(
                f"{path} does not record the pattern that cut its words: give "
                f"{spelled('--pattern')}"
            )
        given = {"documents": 0, "pattern": pattern, "separators": separators}
        facts: dict[str, Any] = given if recorded is None else _parse_facts(recorded, path)
        return WordCounts(words, source=str(path), **facts)
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"can't read {path} as word counts: {reason}") from error


def _parse_facts(recorded: bytes, path: str | Path) -> dict[str, Any]:
    try:
        known = json.loads(recorded)
        return {
            "documents": int(known["documents"]),
            "pattern": str(known["pattern"]),
            "separators": tuple(map(bytes.fromhex, known["separators"])),
            "unicode": str(known["unicode"]),
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: damaged: its metadata does not describe word counts") from error


def _read_rows(arrow: Any, file: Any, path: str | Path) -> DistinctWords:
    accumulator = WordAccumulator()
    for batch in file.iter_batches(batch_size=_ROWS, columns=["word", "count"]):
        if batch.num_columns < 2:
            raise InputError(f"{path} has no columns word and count")
        words, counts = (batch.column(name) for name in ("word", "count"))
        if words.null_count or counts.null_count:
            raise InputError(f"{path}: a row has no word or no count")
        spelled = words.cast(arrow.large_binary()).to_pylist()
        numbers = counts.cast(arrow.int64()).to_pylist()
        accumulator.add(words_of(spelled, numbers, f"{path}: "))
    return accumulator.result()
