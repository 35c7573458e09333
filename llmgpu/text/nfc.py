"""Unicode's normalization form C of text that comes block by block.

- The tables equal the tables of Hugging Face tokenizers. The algorithm follows Unicode Standard
  Annex 15: decompose every character, sort each run of marks by combining class, then compose from
  left to right. Nearly all text is composed already, so `normalize` processes only runs of
  characters that normalization may change, each run together with the character before the run.
- Each document is normalized on its own, and within a document each run of valid UTF-8. Invalid
  bytes stay as they are, and characters on both sides of them do not compose.
- A document in blocks is cut before an independent character: the character's decomposition begins
  with a starter that never composes with an earlier character. The filter holds back the text after
  the last possible cut. This is a few bytes, unless the text is one endless run of marks.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.documents import Piece

# Hangul syllables are numbered by leading consonant, vowel and trailing consonant (Unicode 3.12).
_SYLLABLES = range(0xAC00, 0xD7A4)
_LEADING = range(0x1100, 0x1113)
_VOWELS = range(0x1161, 0x1176)
_TRAILING = range(0x11A7, 0x11C3)  # the first number means no trailing consonant

_SHORT = 8  # most characters of a text whose normalized form is cached


@dataclass(frozen=True)
class _Tables:
    """The tables of the algorithm.

    classes: combining class by character; characters of class 0 are left out.
    decompositions: the full decomposition by character.
    compositions: the composed character by the pair of characters.
    changeable: bool (0x110000,), by code point: False if normalization never changes or moves the
        character, and the character never composes with an earlier one.
    """

    classes: dict[str, int]
    decompositions: dict[str, str]
    compositions: dict[tuple[str, str], str]
    changeable: NDArray[np.bool_]


def normalize(text: str) -> str:
    """Return `text` in normalization form C; lone surrogates stay as they are."""
    if text.isascii():
        return text
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    changeable = _tables().changeable[codes]
    # Each (begin, end) is a stretch of changeable characters. Compose it with the character before.
    edges = np.flatnonzero(np.diff(changeable, prepend=False, append=False))
    parts, done = [], 0
    for begin, end in edges.reshape(-1, 2).tolist():
        begin = max(done, begin - 1)
        compose = _normalize_short if end - begin <= _SHORT else _normalize
        parts += [text[done:begin], compose(text[begin:end])]
        done = end
    return "".join([*parts, text[done:]]) if parts else text


@cache
def changeable_bits() -> NDArray[np.uint8]:
    """Return `_Tables.changeable` as bits, the lowest bit of a byte first: uint8 (0x110000 / 8,).

    If no character of a text has its bit set, the text is normalized already.
    """
    return np.packbits(_tables().changeable, bitorder="little")


def starts_unit(character: str) -> bool:
    """Whether a character is normalized in the same way after any text.

    The character's decomposition must begin with a character of class 0 that never composes with
    the character before it. A text may be cut before such a character: the texts before and after
    the cut are normalized independently.
    """
    tables = _tables()
    first = tables.decompositions.get(character, character)[0]
    return not tables.changeable[ord(first)]


def _normalize(text: str) -> str:
    tables = _tables()
    decomposed = "".join(_decompose(character, tables) for character in text)
    return _compose(_sort_marks(decomposed, tables), tables)


# Texts of a language have few distinct short units, so their results are cached.
_normalize_short = lru_cache(maxsize=1 << 16)(_normalize)


def _decompose(character: str, tables: _Tables) -> str:
    number = ord(character)
    if number not in _SYLLABLES:
        return tables.decompositions.get(character, character)
    consonants, trailing = divmod(number - _SYLLABLES.start, len(_TRAILING))
    leading, vowel = divmod(consonants, len(_VOWELS))
    parts = chr(_LEADING[leading]) + chr(_VOWELS[vowel])
    return parts + chr(_TRAILING[trailing]) if trailing else parts


def _sort_marks(text: str, tables: _Tables) -> list[str]:
    """Return the characters with each run of marks sorted, stably, by combining class."""
    characters: list[str] = []
    marks: list[str] = []
    for character in text:
        if character in tables.classes:
            marks.append(character)
            continue
        characters += sorted(marks, key=tables.classes.__getitem__)
        characters.append(character)
        marks = []
    return characters + sorted(marks, key=tables.classes.__getitem__)


def _compose(characters: list[str], tables: _Tables) -> str:
    composed: list[str] = []
    starter = -1  # index in `composed` of the last character of class 0
    last_class = 0  # class of the last character kept after the starter
    for character in characters:
        own_class = tables.classes.get(character, 0)
        # A character may compose with the starter if the starter is the last character so far, or
        # if the characters after the starter have lower classes than this character.
        adjacent = starter == len(composed) - 1
        if starter >= 0 and (adjacent or last_class < own_class):
            together = _compose_pair(composed[starter], character, tables)
            if together:
                composed[starter] = together
                continue
        if own_class == 0:
            starter = len(composed)
        last_class = own_class
        composed.append(character)
    return "".join(composed)


def _compose_pair(first: str, second: str, tables: _Tables) -> str | None:
    a, b = ord(first), ord(second)
    if a in _LEADING and b in _VOWELS:
        consonants = (a - _LEADING.start) * len(_VOWELS) + b - _VOWELS.start
        return chr(_SYLLABLES.start + consonants * len(_TRAILING))
    has_trailing = a in _SYLLABLES and (a - _SYLLABLES.start) % len(_TRAILING)
    if a in _SYLLABLES and not has_trailing and b in _TRAILING and b != _TRAILING.start:
        return chr(a + b - _TRAILING.start)
    return tables.compositions.get((first, second))


@cache
def _tables() -> _Tables:
    text = Path(__file__).with_name("nfc.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    classes_table, composed_table, decomposed_table = "\n".join(lines).strip().split("\n\n")
    classes: dict[str, int] = {}
    for run in classes_table.split():
        first, more, value = (int(part, 16) for part in re.split(r"[+=]", run))
        classes |= {chr(first + i): value for i in range(more + 1)}
    composed = dict(_entries(composed_table))
    decomposed = dict(_entries(decomposed_table))
    # Decompositions may have more than two characters. All characters but the last compose first,
    # then their composition and the last character.
    whole = {text: character for character, text in composed.items()}
    compositions = {
        (text[:-1] if len(text) == 2 else whole[text[:-1]], text[-1]): character
        for character, text in composed.items()
    }
    changeable = np.zeros(0x110000, np.bool_)
    for characters in (classes, decomposed, (second for _, second in compositions)):
        changeable[list(map(ord, characters))] = True
    changeable[[*_VOWELS, *_TRAILING]] = True
    return _Tables(classes, decomposed | composed, compositions, changeable)


def _entries(table: str) -> Iterator[tuple[str, str]]:
    for entry in table.split():
        character, *parts = re.split(r"[+=]", entry)
        yield chr(int(character, 16)), "".join(chr(int(part, 16)) for part in parts)


_ERRORS = "surrogateescape"  # decodes invalid bytes to lone surrogates, which are starters
_LONGEST = 4  # most bytes of a character


class NfcFilter:
    """Normalizes a text that comes in blocks; see `llmgpu.text.documents.TextFilter`."""

    def __init__(self) -> None:
        self._held = b""  # bytes from the last document start or safe cut on
        self._held_starts = np.empty(0, np.int64)

    def feed(self, text: NDArray[np.uint8], starts: NDArray[np.int64], final: bool) -> Piece:
        """Normalize up to the last safe cut, or all of the text if `final`; hold back the rest."""
        before = len(self._held)
        data = self._held + text.tobytes()
        starts = np.concatenate([self._held_starts, starts + before])
        decided, own = len(data), len(starts)
        if not final:
            # Any cut in the held bytes is unsafe, except perhaps at their incomplete last
            # character.
            last = int(starts[-1]) if len(starts) else 0
            first = max(last, before - _LONGEST + 1)
            last_first = range(len(data) - 1, first - 1, -1)
            decided = next((place for place in last_first if _is_safe(data, place)), last)
            own = int(np.searchsorted(starts, decided))
        self._held, self._held_starts = data[decided:], starts[own:] - decided
        normalized, places = _normalize_documents(data[:decided], starts[:own])
        return Piece(np.frombuffer(normalized, np.uint8), places, final)


def _normalize_documents(data: bytes, starts: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
    """Normalize each document.

    data: the bytes of all documents. starts: int64 (documents,), where they begin. Returns the
    normalized bytes, and the starts in them.
    """
    text = data.decode(errors=_ERRORS)
    # Usually the whole text is normalized already, and so is each of its documents.
    if normalize(text) == text:
        return data, starts
    parts = [
        normalize(data[begin:end].decode(errors=_ERRORS)).encode(errors=_ERRORS)
        for begin, end in pairwise([0, *starts.tolist(), len(data)])
    ]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.cumsum(lengths)[:-1]


def _is_safe(data: bytes, position: int) -> bool:
    """Whether the data before a position and the data after it normalize independently."""
    if data[position] < 0x80:
        return True
    # A continuation byte after three others is invalid UTF-8, which composes with nothing.
    if data[position] < 0xC0:
        before = data[max(0, position - _LONGEST + 1) : position]
        return len(before) == _LONGEST - 1 and all(0x80 <= byte < 0xC0 for byte in before)
    text, _ = codecs.utf_8_decode(data[position : position + _LONGEST], _ERRORS, False)
    return bool(text) and starts_unit(text[0])
