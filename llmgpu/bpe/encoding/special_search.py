"""Finding special tokens in a text that comes in blocks, and taking them out of it.

- The first position at which an allowed token is spelled counts, the longest one there. It is taken
  out, and the search goes on behind it. A disallowed one is an error wherever it occurs, also in or
  across one that is allowed. All that is as in tiktoken, except that there it is by chance which of
  two tokens at a position counts.
- No special token goes over the end of a document.
- Where a special token was, a document begins for whoever reads on, so that nothing is matched
  across. `Boundaries` tells these from the real ones.
- What may be the beginning of a special token is held back until the next block, nothing else is.
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

DOCUMENT = -1  # the kind of a boundary at which a document begins; others are a token's id

_NOTHING = np.empty((2, 0), np.int64)


@dataclass(frozen=True)
class SoughtTokens:
    """What is looked for, texts as bytes.

    allowed: ids of those that are taken for their ids.
    disallowed: those that must not occur.
    """

    allowed: Mapping[bytes, int]
    disallowed: Collection[bytes]


class Boundaries:
    """What begins at each boundary of a filtered text: a document, or what follows a special token.

    One thread adds what it found; maybe another takes it, when the text before has its ids.
    """

    def __init__(self) -> None:
        self._found: deque[NDArray[np.int64]] = deque()
        self._ends: deque[int] = deque()
        self._added = self._taken = 0
        self._ahead = _NOTHING  # out of the queue, not yet asked for

    def add(self, kinds: NDArray[np.int64], offsets: NDArray[np.int64], ended: int | None) -> None:
        """Append the next boundaries, before the text that they are in is handed over.

        kinds: int64 (n,), DOCUMENT or ids of special tokens. offsets: int64 (n,), where they are in
        the whole filtered text. ended: after so many of them a document ends; None: none does.
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
        """Return the special tokens up to an offset of the filtered text that were not taken."""
        while self._found:
            self._look_ahead()
        kinds: NDArray[np.int64] = self._ahead[0, self._ahead[1] <= offset]
        return np.compress(kinds != DOCUMENT, kinds)

    def _look_ahead(self) -> None:
        self._ahead = np.concatenate([self._ahead, self._found.popleft()], axis=1)


class SpecialTokenFilter:
    """Takes the allowed special tokens out of a text; see `llmgpu.text.corpus.TextFilter`."""

    def __init__(self, sought: SoughtTokens, boundaries: Boundaries) -> None:
        """Look for `sought`; `boundaries` gets what is found."""
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
        # A document that begins behind what is decided is for the next block to announce.
        own = len(starts) if final else int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        piece, kinds = self._cut(data[:decided], starts[:own], spans, final)
        # A document that begins at the very end may still get its text.
        begun = int((starts == len(data)).sum())
        ended = len(kinds) - begun if final else None
        self._boundaries.add(kinds, piece.starts + self._handed_over, ended)
        self._handed_over += len(piece.text)
        return piece

    def _find(
        self, data: bytes, starts: NDArray[np.int64], final: bool
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the (begin, end) of allowed tokens, and up to where `data` is decided."""
        search, position = self._search, 0
        if search is None:
            return [], len(data)
        spans: list[tuple[int, int]] = []
        # Behind the last start, where fewer bytes follow than the longest has, one may go on.
        safe = len(data) if final else max(len(data) - search.longest + 1, *starts[-1:], 0)
        while (found := search.find(data, position, starts)) and found[0] < safe:
            spans.append(found)
            position = found[1]
        position = max(position, safe)
        while (position := search.next_candidate(data, position)) < len(data):
            # A longer token may still replace the one that is there, so this comes first.
            if search.may_go_on(data, position):
                break
            end = search.match_end(data, position)
            if end:
                spans.append((position, end))
            position = end or position + 1
        return spans, position

    def _cut(
        self, data: bytes, starts: NDArray[np.int64], spans: list[tuple[int, int]], final: bool
    ) -> tuple[Piece, NDArray[np.int64]]:
        """Take `spans` out of `data`; return what is left, and the kinds of its boundaries."""
        text = np.frombuffer(data, np.uint8)
        kinds = np.full(len(starts), DOCUMENT, np.int64)
        if spans:
            places = np.array(spans, np.int64)
            text, cuts = remove_spans(text, places)
            ends = places[:, 1]
            removed = np.concatenate([np.zeros(1, np.int64), ends - cuts])
            # A document begins before a token at the same place, and behind one that ends there.
            order = np.argsort(np.concatenate([2 * starts, 2 * places[:, 0] + 1]), kind="stable")
            starts = starts - removed[np.searchsorted(ends, starts, side="right")]
            starts = np.concatenate([starts, cuts])[order]
            ids = np.array([self._ids[data[begin:end]] for begin, end in spans], np.int64)
            kinds = np.concatenate([kinds, ids])[order]
        closed = final or bool(len(starts) and starts[-1] == len(text))
        return Piece(text, starts, closed), kinds


class _Search:
    """Finds byte strings, the leftmost first, the longest of those at a position.

    longest: bytes of the longest.
    """

    def __init__(self, texts: Collection[bytes]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)
        self.longest = len(self._texts[0])
        self._pattern = re.compile(b"|".join(map(re.escape, self._texts)))
        firsts = {text[:1] for text in texts}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]")

    def find(self, data: bytes, position: int, starts: NDArray[np.int64]) -> tuple[int, int] | None:
        """Return the (begin, end) of the first one from a position on that lies in one document."""
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
        """Return the first place from a position on where one may begin, or the end."""
        match = self._first.search(data, position)
        return match.start() if match else len(data)

    def may_go_on(self, data: bytes, position: int) -> bool:
        """Whether the data from a position to its end is the beginning of one, and not all."""
        rest = data[position:]
        return any(len(text) > len(rest) and text.startswith(rest) for text in self._texts)

    def match_end(self, data: bytes, position: int) -> int:
        """Return where the one at a position ends, 0 if there is none."""
        match = self._pattern.match(data, position)
        return match.end() if match else 0


class _Guard:
    """Refuses a text in which one of some byte strings occurs."""

    def __init__(self, texts: Collection[bytes]) -> None:
        self._search = _Search(texts)
        self._before = b""  # the end of the document so far, too short to hold the longest
        self._offset = 0  # of that in the whole text

    def check(self, block: bytes, starts: NDArray[np.int64], final: bool) -> None:
        """Raise TextError if one occurs in the next block, or began before it."""
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
