"""Finding special tokens in a text that comes in blocks, and taking them out of it.

- The leftmost allowed token counts, the longest one at that position; the search continues after
  it. A disallowed token is an error wherever it occurs, even inside or across an allowed one. This
  is as in tiktoken, except that tiktoken picks either of two tokens at the same position.
- No special token extends past the end of a document.
- In the filtered text a document starts where a special token was, so that nothing is matched
  across the place. `Boundaries` tells these starts from the real ones.
- Only what may be the start of a special token is held back until the next block.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import TextError
from llmgpu.text.documents import Piece, remove_spans

DOCUMENT = -1  # the kind of a boundary where a document starts; others are the id of a token

_NOTHING = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class SoughtTokens:
    """The tokens to look for, by their text.

    allowed: those that are replaced, with their ids.
    disallowed: those that must not occur.
    """

    allowed: Mapping[bytes, int]
    disallowed: Collection[bytes]


class Boundaries:
    """What each boundary of a filtered text is: the start of a document, or a special token.

    The thread that reads text adds them. The one that has the ids before a boundary takes it; they
    may be the same.
    """

    def __init__(self) -> None:
        self._found: deque[NDArray[np.int64]] = deque()
        self._ends: deque[int] = deque()
        self._added = self._taken = 0
        self._ahead = _NOTHING  # out of the queue, not yet asked for

    def add(self, kinds: NDArray[np.int64], offsets: NDArray[np.int64], ended: int | None) -> None:
        """Append the next boundaries, before the text that they are in is handed over.

        kinds: int64 (n,), DOCUMENT or ids of special tokens. offsets: int64 (n,), where they are in
        the whole filtered text. ended: a document ends after this many of them; None: none ends.
        """
        if ended is not None:
            self._ends.append(self._added + ended)
        self._added += len(kinds)
        self._found.append(np.stack([kinds, offsets]))

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the kinds of the next `count` boundaries: int64 (count,)."""
        while self._ahead.shape[1] < count:
            self._look_ahead()
        kinds: NDArray[np.int64] = self._ahead[0, :count]
        self._ahead = self._ahead[:, count:]
        self._taken += count
        return kinds

    def ends_document(self) -> bool:
        """Whether a document ends before the next boundary."""
        while self._ends and self._ends[0] < self._taken:
            self._ends.popleft()
        return bool(self._ends) and self._ends[0] == self._taken

    def special_before(self, offset: int) -> NDArray[np.int64]:
        """Return the special tokens up to an offset of the filtered text that are not taken yet."""
        while self._found:
            self._look_ahead()
        kinds: NDArray[np.int64] = self._ahead[0, self._ahead[1] <= offset]
        return np.compress(kinds != DOCUMENT, kinds)

    def _look_ahead(self) -> None:
        self._ahead = np.concatenate([self._ahead, self._found.popleft()], axis=1)


class SpecialTokenFilter:
    """Takes the allowed special tokens out of a text; see `llmgpu.text.corpus.TextFilter`."""

    def __init__(self, sought: SoughtTokens, boundaries: Boundaries) -> None:
        """Look for `sought`, and add what is found to `boundaries`."""
        self._ids = sought.allowed
        self._search = _Search(sought.allowed) if sought.allowed else None
        self._guard = _Guard(sought.disallowed) if sought.disallowed else None
        self._boundaries = boundaries
        self._held = b""
        self._held_starts = np.empty(0, np.int64)
        self._handed_over = 0

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Return the text without special tokens, with a boundary where each was.

        Raises TextError for a disallowed special token.
        """
        block = text.tobytes()
        if self._guard:
            self._guard.check(block, starts, final)
        data = self._held + block
        starts = np.concatenate([self._held_starts, starts + len(self._held)])
        spans, decided = self._find(data, starts, final)
        # A document start after the decided text is left to the next block.
        own = len(starts) if final else int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        piece, kinds = self._cut(data[:decided], starts[:own], spans, final)
        # A document that starts at the very end has no text yet, so it does not end here.
        begun = int((starts == len(data)).sum())
        ended = len(kinds) - begun if final else None
        self._boundaries.add(kinds, piece.starts + self._handed_over, ended)
        self._handed_over += len(piece.text)
        return piece

    def _find(
        self, data: bytes, starts: NDArray[np.int64], final: bool
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the (begin, end) of allowed tokens, and up to where the search is decided."""
        search, position = self._search, 0
        if search is None:
            return [], len(data)
        spans: list[tuple[int, int]] = []
        # Up to here every match is certain: after it, in the last document, fewer bytes follow than
        # the longest token has.
        safe = len(data) if final else max(len(data) - search.longest + 1, *starts[-1:], 0)
        while (found := search.find(data, position, starts)) and found[0] < safe:
            spans.append(found)
            position = found[1]
        position = max(position, safe)
        while (position := search.next_candidate(data, position)) < len(data):
            # A longer token may still replace the one found here, so check this first.
            if search.may_continue(data, position):
                break
            end = search.match_end(data, position)
            if end:
                spans.append((position, end))
            position = end or position + 1
        return spans, position

    def _cut(
        self, data: bytes, starts: NDArray[np.int64], spans: list[tuple[int, int]], final: bool
    ) -> tuple[Piece, NDArray[np.int64]]:
        """Take `spans` out of `data`; return the rest, and the kinds of its boundaries."""
        text = np.frombuffer(data, np.uint8)
        kinds = np.full(len(starts), DOCUMENT, np.int64)
        if spans:
            places = np.array(spans, np.int64)
            text, cuts = remove_spans(text, places)
            ends = places[:, 1]
            removed = np.concatenate([np.zeros(1, np.int64), ends - cuts])
            # A document starts before a token at the same place, and after one that ends there.
            order = np.argsort(np.concatenate([2 * starts, 2 * places[:, 0] + 1]), kind="stable")
            starts = starts - removed[np.searchsorted(ends, starts, side="right")]
            starts = np.concatenate([starts, cuts])[order]
            ids = np.array([self._ids[data[begin:end]] for begin, end in spans], np.int64)
            kinds = np.concatenate([kinds, ids])[order]
        closed = final or bool(len(starts) and starts[-1] == len(text))
        return Piece(text, starts, closed), kinds


class _Search:
    """Finds byte strings, leftmost first, the longest at a position.

    longest: bytes of the longest string.
    """

    def __init__(self, texts: Collection[bytes]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)
        self.longest = len(self._texts[0])
        self._pattern = re.compile(b"|".join(map(re.escape, self._texts)))
        firsts = {text[:1] for text in texts}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]")

    def find(self, data: bytes, position: int, starts: NDArray[np.int64]) -> tuple[int, int] | None:
        """Return the (begin, end) of the first string, from a position on, within a document."""
        match = self._pattern.search(data, position)
        while match:
            after = int(np.searchsorted(starts, match.start(), side="right"))
            if after == len(starts) or starts[after] >= match.end():
                return match.span()
            border = int(starts[after])
            match = self._pattern.search(data, match.start(), border)
            match = match or self._pattern.search(data, border)
        return None

    def next_candidate(self, data: bytes, position: int) -> int:
        """Return the first position, from one on, where a string may start; else the end."""
        match = self._first.search(data, position)
        return match.start() if match else len(data)

    def may_continue(self, data: bytes, position: int) -> bool:
        """Whether the data from a position on is a proper prefix of a string."""
        rest = data[position:]
        return any(len(text) > len(rest) and text.startswith(rest) for text in self._texts)

    def match_end(self, data: bytes, position: int) -> int:
        """Return where the string at a position ends, 0 if there is none."""
        match = self._pattern.match(data, position)
        return match.end() if match else 0


class _Guard:
    """Refuses text in which certain byte strings occur."""

    def __init__(self, texts: Collection[bytes]) -> None:
        self._search = _Search(texts)
        self._before = b""  # the end of the document so far, too short to hold the longest
        self._offset = 0  # where that is in the whole text

    def check(self, block: bytes, starts: NDArray[np.int64], final: bool) -> None:
        """Raise TextError if a string ends in the next block."""
        data = self._before + block
        found = self._search.find(data, 0, starts + len(self._before))
        if found:
            begin, end = found
            raise TextError(
                f"special token {data[begin:end].decode()!r}",
                self._offset + begin,
                "is disallowed: allow it (--allowed-special) to get its id, or don't disallow it "
                "to get those of its text",
            )
        last = int(starts[-1]) + len(self._before) if len(starts) else 0
        kept = 0 if final else min(len(data) - last, self._search.longest - 1)
        self._before = data[len(data) - kept :]
        self._offset += len(data) - kept
