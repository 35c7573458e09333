"""The distinct words (pre-tokens) of a corpus with their counts: all that training needs to know.

The order of words has no meaning. Words are added up and compared by their bytes, so sums are exact
no matter how the parts were counted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges, offsets_of, sort_by_bytes
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.errors import InputError
from llmgpu.input_files import quote

MAX_TEXT_BYTES = (1 << 63) - 1  # of all occurrences; so no count and no sum of counts overflows


@dataclass(frozen=True, eq=False)
class DistinctWords:
    """Words, all different and not empty, and how often each occurs.

    data: uint8, the words end to end.
    offsets: int64 (words + 1,), word k is data[offsets[k] : offsets[k + 1]].
    counts: int64 (words,), 1 or more.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return how many words there are."""
        return len(self.counts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each word: int64 (words,)."""
        return np.diff(self.offsets)

    @property
    def text_bytes(self) -> int:
        """Bytes of the text that these are the words of."""
        return _dot(self.lengths, self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
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
    """The words of a corpus, and what they were counted in.

    documents: how many there were.
    pattern: name of the pattern that cut the text.
    separators: byte strings between documents, special tokens included, that were not counted; kept
        in ascending order and once, because nothing else matters.
    source: the file they are from, for messages.
    unicode: version of the pattern's character classes.
    """

    words: DistinctWords
    documents: int
    pattern: str
    separators: tuple[bytes, ...] = ()
    source: str = ""
    unicode: str = DEFAULT_VERSION

    def __post_init__(self) -> None:
        _ = self.cut  # LlmgpuError if there is no such pattern
        object.__setattr__(self, "separators", tuple(sorted(set(self.separators))))

    @property
    def cut(self) -> Pattern:
        """The pattern with the character classes of its version."""
        return get_pattern(self.pattern, self.unicode)


def words_of(counts: Mapping[bytes, int]) -> DistinctWords:
    """Return words with their counts, sorted by bytes.

    Raises InputError for a word without bytes, a count below 1, and as `add_up`.
    """
    for word, count in counts.items():
        if not word or not 1 <= count <= MAX_TEXT_BYTES:
            raise InputError(
                f"word {quote(word)} has the count {count}: words have 1 byte or more, counts are "
                f"from 1 to {MAX_TEXT_BYTES:,}"
            )
    return add_up([list_words(counts)])


def list_words(counts: Mapping[bytes, int]) -> DistinctWords:
    """Return words with their counts, which are right, in their order."""
    data = np.frombuffer(b"".join(counts), np.uint8)
    lengths = np.fromiter(map(len, counts), np.int64, len(counts))
    numbers = np.fromiter(counts.values(), np.int64, len(counts))
    return DistinctWords(data, offsets_of(lengths), numbers)


def join(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Put words end to end, all of them different."""
    lengths = [np.empty(0, np.int64), *(piece.lengths for piece in pieces)]
    data = [np.empty(0, np.uint8), *(piece.data for piece in pieces)]
    counts = [np.empty(0, np.int64), *(piece.counts for piece in pieces)]
    offsets = offsets_of(np.concatenate(lengths))
    return DistinctWords(np.concatenate(data), offsets, np.concatenate(counts))


def add_up(pieces: Sequence[DistinctWords]) -> DistinctWords:
    """Return the words of all pieces with the sums of their counts, sorted by bytes.

    Raises InputError if they are of more than MAX_TEXT_BYTES.
    """
    if sum(piece.text_bytes for piece in pieces) > MAX_TEXT_BYTES:
        raise InputError(
            f"the words stand for more than {MAX_TEXT_BYTES:,} bytes of text, which is the limit: "
            "train on fewer of them"
        )
    words = join(pieces)
    if len(words) == 0:
        return words
    order, same = sort_by_bytes(words.data, words.offsets)
    firsts = np.flatnonzero(~same)
    counts = np.add.reduceat(words.counts[order], firsts)
    chosen = order[firsts]
    lengths = words.lengths[chosen]
    data = concatenate_ranges(words.data, words.offsets[chosen], lengths)
    return DistinctWords(data, offsets_of(lengths), counts)


def _dot(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Return the sum of products, exactly even if it does not fit into 64 bits."""
    if np.dot(left.astype(np.float64), right.astype(np.float64)) < 2.0**62:
        return int(np.dot(left, right))
    return sum(map(operator.mul, left.tolist(), right.tolist()))
