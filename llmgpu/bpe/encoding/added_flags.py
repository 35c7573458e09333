"""The flags of Hugging Face's added tokens: lstrip, rstrip and single_word.

- A token with lstrip swallows the white space before a match, a token with rstrip the white space
  after a match. The white space that is swallowed lies in the same document and never belongs to
  another match. White space has Unicode's property White_Space.
- A match of a token with single_word is ignored if a word character is next to it. The search
  continues at the end of the match. A word character is a letter, a mark, a decimal or letter
  number, a connector such as "_", or a joiner. Circled letters are word characters, too.
"""

from __future__ import annotations

import re
import unicodedata
from codecs import getincrementaldecoder
from functools import cache
from typing import NamedTuple

import numpy as np

from llmgpu.bpe.pretokens.unicode_classes import (
    DEFAULT_VERSION,
    LETTERS,
    MARK,
    NUMBER,
    code_point_classes,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.text.normalizing import WHITE_SPACE

LONGEST = 4  # largest number of bytes in a character
# Number of bytes that are searched first for the edge of a run of white space. The search goes on
# only if all of them are white space.
_WINDOW = 64
# Bytes of a block in `Blanks`: a multiple of 1, 2 and 3, the lengths of white-space characters.
_BLOCK = 3 << 14
_ERRORS = "surrogateescape"
_BLANKS = re.compile(b"(?:%s)*+" % b"|".join(re.escape(c.encode()) for c in WHITE_SPACE))
_MORE_LETTERS = ((0x24B6, 0x24EA), (0x1F130, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
_JOINERS = (0x200C, 0x200D)
_NEWER_FRACTIONS = range(0x1D2C0, 0x1D2D4)  # numbers of category No that older Pythons do not know


class Flags(NamedTuple):
    """For each flag, the ids of the special tokens that have the flag."""

    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()
    single_word: frozenset[int] = frozenset()

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Flags:
        """Return the flags of a vocabulary's special tokens."""
        return cls(
            frozenset(vocabulary.lstrip_tokens),
            frozenset(vocabulary.rstrip_tokens),
            frozenset(vocabulary.single_word_tokens),
        )


@cache
def _word_characters() -> bytes:
    """Return a byte for each code point: 1 for a word character, else 0."""
    classes = code_point_classes(DEFAULT_VERSION)
    found = np.isin(classes, [*LETTERS, MARK])
    for code in np.flatnonzero(classes == NUMBER).tolist():
        found[code] = unicodedata.category(chr(code)) != "No" and code not in _NEWER_FRACTIONS
    for begin, end in _MORE_LETTERS:
        found[begin:end] = True
    found[list(_JOINERS)] = True
    connectors = [k for k in range(1 << 16) if unicodedata.category(chr(k)) == "Pc"]
    found[connectors] = True
    return found.tobytes()


def ends_in_word(data: bytes) -> bool:
    """Whether the last character of `data` is a word character."""
    return bool(data) and _is_word(data[-LONGEST:].decode(errors=_ERRORS)[-1])


def begins_with_word(data: bytes) -> bool:
    """Whether the first character of `data` is a word character."""
    return bool(data) and _is_word(data[:LONGEST].decode(errors=_ERRORS)[0])


def _is_word(character: str) -> bool:
    return bool(_word_characters()[ord(character)])


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


class Blanks:
    """A run of white space of any length, in blocks. Consecutive equal blocks share memory.

    length: total number of bytes.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._rest = b""
        self.length = 0

    def append(self, data: bytes) -> None:
        """Add white space at the end."""
        self.length += len(data)
        data = self._rest + data
        whole = len(data) - len(data) % _BLOCK
        self._rest = data[whole:]
        for begin in range(0, whole, _BLOCK):
            block = data[begin : begin + _BLOCK]
            if self._blocks and self._blocks[-1] == block:
                block = self._blocks[-1]
            self._blocks.append(block)

    def take(self) -> list[bytes]:
        """Return the white space in blocks, and empty this object."""
        blocks = [*self._blocks, self._rest]
        self._blocks, self._rest, self.length = [], b"", 0
        return blocks
