"""Memory that encoders put ids into: fresh pages cost as much time as encoding on a GPU does."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import new_ids

RESERVED_FROM = 1 << 22  # ids: less is copied at once, and would be a waste if kept


class ReusedMemory:
    """Gives memory again that it gave some pieces before, whose ids are done with by then."""

    def __init__(self, pieces: int = 1) -> None:
        """Start with no memory; pieces: how many have memory of their own at a time."""
        self._idle = deque([new_ids(0)] * pieces)

    def allocate(self, count: int) -> NDArray[np.uint32]:
        """Return memory for `count` ids, whatever it holds."""
        memory = self._idle.popleft()
        if count > len(memory):
            memory = new_ids(count + count // 4)
        self._idle.append(memory)
        return memory[:count]


class CollectedIds:
    """Ids that come piece by piece, in one array.

    Where there may be many, addresses are reserved for all of them. Only those that are written to
    take memory, and pieces that were put there by their encoder aren't copied again.
    """

    def __init__(self, most: int | None) -> None:
        """Expect about `most` ids, None if that is unknown; more may come."""
        self._reserved = _reserve(most or 0)
        self._count = 0  # ids in the reserved memory
        self._behind: list[NDArray[np.uint32]] = []  # pieces for which there was no room

    def allocate(self, count: int) -> NDArray[np.uint32]:
        """Return memory for the next `count` ids, where they belong if there is room."""
        if self._behind or count > len(self._reserved) - self._count:
            return new_ids(count)
        return self._reserved[self._count : self._count + count]

    def append(self, ids: NDArray[np.uint32]) -> None:
        """Take the next ids; those in memory from `allocate` must be all that it was asked for."""
        place = self.allocate(len(ids))
        if self._behind or place.base is not self._reserved:
            self._behind.append(ids)
            return
        if ids.ctypes.data != place.ctypes.data:
            place[:] = ids
        self._count += len(ids)

    def take(self) -> NDArray[np.uint32]:
        """Return all ids, uint32 (n,)."""
        if self._count == 0 and len(self._behind) == 1:
            return self._behind[0]
        ids = self._reserved[: self._count]
        return np.concatenate([ids, *self._behind]) if self._behind else ids


def _reserve(most: int) -> NDArray[np.uint32]:
    """Return memory that isn't touched yet; none if there are few ids, or so much can't be had."""
    if most < RESERVED_FROM or _addresses_are_limited():
        return new_ids(0)
    try:
        return new_ids(most)
    except (MemoryError, ValueError):  # beyond what there is, or what an array may have
        return new_ids(0)


def _addresses_are_limited() -> bool:
    """Whether addresses that are reserved are taken from what the process may use."""
    try:
        import resource
    except ImportError:  # Windows has none
        return False
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
