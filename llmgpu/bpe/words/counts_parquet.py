"""Word counts as a ``.parquet`` file, which other programs make and read.

A row has a word, its bytes, in the column ``word`` and how often it occurs in ``count``. What else
is known of the counts is in the file's metadata, as JSON under ``llmgpu``; other programs leave it
out. Rows may be in any order, and a word may have several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.bpe.arrays import offsets_of
from llmgpu.bpe.words.distinct_words import DistinctWords, WordCounts, add_up
from llmgpu.bpe.words.spilling import WordAccumulator
from llmgpu.errors import InputError
from llmgpu.files import atomic_output
from llmgpu.input_files import quote
from llmgpu.text.compressions import PYARROW, PYARROW_PARQUET

_METADATA = b"llmgpu"
_ROWS = 1 << 16  # read or written at a time


def is_parquet(path: str | Path) -> bool:
    """Return whether a file of word counts is one of columns, by its name."""
    return str(path).lower().endswith(".parquet")


def write_parquet(
    path: str | Path, facts: WordCounts, blocks: Callable[[], Iterator[DistinctWords]]
) -> None:
    """Write words and their counts; see `counts_file.write_counts`.

    Raises InputError without the package, OutputError if the file can't be written.
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
    """Read words and their counts, equal words added up.

    pattern, separators: of a file that does not say; see `WordCounts`.

    Raises InputError if the file can't be read or is damaged, has no such columns, a word without
    bytes or a count below 1, or does not say which pattern cut its words and none is given.
    """
    arrow, parquet = PYARROW.require(str(path)), PYARROW_PARQUET.require(str(path))
    try:
        file = parquet.ParquetFile(path)
        words = _read_words(arrow, file, path)
        known = _known(file.schema_arrow.metadata or {}, path)
        if known is None and pattern is None:
            raise InputError(
                f"{path} does not record the pattern that cut its words: give --pattern"
            )
        facts = known or {"documents": 0, "pattern": pattern, "separators": separators}
        return WordCounts(words, source=str(path), **facts)
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"can't read {path} as word counts: {reason}") from error


def _known(metadata: dict[bytes, bytes], path: str | Path) -> dict[str, Any] | None:
    """Return what llmgpu wrote of the counts; None if another program wrote the file."""
    if _METADATA not in metadata:
        return None
    try:
        known = json.loads(metadata[_METADATA])
        facts = {
            "documents": int(known["documents"]),
            "pattern": str(known["pattern"]),
            "separators": tuple(map(bytes.fromhex, known["separators"])),
            "unicode": str(known["unicode"]),
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: damaged: its metadata does not describe word counts") from error
    return facts


def _read_words(arrow: Any, file: Any, path: str | Path) -> DistinctWords:
    accumulator = WordAccumulator()
    for batch in file.iter_batches(batch_size=_ROWS, columns=["word", "count"]):
        if batch.num_columns < 2:
            raise InputError(f"{path} has no columns word and count")
        words, counts = (batch.column(name) for name in ("word", "count"))
        if words.null_count or counts.null_count:
            raise InputError(f"{path}: a row has no word or no count")
        spelled = words.cast(arrow.large_binary()).to_pylist()
        numbers = np.array(counts.cast(arrow.int64()).to_numpy(zero_copy_only=False))
        for word, count in zip(spelled, numbers.tolist(), strict=True):
            if not word or count < 1:
                raise InputError(
                    f"{path}: word {quote(word)} has the count {count}: words have 1 byte or more, "
                    "counts are 1 or more"
                )
        lengths = np.fromiter(map(len, spelled), np.int64, len(spelled))
        data = np.frombuffer(b"".join(spelled), np.uint8)
        accumulator.add(add_up([DistinctWords(data, offsets_of(lengths), numbers)]))
    return accumulator.result()
