"""Array helpers that NumPy lacks: growing arrays, copying many ranges, sorting byte strings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

# Spare bytes that an array has after its text. Their values do not matter: code that reads the text
# 8 or 16 bytes at once may read past the end of the text.
PADDING = 16
_COPY_BLOCK = 1 << 16  # values copied at once, so that their indices fit in the processor's cache
_KEY_BYTES = 7  # bytes of a string in one sort key; the key is a number of 8 bytes
# After comparing this many bytes by keys, strings that are still equal are compared whole.
_LONG_BYTES = 252
# The last byte of a sort key tells how many bytes the string has from the key's start on: 0 to 7,
# or _MORE if the string goes on after the key.
_MORE = 8
_LAST_BYTE = np.uint64(0xFF)
# Masks for a big-endian number of 8 bytes: entry n keeps the first n bytes.
_MASKS = np.array([(1 << 64) - (1 << 8 * (8 - min(n, _KEY_BYTES))) for n in range(9)], np.uint64)


class GrowableArray(Generic[Scalar]):
    """A one-dimensional array with spare capacity at its end.

    Appending a value takes amortised constant time.
    """

    def __init__(self, dtype: type[Scalar], capacity: int = 1024) -> None:
        self._room: NDArray[Scalar] = np.zeros(capacity, dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> NDArray[Scalar]:
        """A view of the values appended so far. After an append, read the property again."""
        return self._room[: self._length]

    def append(self, values: NDArray[Any]) -> None:
        """Append a one-dimensional array, cast to the dtype of this array."""
        end = self._length + len(values)
        if end > len(self._room):
            room = np.zeros(max(end, 2 * len(self._room)), self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : end] = values
        self._length = end


def concatenate_ranges(
    values: NDArray[Scalar], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Scalar]:
    """Return values[s : s + n] for every s, n of `starts` and `lengths`, end to end.

    Temporary memory is bounded for any lengths.
    """
    ends = np.cumsum(lengths)
    result = np.empty(int(ends[-1]) if len(ends) else 0, values.dtype)
    done = 0
    for block in blocks(lengths, _COPY_BLOCK):
        end = int(ends[block.stop - 1])
        if block.stop == block.start + 1:
            start = starts[block.start]
            result[done:end] = values[start : start + lengths[block.start]]
        else:
            result[done:end] = values[ranges(starts[block], lengths[block])]
        done = end
    return result


def offsets_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the offsets of items stored end to end: int64 (n + 1,), starts and the last end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def blocks(sizes: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Yield slices of consecutive items whose sizes add up to at most `most`.

    An item larger than `most` gets a slice of its own.
    """
    ends = np.cumsum(sizes)
    first = done = 0
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield slice(first, last)
        first, done = last, int(ends[last - 1])


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return s, s + 1, ... s + n - 1 for every s, n of `starts` and `lengths`, end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total)


def sort_by_bytes(
    data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sort the byte strings data[offsets[k] : offsets[k + 1]] as Python sorts bytes.

    Returns two arrays (strings,): int64, the indices of the strings in ascending order, and bool,
    whether the string at a position of this order equals the string at the position before.
    """
    padded = np.concatenate([data, np.zeros(_KEY_BYTES + 1, np.uint8)])
    starts, lengths = offsets[:-1], np.diff(offsets)
    keys = _string_keys(padded, starts, lengths)
    order = np.argsort(keys)
    keys = keys[order]
    same = np.ones(len(order), np.bool_)
    places = np.arange(len(order))  # positions in `order` whose strings are not yet sorted
    done = _KEY_BYTES
    while len(places):
        same[places[0]] = False
        same[places[1:]] &= keys[1:] == keys[:-1]
        # Keep only strings whose key equals a neighbour's key and that have bytes after the key.
        tied = same[places]
        tied[:-1] |= tied[1:]
        places = places[tied & (keys & _LAST_BYTE == _MORE)]
        if done >= _LONG_BYTES:
            # Compare strings whole: one group at a time of strings that are equal so far.
            for group in np.split(places, np.flatnonzero(~same[places])[1:]):
                numbers = order[group].tolist()
                strings = sorted((data[offsets[k] : offsets[k + 1]].tobytes(), k) for k in numbers)
                order[group] = [k for _, k in strings]
                same[group[1:]] = [left[0] == right[0] for left, right in pairwise(strings)]
            break
        # Sort them by their next bytes, within strings that are equal so far.
        strings = order[places]
        keys = _string_keys(padded, starts[strings] + done, lengths[strings] - done)
        within = np.lexsort((keys, np.cumsum(~same[places])))
        order[places], keys = strings[within], keys[within]
        done += _KEY_BYTES
    return order, same


def is_ascending(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Whether each byte string is greater than the string before it.

    data, offsets: the strings, as for `sort_by_bytes`.
    """
    order, same = sort_by_bytes(data, offsets)
    return not same.any() and np.array_equal(order, np.arange(len(order)))


def _string_keys(
    padded: NDArray[np.uint8], starts: NDArray[np.int64], left: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return a uint64 key for each string. Keys compare as the next seven bytes of the strings do.

    left: number of bytes from each start to the end of the string.
    """
    loads: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), ">u8", padded.data, 0, (1,))
    keys = loads[starts].astype(np.uint64)
    left = np.minimum(left, _MORE)
    keys &= _MASKS[left]
    keys |= left.view(np.uint64)
    return keys
