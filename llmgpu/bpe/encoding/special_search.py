"""The search for special tokens in text, and the refusal of text that spells forbidden tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError, TextError
from llmgpu.input_files import quote
from llmgpu.spelling import spelled

# Greatest depth of groups in a regular expression, because the parser recurses into each group.
_MOST_NESTED = 50


def search_for(texts: Collection[bytes]) -> Search:
    """Return a search for one or more byte strings, none of which is empty."""
    # Sorting thousands of texts takes longer than searching a short text, so sorted texts are
    # cached.
    return _search_for(tuple(texts))


@lru_cache(maxsize=16)
def _search_for(texts: tuple[bytes, ...]) -> Search:
    return Search(sorted(set(texts)))


class Search:
    """Finds byte strings: the leftmost match, and of several at one position the longest.

    longest: number of bytes of the longest string. pattern: matches the longest string at a
    position.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """Search for one or more distinct texts, which are sorted."""
        self._texts = texts
        self.longest = max(map(len, texts))
        self.pattern = re.compile(_longest_of(texts))
        firsts = {text[:1] for text in texts}
        self._first = re.compile(b"[" + b"".join(map(re.escape, sorted(firsts))) + b"]")

    def find(self, data: bytes, position: int, starts: Sequence[int]) -> tuple[int, int] | None:
        """Return the (begin, end) of the first match at or after `position`; None without a match.

        starts: document starts in the data, ascending. A match never extends across a start.
        """
        match = self.pattern.search(data, position)
        while match:
            after = bisect_right(starts, match.start())
            if after == len(starts) or starts[after] >= match.end():
                return match.span()
            border = starts[after]
            match = self.pattern.search(data, match.start(), border)
            match = match or self.pattern.search(data, border)
        return None

    def next_candidate(self, data: bytes, position: int) -> int:
        """Return the first position, from `position` on, where a string may start, or len(data)."""
        match = self._first.search(data, position)
        return match.start() if match else len(data)

    def may_continue(self, data: bytes, position: int) -> bool:
        """Whether a string begins with the data from `position` on, and is longer than it."""
        rest = data[position:]
        return any(len(text) > len(rest) and text.startswith(rest) for text in self._texts)


def _longest_of(texts: Sequence[bytes], depth: int = 0) -> bytes:
    """Return a regular expression that matches the longest of `texts` that starts at a position.

    texts: distinct, in ascending order. depth: the number of groups around the expression.

    Texts with a common beginning share one branch, so that the matcher tries few branches at a
    position.
    """
    first, last = texts[0], texts[-1]
    alike = next((k for k, byte in enumerate(first) if byte != last[k]), len(first))
    prefix, rests = re.escape(first[:alike]), [text[alike:] for text in texts]
    if len(rests) == 1:
        return prefix
    if depth == _MOST_NESTED:
        rests.sort(key=len, reverse=True)
        return prefix + b"(?:" + b"|".join(map(re.escape, rests)) + b")"
    longer = rests[1:] if rests[0] == b"" else rests
    branches = [_longest_of(list(same), depth + 1) for _, same in groupby(longer, itemgetter(0))]
    optional = b"?" if longer is not rests else b""
    return prefix + b"(?:" + b"|".join(branches) + b")" + optional


class Guard:
    """Raises an error for text that contains certain byte strings."""

    def __init__(self, texts: Collection[bytes], is_normalized: bool) -> None:
        """Refuse one or more byte strings, none of which is empty.

        is_normalized: whether the text is normalized; the error message then says so.
        """
        self._search = search_for(texts)
        self._is_normalized = is_normalized
        # The last bytes of the current document, one byte fewer than the longest string, and the
        # offset of these bytes in the whole text.
        self._before = b""
        self._offset = 0

    def check(self, block: bytes, starts: NDArray[np.int64], final: bool) -> None:
        """Raise an error if a forbidden string ends in the next block of text.

        The error is a TextError, or an InputError if the text is normalized. starts: document
        starts in the block. final: whether a document ends with the block.
        """
        data = self._before + block
        found = self._search.find(data, 0, (starts + len(self._before)).tolist())
        if found:
            begin, end = found
            error = TextError(
                f"special token {quote(data[begin:end].decode())}",
                self._offset + begin,
                f"is disallowed: use {spelled('--allowed-special')} to encode it as its id, or "
                "don't disallow it to encode it as text",
            )
            if self._is_normalized:
                raise InputError(f"in the normalized text, {error}")
            raise error
        last = int(starts[-1]) + len(self._before) if len(starts) else 0
        kept = 0 if final else min(len(data) - last, self._search.longest - 1)
        self._before = data[len(data) - kept :]
        self._offset += len(data) - kept
