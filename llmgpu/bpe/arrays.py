"""What NumPy lacks: arrays that grow, copies of many ranges at once, and sorting byte strings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

PADDING = 16  # bytes of any value after a text, which is read eight or sixteen bytes at a time
_COPY_BLOCK = 1 << 16  # values copied at once: their indices stay in the processor's cache
_KEY_BYTES = 7  # of a byte string, compared at once
_LONG_BYTES = 252  # strings that are equal so far are compared one by one from there on
_MORE = 8  # the last byte of a key if more of the string is left; otherwise, how much is left
_LAST_BYTE = np.uint64(0xFF)
# By bytes left: which of the eight bytes of a big-endian number are part of the key.
_MASKS = np.array([(1 << 64) - (1 << 8 * (8 - min(n, _KEY_BYTES))) for n in range(9)], np.uint64)


class GrowableArray(Generic[Scalar]):
    """A one-dimensional array with room after its end; appending costs amortised O(1) a value."""

    def __init__(self, dtype: type[Scalar], capacity: int = 1024) -> None:
        """Start empty, with room for `capacity` values."""
        self._room: NDArray[Scalar] = np.zeros(capacity, dtype)
        self._length = 0

    def __len__(self) -> int:
        """Return the number of values appended."""
        return self._length

    @property
    def values(self) -> NDArray[Scalar]:
        """The values appended so far: a view, to be asked for again after every append."""
        return self._room[: self._length]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the values and the room after them take."""
        return self._room.nbytes

    def append(self, values: NDArray[Any]) -> None:
        """Put `values` (one-dimensional, of a dtype that fits) after the last value."""
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
            counts = lengths[block]
            # Where a range is in values, minus where it goes in result.
            shifts = starts[block] - ends[block] + counts
            result[done:end] = values[np.repeat(shifts, counts) + np.arange(done, end)]
        done = end
    return result


def offsets_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where things of these lengths start when they lie end to end, then the end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def blocks(sizes: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Cut a list into slices whose sizes add up to `most`, or that hold one each."""
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

    Returns their order, int64 (strings,), and at which places of it the string is the one before
    once more, bool (strings,).
    """
    padded = np.concatenate([data, np.zeros(_KEY_BYTES + 1, np.uint8)])
    starts, lengths = offsets[:-1], np.diff(offsets)
    keys = _string_keys(padded, starts, lengths)
    order = np.argsort(keys)
    keys = keys[order]
    same = np.ones(len(order), np.bool_)
    places = np.arange(len(order))  # where the order is not decided
    done = _KEY_BYTES
    while len(places):
        same[places[0]] = False
        same[places[1:]] &= keys[1:] == keys[:-1]
        # Only runs of equal keys whose strings continue are still undecided.
        tied = same[places]
        tied[:-1] |= tied[1:]
        places = places[tied & (keys & _LAST_BYTE == _MORE)]
        if done >= _LONG_BYTES:
            _sort_one_by_one(data, offsets, order, same, places)
            break
        strings = order[places]
        keys = _string_keys(padded, starts[strings] + done, lengths[strings] - done)
        within = np.lexsort((keys, np.cumsum(~same[places])))
        order[places], keys = strings[within], keys[within]
        done += _KEY_BYTES
    return order, same


def is_ascending(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> bool:
    """Tell whether of byte strings, as `sort_by_bytes` takes them, each is above the one before."""
    padded = np.concatenate([data, np.zeros(_KEY_BYTES + 1, np.uint8)])
    starts, lengths = offsets[:-1], np.diff(offsets)
    lower = np.arange(len(lengths) - 1)  # strings that are equal to the next one so far
    for done in range(0, _LONG_BYTES, _KEY_BYTES):
        keys = _string_keys(padded, starts[lower] + done, lengths[lower] - done)
        above = _string_keys(padded, starts[lower + 1] + done, lengths[lower + 1] - done)
        tied = keys == above
        if (keys > above).any() or (keys[tied] & _LAST_BYTE != _MORE).any():
            return False
        lower = lower[tied]

    def spell(string: int) -> bytes:
        return data[offsets[string] : offsets[string + 1]].tobytes()

    return all(spell(string) < spell(string + 1) for string in lower.tolist())


def _string_keys(
    padded: NDArray[np.uint8], starts: NDArray[np.int64], left: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return numbers that sort as the next seven bytes of strings that have `left` bytes."""
    loads: NDArray[np.uint64] = np.ndarray((len(padded) - 7,), ">u8", padded.data, 0, (1,))
    keys = loads[starts].astype(np.uint64)
    left = np.minimum(left, _MORE)
    keys &= _MASKS[left]
    keys |= left.view(np.uint64)
    return keys


def _sort_one_by_one(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    order: NDArray[np.int64],
    same: NDArray[np.bool_],
    places: NDArray[np.int64],
) -> None:
    """Finish `order` and `same` of `sort_by_bytes` at the places that are not decided."""
    for tied in np.split(places, np.flatnonzero(~same[places])[1:]):
        strings = [
            (data[offsets[string] : offsets[string + 1]].tobytes(), string)
            for string in order[tied].tolist()
        ]
        strings.sort()
        order[tied] = [string for _, string in strings]
        same[tied[1:]] = [left[0] == right[0] for left, right in pairwise(strings)]
