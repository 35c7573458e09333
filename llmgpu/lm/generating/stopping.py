"""Ending a text at the first of some strings, which may be spread over several tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The bytes of a text as it grows, up to the first of some strings.

    found: whether one has come; nothing may be added then. data: all bytes added, without it and
    what follows.
    """

    def __init__(self, stops: Sequence[bytes] = ()) -> None:
        """Start without text; `stops` are not empty."""
        self._stops = stops
        self.data = bytearray()
        self.found = False
        self._given = 0

    def add(self, piece: bytes) -> bool:
        """Add bytes; return whether the text has ended."""
        before = len(self.data)
        self.data += piece
        longest = max(map(len, self._stops), default=0)
        places = [self.data.find(stop, max(0, before - longest + 1)) for stop in self._stops]
        if any(place >= 0 for place in places):
            del self.data[min(place for place in places if place >= 0) :]
            self.found = True
        return self.found

    def take(self, *, last: bool = False) -> bytes:
        """Return the bytes since the last call that can't belong to a stop string.

        last: nothing is added any more.
        """
        end = len(self.data)
        if not (last or self.found):
            end -= max((self._begun(stop) for stop in self._stops), default=0)
        taken = bytes(self.data[self._given : end])
        self._given = max(end, self._given)
        return taken

    def _begun(self, stop: bytes) -> int:
        """Return how many bytes at the end of the text may begin a stop string."""
        sizes = range(min(len(stop) - 1, len(self.data)), 0, -1)
        return next((size for size in sizes if self.data.endswith(stop[:size])), 0)
