"""Token files as one long row of ids, read only where needed.

A file is opened for each read, which takes microseconds. Mapping files into memory would be faster,
but a file that is cut short meanwhile would end the process by a signal, without a message.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.progress import Progress, no_progress
from llmgpu.tokens.bin import BinFile, describe_bin_file, matched_as

_SCANNED_IDS = 1 << 22  # at a time
_NAMED_IDS = 5  # invalid ids that a message names


class TokenSource:
    """The ids of token files, end to end.

    vocabulary: that all of them were made with, by its match rule. checksum: CRC-32 of all ids, in
    one file or in many; 0 before `check_ids`.
    """

    def __init__(self, files: Sequence[BinFile], vocabulary: Vocabulary) -> None:
        """Take the files, which have ids of `vocabulary`; `open_token_files` makes sure of that."""
        self._files = [file for file in files if file.count]
        self._ends = np.cumsum([file.count for file in self._files], dtype=np.int64)
        self.vocabulary = vocabulary
        self.checksum = 0

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def folders(self) -> set[Path]:
        """The folders that the files are in."""
        return {Path(file.path).parent for file in self._files}

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return the ids [start, start + count): uint32 (count,).

        Raises IndexError unless all of them are there, InputError if a file can't be read any more.
        """
        if not 0 <= start <= start + count <= len(self):
            raise IndexError(f"{count} ids from {start} on, but there are {len(self)}")
        ids = np.empty(count, np.uint32)
        index = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < count:
            file = self._files[index]
            begin = start + done - (int(self._ends[index]) - file.count)
            piece = _read_ids(file, begin, min(count - done, file.count - begin))
            ids[done : done + len(piece)] = piece
            done += len(piece)
            index += 1
        return ids

    def check_ids(self, progress: Progress = no_progress) -> None:
        """Check all ids and keep their checksum, the CRC-32 of them as uint32.

        Raises InputError for the first id that is beyond the vocabulary.

        progress: called with the number of ids checked, phase "checking tokens".
        """
        done = checksum = 0
        for file in self._files:
            for begin in range(0, file.count, _SCANNED_IDS):
                block = _read_ids(file, begin, min(_SCANNED_IDS, file.count - begin))
                if int(block.max()) >= self.vocabulary.size:
                    position = int(np.argmax(block >= self.vocabulary.size))
                    raise InputError(
                        f"{file.path}: id {block[position]} at position {begin + position} is "
                        f"beyond the vocabulary of {self.vocabulary.size} ids: the file is damaged"
                    )
                checksum = zlib.crc32(block.astype("<u4").tobytes(), checksum)
                done += len(block)
                progress("checking tokens", done, len(self))
        self.checksum = checksum


def open_token_files(
    paths: Sequence[str],
    vocabulary: Vocabulary,
    vocabulary_name: str,
    progress: Progress = no_progress,
) -> TokenSource:
    """Open ``bin`` files that were made with a vocabulary, and check their ids once.

    vocabulary_name: what errors call the vocabulary. progress: see `TokenSource.check_ids`.

    Raises InputError for a file that is missing, damaged or cut short, or has an id that is beyond
    the vocabulary; VocabularyError for one that was made with another vocabulary.
    """
    files = [describe_bin_file(path) for path in paths]
    rules = {}
    for file in files:
        matched = matched_as(file.path, file.fingerprint, vocabulary, vocabulary_name)
        rules[matched.match] = matched, file.path
    if len(rules) > 1:
        (first, (_, one)), (second, (_, other)) = rules.items()
        raise VocabularyError(
            f"{one} was tokenized with --match {first}, {other} with --match {second}: use one rule"
        )
    source = TokenSource(files, next((made for made, _ in rules.values()), vocabulary))
    source.check_ids(progress)
    return source


def _read_ids(file: BinFile, begin: int, count: int) -> NDArray[np.integer]:
    """Return `count` ids of a file from `begin` on: (count,)."""
    width = file.dtype.itemsize
    try:
        with open(file.path, "rb", buffering=0) as stream:
            size = os.fstat(stream.fileno()).st_size
            ids = np.fromfile(stream, file.dtype, count, offset=file.offset + begin * width)
    except OSError as error:
        raise InputError(f"can't read {file.path}: {error.strerror or error}") from error
    if size < file.offset + file.count * width or len(ids) < count:
        raise InputError(f"{file.path} was cut short to {size} bytes while it was read")
    return ids


def check_ids(ids: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return ids of any shape and any integer type as uint32, none wrapped around.

    Raises:
        InputError: they are not integers, or some are negative or not below `vocab_size`; the
            message names the first of them with their positions.
    """
    numbers = np.asarray(ids)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.uint32)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"ids must be whole numbers of up to 64 bits, not {numbers.dtype}")
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
