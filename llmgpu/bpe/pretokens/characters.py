"""Characters of a text that may not be valid UTF-8, each with a code that says its kind.

A byte that is not part of a valid sequence (RFC 3629) is a character by itself, neither letter,
number, mark nor white space.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes

LETTERS = (unicode_classes.UPPERCASE, unicode_classes.LOWERCASE, unicode_classes.OTHER_LETTER)
_FIRST_LEAD = 0xC2  # where characters of several bytes begin, and from here on
_LEADS = (0xE0, 0xF0, 0xF5)  # of three bytes, of four and of none: from here on
_LEAST = np.array([0, 0, 0x80, 0x800, 0x10000], np.uint32)  # code point by number of bytes
_SURROGATES = (0xD800, 0xE000)


class CodeTable:
    """Codes of characters: one for each class of `unicode_classes`, and some characters' own."""

    def __init__(
        self, unicode: str, other: int, by_class: dict[int, int], own: dict[str, int]
    ) -> None:
        """Take codes by class (`other` for the rest), and those of some characters.

        unicode: the version of the classes.
        """
        self._unicode = unicode
        self._by_class = np.full(7, other, np.uint8)
        for number, code in by_class.items():
            self._by_class[number] = code
        self._own = own

    @cached_property
    def of_code_points(self) -> NDArray[np.uint8]:
        """The code of every code point: uint8 (0x110000,)."""
        codes = self._by_class[unicode_classes.code_point_classes(self._unicode)]
        for character, code in self._own.items():
            codes[ord(character)] = code
        return codes

    @cached_property
    def of_bytes(self) -> bytes:
        """The codes of ASCII, and of bytes that are characters by themselves."""
        codes = np.full(256, self._by_class[unicode_classes.OTHER], np.uint8)
        codes[:128] = self.of_code_points[:128]
        return codes.tobytes()


def code_tables(other: int, by_class: dict[int, int], own: dict[str, int]) -> dict[str, CodeTable]:
    """Return a `CodeTable` for each version of Unicode."""
    versions = unicode_classes.VERSIONS
    return {version: CodeTable(version, other, by_class, own) for version in versions}


def decode(
    data: NDArray[np.uint8], table: CodeTable
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Decode UTF-8.

    Returns where characters begin, int64 (m,), and their codes, uint8 (m,).
    """
    codes = np.frombuffer(data.tobytes().translate(table.of_bytes), np.uint8).copy()
    padded = np.concatenate([data, np.zeros(3, np.uint8)])
    at = np.flatnonzero(data >= _FIRST_LEAD)
    lead = padded[at]
    lengths = 2 + (lead >= _LEADS[0]).astype(np.int8) + (lead >= _LEADS[1])
    points = (lead & (0x7F >> lengths)).astype(np.uint32)
    valid = lead < _LEADS[2]
    for k in range(1, 4):
        has_byte = lengths > k
        byte = padded[k:][at]
        valid &= (byte & 0xC0 == 0x80) | ~has_byte
        points = np.where(has_byte, points << np.uint32(6) | byte & np.uint32(0x3F), points)
    valid &= (points >= _LEAST[lengths]) & (points < unicode_classes.CODE_POINTS)
    valid &= (points < _SURROGATES[0]) | (points >= _SURROGATES[1])
    at, lengths = at[valid], lengths[valid]
    codes[at] = table.of_code_points[points[valid]]
    begins = np.ones(len(data), np.bool_)
    for k in range(1, 4):
        begins[at[lengths > k] + k] = False
    positions = np.flatnonzero(begins)
    return positions, codes[positions]
