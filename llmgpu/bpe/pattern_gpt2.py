"""Pattern gpt2 as a local rule on characters, in NumPy.

    '(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A character is a letter, a number, white space or other. A pre-token starts

- where the class changes, except behind a plain space, which joins what is no white space, and
  except at the letters of a contraction;
- at the last of several white-space characters before something else;
- at a letter behind a contraction.

An apostrophe opens a contraction only if a pre-token starts at it: behind a letter, a number, white
space that is no plain space, or nothing. A byte that is not part of a valid UTF-8 sequence (RFC
3629) is a character of class other.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe import unicode_classes

# A character's code: its class in the low half, and in the high half the classes that go on behind
# it. The edge of a document is followed by nothing, and ends white space as white space would.
_LETTER, _NUMBER, _OTHER, _SPACE = 1, 2, 4, 8
_ALL = _LETTER | _NUMBER | _OTHER | _SPACE
_EDGE_CODE = _SPACE
_APOSTROPHE = ord("'")
_EDGE_BYTE = 0xFF  # in no valid text


def _code(kind: int) -> int:
    return kind | kind << 4


def _ascii_codes() -> bytes:
    codes = np.full(256, _code(_OTHER), np.uint8)
    for value in range(128):
        if chr(value).isalpha():
            codes[value] = _code(_LETTER)
        elif chr(value).isdigit():
            codes[value] = _code(_NUMBER)
    codes[list(b"\t\n\v\f\r")] = _code(_SPACE)
    codes[ord(" ")] = _SPACE | _ALL << 4
    return codes.tobytes()


_ASCII_CODES = _ascii_codes()


@cache
def _unicode_codes() -> NDArray[np.uint8]:
    """Return the code of every code point: uint8 (0x110000,)."""
    kinds = np.full(7, _OTHER, np.uint8)
    kinds[unicode_classes.UPPERCASE] = _LETTER
    kinds[unicode_classes.LOWERCASE] = _LETTER
    kinds[unicode_classes.OTHER_LETTER] = _LETTER
    kinds[unicode_classes.NUMBER] = _NUMBER
    kinds[unicode_classes.WHITE_SPACE] = _SPACE
    kinds |= kinds << 4
    return kinds[unicode_classes.code_point_classes()]


def _contraction_letters() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    single = np.zeros(256, np.bool_)
    single[list(b"sdmt")] = True
    double = np.zeros(1 << 16, np.bool_)
    double[[first << 8 | second for first, second in (b"ll", b"ve", b"re")]] = True
    return single, double


_SINGLE, _DOUBLE = _contraction_letters()


def starts(data: NDArray[np.uint8], edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the bytes at which a pre-token starts, in a piece of text with edges in it.

    data: uint8 (n,). edges: positions of bytes that are no text but stand between documents.

    Returns bool (n,). The first bytes lack what is before them, the last ones what is behind: they
    are undecided within CONTEXT and LOOKAHEAD of the ends, unless an edge is there.
    """
    raw = data.tobytes()
    codes = np.frombuffer(raw.translate(_ASCII_CODES), np.uint8)
    plain = raw.isascii()
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = _EDGE_BYTE, _EDGE_CODE
    if plain:
        return _character_starts(data, codes)
    characters, decoded = _characters(data, codes.copy())
    mask = np.zeros(len(data), np.bool_)
    mask[characters] = _character_starts(data[characters], decoded[characters])
    return mask


def _character_starts(first: NDArray[np.uint8], codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Apply the rule to characters.

    first: uint8 (n,), the first byte of each. codes: uint8 (n,).
    """
    marked = np.ones(len(codes), np.bool_)
    np.equal((codes[:-1] >> 4) & codes[1:], 0, out=marked[1:])
    marked[1:-1] |= (codes[:-2] & codes[1:-1] & ~codes[2:] & _SPACE) != 0
    opened = np.flatnonzero(first == _APOSTROPHE)
    opened = opened[marked[opened]]
    if len(opened):
        _mark_contractions(marked, first, codes, opened)
    return marked


def _mark_contractions(
    marked: NDArray[np.bool_],
    first: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    opened: NDArray[np.int64],
) -> None:
    """Join contractions with their apostrophes, and start pre-tokens at letters behind them."""
    last = len(first) - 1  # what would be behind is undecided, or an edge that is no letter
    one, two = first[np.minimum(opened + 1, last)], first[np.minimum(opened + 2, last)]
    single = _SINGLE[one]
    double = _DOUBLE[one.astype(np.uint16) << 8 | two]
    marked[opened[single | double] + 1] = False
    behind = np.concatenate([opened[single] + 2, opened[double] + 3])
    behind = behind[behind <= last]
    marked[behind] |= codes[behind] == _code(_LETTER)


def _characters(
    data: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Decode UTF-8.

    Returns where characters begin, and `codes` with those of characters beyond ASCII written in.
    """
    begins = np.ones(len(data), np.bool_)
    padded = np.concatenate([data, np.zeros(3, np.uint8)])
    leads = np.flatnonzero(data >= 0xC2)
    bytes_ = data[leads]
    table = _unicode_codes()
    for length, low, high, least in (
        (2, 0xC2, 0xE0, 0x80),
        (3, 0xE0, 0xF0, 0x800),
        (4, 0xF0, 0xF5, 0x10000),
    ):
        at = leads[(bytes_ >= low) & (bytes_ < high)]
        if len(at) == 0:
            continue
        points: NDArray[np.uint32] = (data[at] & (0x7F >> length)).astype(np.uint32)
        valid = np.ones(len(at), np.bool_)
        for k in range(1, length):
            behind = padded[at + k]
            valid &= (behind & 0xC0) == 0x80
            points <<= np.uint32(6)
            points |= behind & 0x3F
        valid &= (points >= least) & (points < unicode_classes.CODE_POINTS)
        valid &= (points < 0xD800) | (points >= 0xE000)
        if not valid.all():
            at, points = at[valid], points[valid]
        codes[at] = table[points]
        for k in range(1, length):
            begins[at + k] = False
    return np.flatnonzero(begins), codes
