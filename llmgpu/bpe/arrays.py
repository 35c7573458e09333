"""Two things NumPy has not: an array that grows at its end, and a copy of many ranges at once."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

_COPY_BLOCK = 1 << 16  # values copied at once: their indices stay in the processor's cache


class GrowableArray(Generic[Scalar]):
    """A one-dimensional array with room behind its end; appending costs amortised O(1) a value."""

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

    def append(self, values: NDArray[Any]) -> None:
        """Put `values` (one-dimensional, of a dtype that fits) behind the last value."""
        end = self._length + len(values)
        if end > len(self._room):
            room = np.zeros(max(end, 2 * len(self._room)), self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : end] = values
        self._length = end

    def truncate(self, length: int) -> None:
        """Drop all values but the first `length`."""
        self._length = min(self._length, length)


def concatenate_ranges(
    values: NDArray[Scalar], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Scalar]:
    """Return values[s : s + n] for every s, n of `starts` and `lengths`, end to end.

    Temporary memory is bounded, whatever the lengths are.
    """
    ends = np.cumsum(lengths)
    result = np.empty(int(ends[-1]) if len(ends) else 0, values.dtype)
    first = done = 0
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(ends, done + _COPY_BLOCK, side="right")))
        end = int(ends[last - 1])
        if last == first + 1:
            result[done:end] = values[starts[first] : starts[first] + lengths[first]]
        else:
            counts = lengths[first:last]
            # Where a range is in values, minus where it goes in result.
            shifts = starts[first:last] - ends[first:last] + counts
            result[done:end] = values[np.repeat(shifts, counts) + np.arange(done, end)]
        first, done = last, end
    return result
