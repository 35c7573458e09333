"""The search for special tokens in a text, and refusal of text that spells forbidden tokens.

Hugging Face's added tokens may have the flags lstrip, rstrip and single_word:

- A token with lstrip swallows the white space before a match, a token with rstrip the white space
  after a match. The white space that is swallowed lies in the same document and never belongs to
  another match. White space has Unicode's property White_Space.
- A match of a token with single_word is ignored if a word character is next to it. The search
  continues at the end of the match. A word character is a letter, a mark, a decimal or letter
  number, a connector such as "_", or a joiner. Circled letters are word characters, too.

`SpelledTokens` counts special tokens that a text spells but that are encoded as text, for a note.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.encoding.special_options import SpecialOptions, chosen_texts
from llmgpu.bpe.pretokens.unicode_classes import (
    DEFAULT_VERSION,
    LETTERS,
    MARK,
    NUMBER,
    code_point_classes,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, TextError
from llmgpu.input_files import number_of, quote
from llmgpu.spelling import spelled
from llmgpu.text.normalizing import WHITE_SPACE

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
        self._first = re.compile(b"|".join({re.escape(text[:1]) for text in texts}))

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

    def begin_of_rest(self, data: bytes, position: int) -> int:
        """Return the first position, from `position` on, where later data may end a string.

        A string begins with the data from there on, and is longer. Without such a position, returns
        the end of the data.
        """
        for match in self._first.finditer(data, max(position, len(data) - self.longest + 1)):
            rest = data[match.start() :]
            if any(len(text) > len(rest) and text.startswith(rest) for text in self._texts):
                return match.start()
        return len(data)


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


LONGEST = 4  # largest number of bytes in a character
# Number of bytes that are searched first for the edge of a run of white space. The search goes on
# only if all of them are white space.
_WINDOW = 64
_ERRORS = "surrogateescape"
_BLANKS = re.compile(b"(?:%s)*+" % b"|".join(re.escape(c.encode()) for c in WHITE_SPACE))
_CIRCLED = ((0x24B6, 0x24EA), (0x1F130, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
# Code points of circled letters and joiners.
_MORE_LETTERS = {0x200C, 0x200D}.union(*(range(begin, end) for begin, end in _CIRCLED))
_NEWER_FRACTIONS = range(0x1D2C0, 0x1D2D4)  # numbers of category No that older Pythons do not know


class Flags(NamedTuple):
    """For each flag, the ids of the special tokens that have the flag."""

    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()
    single_word: frozenset[int] = frozenset()

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Flags:
        """Return the flags of a vocabulary's special tokens."""
        return cls(*(frozenset(getattr(vocabulary, f"{flag}_tokens")) for flag in cls._fields))


def ends_in_word(data: bytes) -> bool:
    """Whether the last character of `data` is a word character."""
    return bool(data) and _is_word(data[-LONGEST:].decode(errors=_ERRORS)[-1])


def begins_with_word(data: bytes) -> bool:
    """Whether the first character of `data` is a word character."""
    return bool(data) and _is_word(data[:LONGEST].decode(errors=_ERRORS)[0])


def _is_word(character: str) -> bool:
    import unicodedata

    code, category = ord(character), unicodedata.category(character)
    kind = code_point_classes(DEFAULT_VERSION)[code]
    if kind == NUMBER:
        return category != "No" and code not in _NEWER_FRACTIONS
    return kind in (*LETTERS, MARK) or category == "Pc" or code in _MORE_LETTERS


def blank_before(data: bytes, begin: int, end: int) -> int:
    """Return the start of the white space that ends at `end`, at least `begin`."""
    size = _WINDOW
    while True:
        first = max(begin, end - size)
        window = data[first:end].decode(errors=_ERRORS)
        kept = len(window.rstrip(WHITE_SPACE).encode(errors=_ERRORS))
        if first == begin or kept >= LONGEST:
            return first + kept
        size *= 8


def blank_after(data: bytes, begin: int, end: int) -> int:
    """Return the end of the white space that starts at `begin`, at most `end`."""
    found = _BLANKS.match(data, begin, end)
    return found.end() if found else begin


def incomplete_bytes(data: bytes) -> int:
    """Return the number of bytes at the end of `data` that are an incomplete character of UTF-8."""
    decoder = getincrementaldecoder("utf-8")(_ERRORS)
    decoder.decode(data)
    return len(decoder.getstate()[0])


@lru_cache(maxsize=4)
def shared(blanks: bytes) -> bytes:
    """Return white space in the memory of equal white space that was given before."""
    return blanks


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
        # The longest token that begins from `safe` on may end in the next bytes: search again when
        # they arrive.
        position = safe = max(0, len(data) - search.longest + 1)
        for match in search.pattern.finditer(data):
            if match.start() >= safe:
                break
            position = max(safe, match.end())
            self._found += 1
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
