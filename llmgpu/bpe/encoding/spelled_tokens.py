"""Counts the special tokens that a text spells but that are encoded as text, for a note."""

from __future__ import annotations

import time
from collections.abc import Callable

from llmgpu.bpe.encoding.special_encoding import chosen_texts
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.encoding.special_search import Search, search_for
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.input_files import number_of
from llmgpu.spelling import spelled

SEARCHED_BYTES = 64 << 20  # bytes of a text that are searched at most
_SEARCHED_AT_ONCE = 1 << 16  # bytes searched at a time
_MOST_TIME = 0.01  # share of the time of a command that the search may take


class SpelledTokens:
    """Counts special tokens that a text spells but that are encoded as text; a `TextWatch`.

    At most SEARCHED_BYTES of the text are searched. Text is skipped while the search has taken more
    than a hundredth of the time since this object was made.

    is_complete: whether all text so far was searched.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        options: SpecialOptions,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Search for the vocabulary's special tokens that are neither allowed nor disallowed."""
        chosen = set().union(*chosen_texts(vocabulary, options))
        texts = [text.encode() for text in vocabulary.special_tokens if text not in chosen]
        self._search = search_for(texts) if any(texts) else None
        self._clock, self._begin, self._spent = clock, clock(), 0.0
        self._left = SEARCHED_BYTES
        # The last bytes of the text so far: a token may begin there and end in later text.
        self._tail = b""
        self._found, self.is_complete = 0, True

    def see(self, nbytes: int, read: Callable[[int, int], bytes]) -> None:
        """Search the next `nbytes` of the text, as far as the search has bytes and time left.

        read: returns the bytes between two positions; position 0 is the first of the `nbytes`.

        A token that begins or ends in bytes that are not searched is not found.
        """
        if self._search is None:
            return
        for begin in range(0, nbytes, _SEARCHED_AT_ONCE):
            start = self._clock()
            if self._left <= 0 or self._spent > _MOST_TIME * (start - self._begin):
                self.is_complete = False
                self._found, self._tail = self.found, b""
                return
            end = min(nbytes, begin + _SEARCHED_AT_ONCE)
            self._count(self._search, self._tail + read(begin, end))
            self._left -= end - begin
            self._spent += self._clock() - start

    def _count(self, search: Search, data: bytes) -> None:
        position = 0
        for match in search.pattern.finditer(data):
            position = match.start()
            # A token may begin here and end in the next bytes: search again when they arrive.
            if position + search.longest > len(data) and search.may_continue(data, position):
                break
            position = match.end()
            self._found += 1
        else:
            position = max(position, len(data) - search.longest + 1)
        self._tail = data[position:]

    @property
    def found(self) -> int:
        """The number of special tokens found so far."""
        at_end = self._search.pattern.findall(self._tail) if self._search else ()
        return self._found + len(at_end)

    def note(self) -> str:
        """Return a note for the user about the tokens found, "" if there are none."""
        found = self.found
        if not found:
            return ""
        least = "" if self.is_complete else "at least "
        return (
            f"the text spells {least}{number_of(found, 'special token')} encoded as text: "
            f"{spelled('--allowed-special')} all encodes such text as ids, "
            f"{spelled('--disallow-special')} all refuses it"
        )
