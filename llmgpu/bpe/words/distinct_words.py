"""The distinct words (pre-tokens) of a corpus with their counts: all facts that training needs.

The order of words has no meaning. Words are compared by their bytes when counts are added up, so
the sums are exact however the corpus was divided for counting.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def words_of(counts: Mapping[bytes, int]) -> DistinctWords:
    """Return words with their counts, sorted by bytes.

    Raises InputError for an empty word or a count below 1, and the errors of `add_up`.
    """
    for word, count in counts.items():
        if not word or not 1 <= count <= MAX_TEXT_BYTES:
            raise InputError(
                f"word {quote(word)} has the count {count}: words have 1 byte or more, counts are "
                f"from 1 to {MAX_TEXT_BYTES:,}"
            )
    return add_up([list_words(counts)])


def list_words(counts: Mapping[bytes, int]) -> DistinctWords:
    """Return words with their counts, in the order of the mapping, without any check."""
    data = np.frombuffer(b"".join(counts), np.uint8)
    lengths = np.fromiter(map(len, counts), np.int64, len(counts))
    numbers = np.fromiter(counts.values(), np.int64, len(counts))
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


_SHORT = 7  # longest word, in bytes, that becomes a number of 8 bytes to be compared
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_SHORT + 1)], np.uint64)
_SLOT_BITS = 18
# Multiplier for hashing: an odd constant with well mixed bits, from the golden ratio.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Numbers(dict[bytes, int]):
    """Numbers of words. A word gets the next number, from 0, when it is looked up first."""

    def __missing__(self, word: bytes) -> int:
        """Assign the next number to a new word."""
        number = self[word] = len(self)
        return number

    def of(self, words: Iterable[bytes], count: int) -> NDArray[np.int64]:
        """Return the numbers of `words`, int64 (count,); count: number of words."""
        return np.fromiter(map(self.__getitem__, words), np.int64, count)


def number_words(
    padded: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the distinct words of a text, and each word's index in this list, int64 (words,).

    padded: uint8, the words end to end with 8 bytes or more after them.
    bounds: int64 (words + 1,), the start of each word, then the end of the last word.
    """
    starts, ends = bounds[:-1], bounds[1:]
    lengths = ends - starts
    numbers = np.empty(len(starts), np.int64)
    loads = np.ndarray((len(padded) - 7,), "<u8", padded.data, 0, (1,))
    # Most words are short. Each becomes a key of 64 bits: its bytes, and its length in the top
    # byte.
    short = np.flatnonzero(lengths <= _SHORT)
    sizes = lengths[short]
    keys = loads[starts[short]] & _MASKS[sizes] | sizes.view(np.uint64) << np.uint64(56)
    numbers[short] = _number(keys)
    examples = np.empty(int(numbers[short].max(initial=-1)) + 1, np.int64)
    examples[numbers[short]] = short
    # Longer words are looked up in a dictionary.
    text = padded[: bounds[-1]].tobytes()
    long = np.flatnonzero(lengths > _SHORT)
    spans = map(slice, starts[long].tolist(), ends[long].tolist())
    long_words = Numbers()
    numbers[long] = long_words.of(map(text.__getitem__, spans), len(long)) + len(examples)
    spans = map(slice, starts[examples].tolist(), ends[examples].tolist())
    return [*map(text.__getitem__, spans), *long_words], numbers


def _number(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Number the distinct keys from 0; equal keys get the same number: int64 (n,)."""
    slots = (keys * _GOLDEN >> np.uint64(64 - _SLOT_BITS)).view(np.int64)  # by key: its hash slot
    # By hash slot: the key that owns it, and whether there is one.
    owners = np.zeros(1 << _SLOT_BITS, np.uint64)
    is_taken = np.zeros(1 << _SLOT_BITS, np.bool_)
    owners[slots], is_taken[slots] = keys, True
    by_slot = np.cumsum(is_taken) - 1
    numbers = by_slot[slots]
    # A hash slot belongs to one key. Number the other keys that hash to it by sorting.
    others = np.flatnonzero(owners[slots] != keys)
    distinct = np.unique(keys[others])
    numbers[others] = by_slot[-1] + 1 + np.searchsorted(distinct, keys[others])
    return numbers
