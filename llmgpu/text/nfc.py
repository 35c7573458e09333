"""Unicode's normalization form C of text that comes block by block.

- Hugging Face tokenizers have tables of one version of Unicode, and Python has newer ones.
  `nfc.txt` lists the characters that may change or move, or compose with an earlier character, by
  the tables of tokenizers. Python normalizes only runs of these characters, each together with the
  base before it. All other text stays as it is, characters of later versions included. The results
  are those of tokenizers, because a later version never changes how older characters normalize.
- Nearly all text is composed already, so runs are rare.
- Each document is normalized on its own, and within a document each run of valid UTF-8. Invalid
  bytes stay as they are, and characters on both sides of them do not compose.
- A document in blocks is cut before an independent character: the character's decomposition begins
  with a starter that never composes with an earlier character. The filter holds back the text after
  the last possible cut. This is a few bytes, unless the text is one endless run of marks.
"""

from __future__ import annotations

import codecs
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.text.documents import Piece

_LONG = 100  # marks in a run of more characters are sorted before Python composes the run


class _Tables(NamedTuple):
    """Two sets of characters, each as bool (0x110000,), by code point.

    changeable: characters that normalization may change or move, or compose with an earlier one.
    bases: characters that a later character may join, whole or in the place of a mark.
    """

    changeable: NDArray[np.bool_]
    bases: NDArray[np.bool_]


def normalize(text: str) -> str:
    """Return `text` in normalization form C; lone surrogates stay as they are."""
    if text.isascii():
        return text
    from unicodedata import normalize as normalized

    changeable, bases = _tables()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    # Each (begin, end) is a stretch of changeable characters, together with the base before it.
    edges = np.flatnonzero(np.diff(changeable[codes], prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    begins -= (begins > 0) & bases[codes[begins - 1]]
    parts, done = [], 0
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        run = text[begin:end] if end - begin <= _LONG else _in_order(text[begin:end])
        parts += [text[done:begin], normalized("NFC", run)]
        done = end
    return "".join([*parts, text[done:]]) if parts else text


def _in_order(text: str) -> str:
    """Decompose characters and sort their marks.

    Python sorts marks by insertion: its time grows with the square of their number, unless the
    marks are in order already.
    """
    from unicodedata import combining
    from unicodedata import normalize as normalized

    decomposed = "".join(normalized("NFD", character) for character in text)
    runs = groupby(decomposed, lambda character: combining(character) > 0)
    return "".join(each for _, run in runs for each in sorted(run, key=combining))


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
    from unicodedata import normalize as normalized

    first = normalized("NFD", character)[0]
    return not _tables().changeable[ord(first)]


@cache
def _tables() -> _Tables:
    text = Path(__file__).with_name("nfc.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    tables = []
    for runs in "\n".join(lines).strip().split("\n\n"):
        table = np.zeros(0x110000, np.bool_)
        for run in runs.split():
            first, more = (int(number, 16) for number in run.split("+"))
            table[first : first + more + 1] = True
        tables.append(table)
    return _Tables(*tables)


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
