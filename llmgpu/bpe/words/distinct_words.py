"""The distinct words (pre-tokens) of a corpus with their counts: all facts that training needs.

The order of words has no meaning. Words are compared by their bytes when counts are added up, so
the sums are exact however the corpus was divided for counting.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges, offsets_of, sort_by_bytes
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.errors import InputError
from llmgpu.input_files import quote

# Limit of the bytes of all occurrences together, so that no sum of counts overflows.
MAX_TEXT_BYTES = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class DistinctWords:
    """Distinct words, none empty, with their numbers of occurrences.

    data: uint8, the words end to end.
    offsets: int64 (words + 1,), word k is data[offsets[k] : offsets[k + 1]].
    counts: int64 (words,), 1 or more.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of bytes of each word: int64 (words,)."""
        return np.diff(self.offsets)

    @property
    def text_bytes(self) -> int:
        """Number of bytes of all occurrences of the words."""
        return _dot(self.lengths, self.counts)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.data.nbytes + self.offsets.nbytes + self.counts.nbytes

    def take_range(self, first: int, last: int) -> DistinctWords:
        """Return words first .. last - 1, without copying their bytes."""
        offsets = self.offsets[first : last + 1]
        data = self.data[offsets[0] : offsets[-1]]
        return DistinctWords(data, offsets - offsets[0], self.counts[first:last])

    def spell(self, word: int) -> bytes:
        """Return the bytes of a word."""
        return self.data[self.offsets[word] : self.offsets[word + 1]].tobytes()


NO_WORDS = DistinctWords(np.empty(0, np.uint8), np.zeros(1, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class WordCounts:
    """The words of a corpus, and the settings with which they were cut and counted.

    documents: number of documents.
    pattern: name of the pattern that cut the text.
    separators: byte strings between documents, special tokens included, that were not counted. They
        are sorted and unique, so that equal sets compare as equal.
    source: the file of the counts, for messages.
    unicode: version of the pattern's character classes.
    """

    words: DistinctWords
    documents: int
    pattern: str
    separators: tuple[bytes, ...] = ()
    source: str = ""
    unicode: str = DEFAULT_VERSION

    def __post_init__(self) -> None:
        _ = self.cut  # raises LlmgpuError if the pattern is unknown
        object.__setattr__(self, "separators", tuple(sorted(set(self.separators))))

    @property
    def cut(self) -> Pattern:
        """The pattern with the character classes of its version."""
        return get_pattern(self.pattern, self.unicode)


def words_of(words: Collection[bytes], counts: Iterable[int], source: str = "") -> DistinctWords:
    """Return words with the sums of their counts, sorted by bytes; `counts` is iterated twice.

    source: the beginning of a message.

    Raises InputError for an empty word or a count below 1, and the errors of `add_up`.
    """
    for word, count in zip(words, counts, strict=True):
        if not word or not 1 <= count <= MAX_TEXT_BYTES:
            raise InputError(
                f"{source}word {quote(word)} has the count {count}: words have 1 byte or more, "
                f"counts are from 1 to {MAX_TEXT_BYTES:,}"
            )
    return add_up([list_words(words, counts)])


def list_words(words: Collection[bytes], counts: Iterable[int]) -> DistinctWords:
    """Return words with their counts, in their order, without any check."""
    data = np.frombuffer(b"".join(words), np.uint8)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    numbers = np.fromiter(counts, np.int64, len(words))
    return DistinctWords(data, offsets_of(lengths), numbers)


def join(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Join pieces that have no word in common."""
    lengths = [np.empty(0, np.int64), *(piece.lengths for piece in pieces)]
    data = [np.empty(0, np.uint8), *(piece.data for piece in pieces)]
    counts = [np.empty(0, np.int64), *(piece.counts for piece in pieces)]
    offsets = offsets_of(np.concatenate(lengths))
    return DistinctWords(np.concatenate(data), offsets, np.concatenate(counts))


def add_up(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Return the words of all pieces with the sums of their counts, sorted by bytes.

    Raises InputError if all text together has more than MAX_TEXT_BYTES.
    """
    if sum(piece.text_bytes for piece in pieces) > MAX_TEXT_BYTES:
        raise InputError(
            f"the words stand for more than {MAX_TEXT_BYTES:,} bytes of text, which is the limit: "
            "train on fewer of them"
        )
    words = join(pieces)
    if len(words) == 0:
        return words
    # Equal words are neighbours in `order`. firsts: the position in `order` of the first of them.
    order, same = sort_by_bytes(words.data, words.offsets)
    firsts = np.flatnonzero(~same)
    counts = np.add.reduceat(words.counts[order], firsts)
    chosen = order[firsts]
    lengths = words.lengths[chosen]
    data = concatenate_ranges(words.data, words.offsets[chosen], lengths)
    return DistinctWords(data, offsets_of(lengths), counts)


def _dot(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Return the exact sum of the products of two arrays, as an int of any size."""
    # np.dot of float64 would copy both arrays, and wake the threads of OpenBLAS.
    if np.einsum("i,i", left, right, dtype=np.float64, casting="unsafe") < 2.0**62:
        return int(np.dot(left, right))
    return sum(map(operator.mul, left.tolist(), right.tolist()))


def number_words(
    padded: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the distinct words of a text, and each word's index in this list, int64 (words,).

    padded: uint8, the words end to end, with any bytes after them.
    bounds: int64 (words + 1,), the start of each word, then the end of the last word.
    """
    text = padded[: bounds[-1]].tobytes()
    spans = starmap(slice, pairwise(bounds.data))
    known = defaultdict[bytes, int](itertools.count().__next__)
    found = map(known.__getitem__, map(text.__getitem__, spans))
    numbers = np.fromiter(found, np.int64, len(bounds) - 1)
    return [*known], numbers
