"""Characters of a text that may not be valid UTF-8, each with a code that says its kind.

A byte that is not part of a valid sequence (RFC 3629) is a character by itself, neither letter,
number, mark nor white space.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.patterns import unicode_classes

EDGE_BYTE = 0xFF  # in no valid text
_LONG_S = (
    b"\xc5\xbf"  # U+017F, the only letter beyond ASCII whose case folds to an ASCII one of use
)


class CodeTable:
    """Codes of characters: one for each class of `unicode_classes`, and some characters' own."""

    def __init__(self, by_class: Sequence[int], own: dict[str, int]) -> None:
        """Take codes in the order of the classes' numbers, and those of ASCII characters."""
        self._by_class = np.array(by_class, np.uint8)
        kinds = unicode_classes.code_point_classes()[:128]
        codes = np.full(256, by_class[unicode_classes.OTHER], np.uint8)
        codes[:128] = self._by_class[kinds]
        for character, code in own.items():
            codes[ord(character)] = code
        self.of_bytes = codes.tobytes()  # of ASCII, and of bytes that are characters by themselves

    @cached_property
    def of_code_points(self) -> NDArray[np.uint8]:
        """The code of every code point beyond ASCII: uint8 (0x110000,)."""
        return self._by_class[unicode_classes.code_point_classes()]


def decode(
    data: NDArray[np.uint8], codes: NDArray[np.uint8], table: CodeTable
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Decode UTF-8.

    codes: uint8 (n,), those of the single bytes; those of longer characters are written into it.

    Returns where characters begin, int64 (m,), and their codes, uint8 (m,).
    """
    begins = np.ones(len(data), np.bool_)
    padded = np.concatenate([data, np.zeros(3, np.uint8)])
    leads = np.flatnonzero(data >= 0xC2)
    bytes_ = data[leads]
    code_points = table.of_code_points
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
        codes[at] = code_points[points]
        for k in range(1, length):
            begins[at + k] = False
    positions = np.flatnonzero(begins)
    return positions, codes[positions]


def first_bytes(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the first byte of each character, but "s" for a long s, which counts as one.

    positions: int64 (m,), where the characters begin.

    Returns uint8 (m,).
    """
    first = data[positions]
    maybe = np.flatnonzero(first[:-1] == _LONG_S[0])
    maybe = maybe[data[positions[maybe] + 1] == _LONG_S[1]]
    maybe = maybe[positions[maybe + 1] - positions[maybe] == 2]
    first[maybe] = ord("s")
    return first
