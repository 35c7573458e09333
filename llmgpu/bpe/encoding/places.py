"""Places of ids that are collected in one array while any slice of their text may be done first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.encoder import CollectedIds


class Places:
    """Where the ids of each slice begin, known once all earlier ones have theirs; for any thread.

    Slices are numbered from 0.
    """

    def __init__(self, collected: CollectedIds) -> None:
        """Begin after the ids that are collected already."""
        self._collected = collected
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._placed = 0  # slices
        self._begin = len(collected)  # of the next slice's ids

    @property
    def room(self) -> int:
        """How many ids there is room for."""
        return self._collected.room

    def at(self, begin: int, count: int) -> NDArray[np.uint32] | None:
        """Return the place of `count` ids from number `begin` on, if there is room."""
        return self._collected.place(begin, count)

    def next(self, number: int, count: int) -> NDArray[np.uint32] | None:
        """Return the place of up to `count` ids of a slice if all earlier ones have theirs."""
        with self._lock:
            return None if self._placed < number else self.at(self._begin, count)

    def give(self, number: int, count: int, put: Callable[[int], None]) -> None:
        """Tell `put` where the ids of a slice begin once all slices before it are placed.

        Also call those of later slices that waited for this one.
        """
        ready = []
        with self._lock:
            self._waiting[number] = count, put
            while self._placed in self._waiting:
                count, put = self._waiting.pop(self._placed)
                ready.append((put, self._begin))
                self._begin += count
                self._placed += 1
        for put, begin in ready:
            with suppress(InvalidStateError):  # nobody waits for it any more
                put(begin)
