"""The distinct words of a slice on NumPy's side, and which of them each pre-token is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_SHORT = 7  # bytes of the longest words that are one number
_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_SHORT + 1)], np.uint64)
_SLOT_BITS = 18
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: an odd constant with well mixed bits


class Numbers(dict[bytes, int]):
    """The number of each word: 0, 1, 2, ... in the order in which they are asked for."""

    def __missing__(self, word: bytes) -> int:
        """Return the number of a new word."""
        number = self[word] = len(self)
        return number

    def of(self, words: Iterable[bytes], count: int) -> NDArray[np.int64]:
        """Return the numbers of `count` words."""
        return np.fromiter(map(self.__getitem__, words), np.int64, count)


def number_words(
    padded: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the distinct words of a text, and the place of each word in that list.

    padded: uint8, the words end to end with 8 bytes or more after them.
    bounds: int64 (words + 1,), where each starts, and where the last one ends.
    """
    starts, ends = bounds[:-1], bounds[1:]
    lengths = ends - starts
    numbers = np.empty(len(starts), np.int64)
    loads = np.ndarray((len(padded) - 7,), "<u8", padded.data, 0, (1,))
    # Most words are short: their bytes, and their length in the top byte.
    short = np.flatnonzero(lengths <= _SHORT)
    sizes = lengths[short]
    keys = loads[starts[short]] & _MASKS[sizes] | sizes.view(np.uint64) << np.uint64(56)
    numbers[short] = _number(keys)
    examples = np.empty(int(numbers[short].max(initial=-1)) + 1, np.int64)
    examples[numbers[short]] = short
    # Others are looked up in a dictionary.
    text = padded[: bounds[-1]].tobytes()
    long = np.flatnonzero(lengths > _SHORT)
    spans = map(slice, starts[long].tolist(), ends[long].tolist())
    long_words = Numbers()
    numbers[long] = long_words.of(map(text.__getitem__, spans), len(long)) + len(examples)
    spans = map(slice, starts[examples].tolist(), ends[examples].tolist())
    return [*map(text.__getitem__, spans), *long_words], numbers


def _number(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return numbers from 0 on, the same for equal keys: int64 (n,)."""
    slots = (keys * _GOLDEN >> np.uint64(64 - _SLOT_BITS)).view(np.int64)
    owners = np.zeros(1 << _SLOT_BITS, np.uint64)
    is_taken = np.zeros(1 << _SLOT_BITS, np.bool_)
    owners[slots], is_taken[slots] = keys, True
    by_slot = np.cumsum(is_taken) - 1
    numbers = by_slot[slots]
    # Keys whose slot another one has are numbered in their order.
    others = np.flatnonzero(owners[slots] != keys)
    distinct = np.unique(keys[others])
    numbers[others] = by_slot[-1] + 1 + np.searchsorted(distinct, keys[others])
    return numbers
