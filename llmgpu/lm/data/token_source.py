"""Token files as one long row of ids, read only where needed.

A file is opened for each read, which takes microseconds. Mapping files into memory would be faster,
but a file that is cut short meanwhile would end the process by a signal, without a message.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, VocabularyError
from llmgpu.input_files import input_errors
from llmgpu.progress import Progress, no_progress
from llmgpu.tokens.bin import BinFile, describe_bin_file, mask_path, matched_as
from llmgpu.tokens.npy import HEADER_BYTES

_SCANNED_IDS = 1 << 22  # at a time
_NAMED_IDS = 5  # invalid ids that a message names

_Number = TypeVar("_Number", bound=np.generic)


class TokenSource:
    """The ids of token files, end to end.

    vocabulary: that all of them were made with, by its match rule. checksum: CRC-32 of all ids, in
    one file or in many; mask_checksum: that of which ids count in the loss; 0 before `check_ids`.
    corpora: how many ids each of several corpora has, one after the other.
    """

    def __init__(self, files: Sequence[BinFile], vocabulary: Vocabulary) -> None:
        """Take the files, which have ids of `vocabulary`; `open_token_files` makes sure of that."""
        self._files = [file for file in files if file.count]
        self._ends = np.cumsum([file.count for file in self._files], dtype=np.int64)
        self.vocabulary = vocabulary
        self.checksum = self.mask_checksum = 0
        self.corpora: list[int] = []

    def __len__(self) -> int:
        """Return the number of ids."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def count_in(self, paths: Collection[str]) -> int:
        """Return the number of ids in the files of some paths."""
        return sum(file.count for file in self._files if file.path in paths)

    @property
    def folders(self) -> set[Path]:
        """The folders that the files are in."""
        return {Path(file.path).parent for file in self._files}

    @property
    def foreign_files(self) -> list[str]:
        """The files that don't record the vocabulary of their ids."""
        return [file.path for file in self._files if not file.fingerprint]

    @property
    def has_mask(self) -> bool:
        """Whether a file says that not all of its ids count in the loss."""
        return any(file.has_mask for file in self._files)

    def read_mask(self, start: int, count: int) -> NDArray[np.bool_]:
        """Return which of the ids [start, start + count) count in the loss; errors as `read`."""
        return self._gather(start, count, np.bool_, _read_mask)

    def read(self, start: int, count: int) -> NDArray[np.uint32]:
        """Return the ids [start, start + count): uint32 (count,).

        Raises IndexError unless all of them are there, InputError if a file can't be read any more.
        """
        return self._gather(start, count, np.uint32, _read_ids)

    def _gather(
        self,
        start: int,
        count: int,
        kind: type[_Number],
        read: Callable[[BinFile, int, int], NDArray[Any]],
    ) -> NDArray[_Number]:
        """Return what `read` returns for files, each with a beginning and a count, end to end."""
        if not 0 <= start <= start + count <= len(self):
            raise IndexError(f"{count} ids from {start} on, but there are {len(self)}")
        found = np.empty(count, kind)
        index = int(np.searchsorted(self._ends, start, side="right"))
        done = 0
        while done < count:
            file = self._files[index]
            begin = start + done - (int(self._ends[index]) - file.count)
            piece = read(file, begin, min(count - done, file.count - begin))
            found[done : done + len(piece)] = piece
            done += len(piece)
            index += 1
        return found

    def check_ids(self, progress: Progress = no_progress) -> None:
        """Check all ids and keep their checksum, the CRC-32 of them as uint32, and that of masks.

        Raises InputError for the first id that is beyond the vocabulary, and if none counts.

        progress: called with the number of ids checked, phase "checking tokens".
        """
        done = checksum = mask_checksum = 0
        has_mask, counts = self.has_mask, False
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
                if has_mask:
                    mask = _read_mask(file, begin, len(block))
                    counts |= bool(mask.any())
                    mask_checksum = zlib.crc32(mask.tobytes(), mask_checksum)
                done += len(block)
                progress("checking tokens", done, len(self))
        if has_mask and not counts:
            raise InputError(
                f"{self._files[0].path}: no token counts towards the loss, because no conversation "
                "has an assistant message"
            )
        self.checksum, self.mask_checksum = checksum, mask_checksum


def open_token_files(
    paths: Sequence[str],
    vocabulary: Vocabulary,
    vocabulary_name: str,
    progress: Progress = no_progress,
    dtype: str | None = None,
) -> TokenSource:
    """Open ``bin`` files that were made with a vocabulary, and check their ids once.

    vocabulary_name: what errors call the vocabulary. progress: see `TokenSource.check_ids`. dtype:
    of numbers, see `describe_bin_file`.

    Raises InputError for a file that is missing, damaged or cut short, or has an id that is beyond
    the vocabulary; VocabularyError for one that was made with another vocabulary.
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
    source = TokenSource(files, next((made for made, _ in rules.values()), vocabulary))
    source.check_ids(progress)
    return source


def _read_ids(file: BinFile, begin: int, count: int) -> NDArray[np.integer]:
    """Return `count` ids of a file from `begin` on: (count,)."""
    return _read_numbers(file.path, file.dtype, file.offset, file.count, begin, count)


def _read_mask(file: BinFile, begin: int, count: int) -> NDArray[np.bool_]:
    """Return which of `count` ids of a file from `begin` on count in the loss: (count,)."""
    if not file.has_mask:
        return np.ones(count, np.bool_)
    path, byte = mask_path(file.path), np.dtype(np.uint8)
    mask: NDArray[np.bool_] = _read_numbers(path, byte, HEADER_BYTES, file.count, begin, count) != 0
    return mask


def _read_numbers(
    path: str, dtype: np.dtype[np.integer], offset: int, length: int, begin: int, count: int
) -> NDArray[np.integer]:
    """Return `count` numbers from `begin` on of a file of `length` numbers after `offset` bytes."""
    width = dtype.itemsize
    with input_errors(path), open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        numbers = np.fromfile(stream, dtype, count, offset=offset + begin * width)
    if size < offset + length * width or len(numbers) < count:
        raise InputError(f"{path} was cut short to {size} bytes while it was read")
    return numbers


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
