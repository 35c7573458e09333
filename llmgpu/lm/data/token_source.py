"""Token files as one long row of ids, read in ranges.

Each read opens its file, which takes microseconds. Mapped files would be faster, but if a mapped
file is truncated, reading it ends the process by a signal, without a message.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import input_errors
from llmgpu.progress import Progress, no_progress
from llmgpu.tokens.bin import BinFile, describe_bin_file, mask_path, matched_as
from llmgpu.tokens.npy import HEADER_BYTES

_SCANNED_IDS = 1 << 22  # ids checked at a time
_NAMED_IDS = 5  # most invalid ids that a message names


@dataclass(frozen=True)
class _Piece:
    """A range of a file: `count` ids from number `begin` on."""

    file: BinFile
    begin: int
    count: int


class TokenSource:
    """The ids of token files, or of ranges of token files, end to end.

    vocabulary: the vocabulary of all files; it finds tokens by the rule by which the files were
        made. checksum, mask_checksum: CRC-32
        of all ids, and of the loss mask; 0 before `check_ids`. Checksums do not depend on the
        division of ids into files. corpora: number of ids of each corpus, in order; empty for a
        single corpus.
    has_mask: whether a file has a loss mask.
    """

    def __init__(self, pieces: Sequence[_Piece], vocabulary: Vocabulary) -> None:
        """Join pieces of token files; `open_token_files` has checked that all use `vocabulary`."""
        self._pieces = [piece for piece in pieces if piece.count]
        self._ends = np.cumsum([piece.count for piece in self._pieces], dtype=np.int64)
        self.vocabulary = vocabulary
        self.checksum = self.mask_checksum = 0
        self.corpora: list[int] = []
        self.has_mask = any(piece.file.has_mask for piece in self._pieces)

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def count_in(self, paths: Collection[str]) -> int:
        """Return the number of ids in the files with these paths."""
        return sum(piece.count for piece in self._pieces if piece.file.path in paths)

    @property
    def folders(self) -> set[Path]:
        return {Path(piece.file.path).parent for piece in self._pieces}

    @property
    def foreign_files(self) -> list[str]:
        """The paths of files that do not record the vocabulary of their ids."""
        return [piece.file.path for piece in self._pieces if not piece.file.fingerprint]

    def joined(self, ranges: Iterable[tuple[int, int]]) -> TokenSource:
        """Return a source of the ids in several ranges of this source, end to end."""
        pieces = chain.from_iterable(self._between(begin, end) for begin, end in ranges)
        return TokenSource([*pieces], self.vocabulary)

    def _between(self, begin: int, end: int) -> Iterator[_Piece]:
        """Yield the pieces of the ids [begin, end), in order."""
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"{end - begin} ids from {begin} on, but there are {len(self)}")
        index = int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            piece, last = self._pieces[index], int(self._ends[index])
            count = min(end, last) - begin
            yield _Piece(piece.file, piece.begin + piece.count - (last - begin), count)
            begin, index = begin + count, index + 1

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return the ids [start, start + count): uint32 (count,).

        Raises IndexError for a range beyond the row, InputError if a file can't be read any more.
        """
        pieces = [_read_ids(piece) for piece in self._between(start, start + count)]
        return np.concatenate([np.empty(0, np.uint32), *pieces], dtype=np.uint32)

    def read_mask(self, start: int, count: int) -> NDArray[np.bool_]:
        """Return whether each id of [start, start + count) counts in the loss: bool (count,).

        Raises the errors of `read`.
        """
        pieces = [_read_mask(piece) for piece in self._between(start, start + count)]
        return np.concatenate([np.empty(0, np.bool_), *pieces])

    def check_ids(self, progress: Progress = no_progress) -> None:
        """Check all ids and compute `checksum` and `mask_checksum`.

        Raises InputError for the first id beyond the vocabulary, and if no id counts in the loss.

        progress: called with the number of ids checked, phase "checking tokens".
        """
        done = checksum = mask_checksum = 0
        counts = False
        for whole in self._pieces:
            for begin in range(0, whole.count, _SCANNED_IDS):
                piece = _Piece(whole.file, begin, min(_SCANNED_IDS, whole.count - begin))
                block = _read_ids(piece)
                # Refuse the first id beyond the vocabulary.
                if int(block.max()) >= self.vocabulary.size:
                    position = int(np.argmax(block >= self.vocabulary.size))
                    raise InputError(
                        f"{piece.file.path}: id {block[position]} at position {begin + position} "
                        f"is beyond the vocabulary of {self.vocabulary.size} ids: the file is "
                        "damaged"
                    )
                # Continue the checksums.
                checksum = zlib.crc32(block.astype("<u4").data, checksum)
                if self.has_mask:
                    mask = _read_mask(piece)
                    counts |= bool(mask.any())
                    mask_checksum = zlib.crc32(mask.data, mask_checksum)
                done += len(block)
                progress("checking tokens", done, len(self))
        if self.has_mask and not counts:
            raise InputError(
                f"{self._pieces[0].file.path}: no token counts towards the loss, because no "
                "conversation has an assistant message"
            )
        self.checksum, self.mask_checksum = checksum, mask_checksum


def open_token_files(
    paths: Sequence[str],
    vocabulary: Vocabulary,
    vocabulary_name: str,
    progress: Progress = no_progress,
    dtype: str | None = None,
) -> TokenSource:
    """Open ``bin`` files of a vocabulary, and check all ids once.

    vocabulary_name: name of the vocabulary in errors. progress: see `TokenSource.check_ids`. dtype:
    type of ids in files that do not record it, see `describe_bin_file`.

    Raises InputError for a file that is missing, damaged or truncated, or has an id beyond the
    vocabulary; VocabularyError for a file of another vocabulary.
    """
    files = [describe_bin_file(path, dtype, may_be_foreign=True) for path in paths]
    rules = {}
    for file in files:
        matched = matched_as(file.path, file.fingerprint, vocabulary, vocabulary_name)
        rules[matched.match] = matched, file.path
    if len(rules) > 1:
        (first, (_, one)), (second, (_, other)) = rules.items()
        raise VocabularyError(
            f"{one} was tokenized with --match {first}, {other} with --match {second}: use one rule"
        )
    pieces = [_Piece(file, 0, file.count) for file in files]
    source = TokenSource(pieces, next((made for made, _ in rules.values()), vocabulary))
    source.check_ids(progress)
    return source


def _read_ids(piece: _Piece) -> NDArray[np.integer]:
    return _read_numbers(piece, piece.file.path, piece.file.dtype, piece.file.offset)


def _read_mask(piece: _Piece) -> NDArray[np.bool_]:
    """Return whether each id of a piece counts in the loss: (count,)."""
    if not piece.file.has_mask:
        return np.ones(piece.count, np.bool_)
    path = mask_path(piece.file.path)
    return _read_numbers(piece, path, np.dtype(np.uint8), HEADER_BYTES).astype(np.bool_)


def _read_numbers(
    piece: _Piece, path: str, dtype: np.dtype[np.integer], offset: int
) -> NDArray[np.integer]:
    """Return the numbers of a piece: (count,).

    path: the file of ids or of the mask. offset: bytes before the first number of the file.
    """
    width = dtype.itemsize
    content = bytearray(piece.count * width)
    # A read through `open` takes a third of the system calls of `np.fromfile`. A network file
    # system may return fewer bytes than there are.
    with input_errors(path), open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.seek(offset + piece.begin * width)
        left = memoryview(content)
        while count := stream.readinto(left):
            left = left[count:]
    if size < offset + piece.file.count * width or left:
        raise InputError(f"{path} was cut short to {size} bytes while it was read")
    return np.frombuffer(content, dtype)


def check_ids(ids: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return ids of any shape and any integer type as uint32.

    Raises:
        InputError: the ids are not integers, or some ids are negative or not below `vocab_size`;
            the message names the first invalid ids with their positions.
    """
    numbers = np.asarray(ids)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.uint32)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype.name}")
    bad = (numbers < 0) | (numbers >= vocab_size)
    if bad.any():
        raise InputError(_describe(numbers, bad, vocab_size))
    return numbers.astype(np.uint32)


def _describe(ids: NDArray[np.integer], bad: NDArray[np.bool_], vocab_size: int) -> str:
    positions = [tuple(int(k) for k in index) for index in np.argwhere(bad)[:_NAMED_IDS]]
    named = ", ".join(f"{ids[position]} at {position}" for position in positions)
    count = int(np.count_nonzero(bad))
    more = ", ..." if count > len(positions) else ""
    verb = "id is" if count == 1 else "ids are"
    return f"{count} {verb} not in the vocabulary of {vocab_size} tokens: {named}{more}"
