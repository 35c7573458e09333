"""Functions of the CPU engine for texts and ids.

They write ids as decimal text, find lines, check UTF-8, read small files, generate text, and
extract the texts of JSON Lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.cpu.library import TEXT_PADDING, address_of, call, library
from llmgpu.machine import usable_processors

_LOW = (1 << 64) - 1  # mask of the lower 64 bits
CELL_IDS = 10**6  # largest number of ids whose spellings fit into cells
SMALL_BYTES = 1 << 16  # largest file, in bytes, that is read together with other files
_READ_THREADS = 8


def spell_cells(count: int, separator: bytes) -> NDArray[np.uint64]:
    """Return the spellings of ids 0 .. count - 1 for `format_ids`, uint64 (count,).

    count: at most CELL_IDS. separator: the byte before an id.
    """
    ids = np.arange(count, dtype=np.uint64)
    cells = np.full(count, ord(separator), np.uint64)
    for digits in range(1, len(str(CELL_IDS))):
        same = slice(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        for place in range(digits):
            digit = ids[same] // np.uint64(10 ** (digits - 1 - place)) % np.uint64(10)
            cells[same] |= (digit + np.uint64(ord("0"))) << np.uint64(8 * (1 + place))
        cells[same] |= np.uint64(1 + digits) << np.uint64(56)
    return cells


def format_ids(
    cells: NDArray[np.uint64], ids: NDArray[np.uint32], starts: NDArray[np.int64], border: bytes
) -> memoryview:
    """Return ids as text: a border before each document, a separator before any other id.

    cells: the spellings of all ids, see `spell_cells`. starts: positions of documents.
    """
    ids, starts = np.ascontiguousarray(ids, np.uint32), np.ascontiguousarray(starts, np.int64)
    text = np.empty(7 * len(ids) + len(border) * len(starts) + 8, np.uint8)
    arrays = cells, ids, len(ids), starts, len(starts)
    length = call("format_ids", *arrays, border, len(border), text)
    return text[:length].data


def format_numbers(numbers: NDArray[np.int64]) -> bytes | memoryview:
    """Return numbers of 0 or more as text: decimals with ", " between them.

    numbers: int64 (n,). `json` would be slow for millions of numbers.
    """
    if library() is None:
        return str(numbers.tolist())[1:-1].encode()
    numbers = np.ascontiguousarray(numbers, np.int64)
    width = len(str(numbers.max())) if len(numbers) else 0
    text = np.empty((width + 2) * len(numbers), np.uint8)
    length = call("format_numbers", numbers, len(numbers), text)
    return text[:length].data


def replaced_bytes(spans: NDArray[np.int64], ids: NDArray[np.uint32]) -> int:
    """Return the number of text bytes that ids replace.

    spans: number of text bytes that each id replaces, int64 (vocabulary size,). ids: uint32 (n,),
    each below the vocabulary size.
    """
    if library() is not None:
        return call("replaced_bytes", spans, np.ascontiguousarray(ids, np.uint32), len(ids))
    return int(spans[ids].sum())


def line_starts(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions after newlines, int64 (n,). The last one may be the end of the text."""
    if library() is None:
        return np.flatnonzero(text == ord("\n")) + 1
    starts = np.empty(len(text) // 16, np.int64)
    while (count := call("line_starts", text, len(text), starts, len(starts))) > len(starts):
        starts = np.empty(count, np.int64)
    return starts[:count]


def is_valid_utf8(text: NDArray[np.uint8]) -> bool:
    """Whether a text is valid UTF-8 (RFC 3629)."""
    return call("valid_utf8", text, len(text)) == len(text)


def read_small_files(files: Sequence[tuple[str, int, int, bool]], text: NDArray[np.uint8]) -> int:
    """Read files of up to SMALL_BYTES bytes end to end into `text`; return the number of files.

    files: one or more names, each with the file's size, its modification time in nanoseconds, and
    whether any bytes are accepted.

    Reading stops before the first file whose size or modification time has changed, before an
    unreadable file, and, unless any bytes are accepted, before a file that is not certainly plain
    text: valid UTF-8 without control characters, without a byte order mark, and without a JSON
    object in the first line. The bytes of `text` after the last file are undefined.
    """
    names, sizes, changed_ns, are_any_bytes = zip(*files, strict=True)
    encoded = [*map(os.fsencode, names)]
    names_at = np.cumsum([0, *(len(name) + 1 for name in encoded)], dtype=np.int64)
    texts_at = np.cumsum([0, *sizes], dtype=np.int64)
    assert texts_at[-1] <= len(text)
    changed, any_bytes = np.array(changed_ns, np.int64), np.array(are_any_bytes, np.uint8)
    threads = min(_READ_THREADS, usable_processors())
    about_files = b"\0".join(encoded), names_at, changed, any_bytes, len(encoded)
    return call("read_small_files", *about_files, text, texts_at, threads)


class GeneratedBlocks:
    """Generates blocks of text, see `llmgpu.text.generated`. Threads may share an object."""

    def __init__(
        self,
        words: int,
        ranks: NDArray[np.uint16],
        frequent: Sequence[bytes],
        cells: Sequence[NDArray[np.uint32]],
        ends_sentence: NDArray[np.bool_],
    ) -> None:
        """Store the material of which blocks of `words` words are made.

        ranks: (n,), ranks of frequent words, each repeated in proportion to its probability.
        frequent: the frequent words, up to 20 bytes each.
        cells: arrays of syllables (768,), final consonants (8,), and the spaces and punctuation
            after a word (256,).
        ends_sentence: bool (256,), whether this punctuation ends a sentence.
        """
        entries = b"".join(word.ljust(20, b"\0") + bytes([len(word), 0, 0, 0]) for word in frequent)
        arrays = ranks, np.frombuffer(entries, np.uint8), *cells, ends_sentence
        self._arrays = [np.ascontiguousarray(array) for array in arrays]
        self._words = words
        numbers = words, len(ranks), len(frequent), *map(address_of, self._arrays)
        self._material = np.array(numbers, np.int64)  # the fields of the C struct Material

    def blocks(self, generators: Sequence[np.random.PCG64DXSM]) -> list[memoryview]:
        """Return a block drawn by each generator."""
        known = [generator.state["state"] for generator in generators]
        states = [
            [each[name] >> shift & _LOW for name in ("state", "inc") for shift in (0, 64)]
            for each in known
        ]
        given = np.array(states, np.uint64)
        sizes = np.empty(len(states), np.int64)
        text = np.empty(20 * self._words * len(states) + 4, np.uint8)
        call("generate_blocks", given, len(states), self._material, text, sizes)
        ends = np.cumsum(sizes).tolist()
        return [text[first:end].data for first, end in pairwise([0, *ends])]


class TakenTexts(NamedTuple):
    """Texts extracted from lines of JSON.

    text: uint8, the texts end to end. starts: int64, positions of texts in `text`. end: the end of
    the last line in the data. lines: number of lines. nulls: number of lines with null in place of
    a text.
    """

    text: NDArray[np.uint8]
    starts: NDArray[np.int64]
    end: int
    lines: int
    nulls: int


class JsonlTexts:
    """Extracts the texts of JSON Lines from blocks of a file."""

    def __init__(self, text_field: str, longest: int) -> None:
        """Store the options.

        text_field: a field, or a field of an inner object: "a.b". longest: most bytes of a line.
        """
        self._field = text_field.encode()
        parts = [len(part) + 1 for part in self._field.split(b".")]
        self._ends = np.cumsum(parts, dtype=np.int64) - 1
        self._longest = longest

    def take(self, data: NDArray[np.uint8], begin: int, end: int, *, is_last: bool) -> TakenTexts:
        """Return the texts of the lines from `begin` on. Any thread may call this.

        data: uint8, with TEXT_PADDING bytes after `end`; the first padding byte is overwritten.
        is_last: whether the file ends at `end`.

        Stops before a line that Python's `json` might refuse or read differently.
        """
        assert len(data) >= end + TEXT_PADDING
        data[end] = ord("\n")
        length = end - begin
        text = np.empty(length + 8, np.uint8)
        starts = np.empty(length // 8 + 1, np.int64)
        done = np.empty(4, np.int64)
        field = self._field, len(self._field), self._ends, len(self._ends)
        lines = data[begin:], length, is_last, self._longest
        count = call("jsonl_texts", *lines, *field, text, starts, done)
        used, lines_taken, nbytes, nulls = done.tolist()
        return TakenTexts(text[:nbytes], starts[:count], begin + used, lines_taken, nulls)
