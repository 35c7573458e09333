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

from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
