"""Unicode's normalization form C of text that comes block by block.

- Each document is normalized on its own, and within it each run of valid UTF-8. Invalid bytes stay
  as they are, and nothing composes across them.
- A document that comes in blocks is cut before a character that is independent of what precedes it:
  its decomposition begins with a starter that never composes with a character before it. Text after
  the last such place is held back. That is a few bytes, unless a text is one endless run of marks.
- How a text is composed is for `llmgpu.text.composition` to say.
"""

from __future__ import annotations

import codecs
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.composition import normalize, starts_unit
from llmgpu.text.documents import Piece

_ERRORS = "surrogateescape"  # invalid bytes become lone surrogates, which are starters
_LONGEST = 4  # bytes of a character


class NfcFilter:
    """Normalize a text that comes in blocks; see `llmgpu.text.corpus.TextFilter`."""

    def __init__(self) -> None:
        self._held = b""  # starts at a document or at a safe place, and holds no other
        self._held_starts = np.empty(0, np.int64)

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the normalized text up to the last safe place, or all of it if `final`."""
        before = len(self._held)
        data = self._held + text.tobytes()
        starts = np.concatenate([self._held_starts, starts + before])
        decided, own = len(data), len(starts)
        if not final:
            # Up to here the held bytes have been searched; a character may span the two blocks.
            last = int(starts[-1]) if len(starts) else 0
            first = max(last, before - _LONGEST + 1)
            last_first = range(len(data) - 1, first - 1, -1)
            decided = next((place for place in last_first if _is_safe(data, place)), last)
            own = int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        normalized, places = _normalize_documents(data[:decided], starts[:own])
        return Piece(np.frombuffer(normalized, np.uint8), places, final)


def _normalize_documents(data: bytes, starts: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Return the normalized bytes, and where in them the documents start."""
    text = data.decode(errors=_ERRORS)
    # Most texts are composed already, and then so is each document in them.
    if normalize(text) == text:
        return data, starts
    parts = [
        normalize(data[begin:end].decode(errors=_ERRORS)).encode(errors=_ERRORS)
        for begin, end in pairwise([0, *starts.tolist(), len(data)])
    ]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.cumsum(lengths)[:-1]


def _is_safe(data: bytes, position: int) -> bool:
    """Whether the data before a position and the data from it on normalize independently."""
    if data[position] < 0x80:
        return True
    if data[position] < 0xC0:  # inside a character, unless it is the fourth such byte in a row
        before = data[max(0, position - _LONGEST + 1) : position]
        return len(before) == _LONGEST - 1 and all(0x80 <= byte < 0xC0 for byte in before)
    text, _ = codecs.utf_8_decode(data[position : position + _LONGEST], _ERRORS, False)
    return bool(text) and starts_unit(text[0])
