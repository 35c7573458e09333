"""Characters of a text that may not be valid UTF-8, each with a code that says its kind.

A byte that is not part of a valid sequence (RFC 3629) is a character by itself, neither letter,
number, mark nor white space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes

LETTERS = (unicode_classes.UPPERCASE, unicode_classes.LOWERCASE, unicode_classes.OTHER_LETTER)
EDGE_BYTE = 0xFF  # in no valid text
NO_CODE = 0xFF  # for bytes that are not a character
_MANY_CODES = 0xFE  # for two bytes that do not decide the code
_FIRST_LEAD = 0xC2  # where characters of several bytes begin, and from here on
_LEAD_OF_THREE, _LEAD_OF_FOUR = 0xE0, 0xF0  # leads from here on
LONG_S = b"\xc5\xbf"  # U+017F, the only letter beyond ASCII that folds to one in a contraction


class CodeTable:
    """Codes of characters: one for each class of `unicode_classes`, and some characters' own."""

    def __init__(
        self, unicode: str, other: int, by_class: dict[int, int], own: dict[str, int]
    ) -> None:
        """Take codes by class (`other` for the rest), and those of some ASCII characters.

        unicode: the version of the classes.
        """
        self._unicode = unicode
        self._by_class = np.full(7, other, np.uint8)
        for number, code in by_class.items():
            self._by_class[number] = code
        self._own = own

    @cached_property
    def of_bytes(self) -> bytes:
        """The codes of ASCII, and of bytes that are characters by themselves."""
        kinds = unicode_classes.code_point_classes(self._unicode)[:128]
        codes = np.full(256, self._by_class[unicode_classes.OTHER], np.uint8)
        codes[:128] = self._by_class[kinds]
        for character, code in self._own.items():
            codes[ord(character)] = code
        return codes.tobytes()

    @cached_property
    def of_code_points(self) -> NDArray[np.uint8]:
        """The code of every code point beyond ASCII: uint8 (0x110000,)."""
        return self._by_class[unicode_classes.code_point_classes(self._unicode)]

    @cached_property
    def of_two_bytes(self) -> NDArray[np.uint8]:
        """The code of every character of two bytes, uint8 (1 << 13,), or NO_CODE.

        By the low five bits of the first, and above them the second.
        """
        points = np.arange(0x80, 0x800)
        table = np.full(1 << 13, NO_CODE, np.uint8)
        table[(points >> 6) | (0x80 | points & 0x3F) << 5] = self.of_code_points[points]
        return table

    @cached_property
    def of_three_bytes(self) -> NDArray[np.uint8]:
        """The code of every character of three bytes, uint8 (1 << 20,), or NO_CODE.

        By the second, above it the third, and above that the low four bits of the first.
        """
        points = np.delete(np.arange(0x800, 0x10000), np.arange(0xD800 - 0x800, 0xE000 - 0x800))
        table = np.full(1 << 20, NO_CODE, np.uint8)
        after = (0x80 | points >> 6 & 0x3F) | (0x80 | points & 0x3F) << 8
        table[(points >> 12) << 16 | after] = self.of_code_points[points]
        return table

    @cached_property
    def of_pairs(self) -> NDArray[np.uint8]:
        """What the first two bytes of a longer character say of its code: uint8 (1 << 16,).

        By the first, and above it the second. _MANY_CODES where it depends on a third byte, NO_CODE
        where none begins; those of four bytes are not in it.
        """
        table = np.full((256, 256), NO_CODE, np.uint8)  # second byte, first byte
        table[:, 0xC0:0xE0] = self.of_two_bytes.reshape(256, 32)
        three = self.of_three_bytes.reshape(16, 256, 256)[:, 0x80:0xC0].transpose(2, 0, 1)
        same = (three == three[:, :, :1]).all(axis=2)
        table[:, 0xE0:0xF0] = np.where(same, three[:, :, 0], np.uint8(_MANY_CODES))
        return table.reshape(-1)


def code_tables(other: int, by_class: dict[int, int], own: dict[str, int]) -> dict[str, CodeTable]:
    """Return a `CodeTable` for each version of Unicode."""
    versions = unicode_classes.VERSIONS
    return {version: CodeTable(version, other, by_class, own) for version in versions}


@dataclass(frozen=True, eq=False)
class LongerCharacters:
    """Characters of the same number of bytes, two or more.

    length: bytes of each. at: int64 (m,), where they begin. codes: uint8 (m,).
    """

    length: int
    at: NDArray[np.int64]
    codes: NDArray[np.uint8]


def longer_characters(data: NDArray[np.uint8], table: CodeTable) -> list[LongerCharacters]:
    """Return the characters of UTF-8 that have several bytes."""
    padded = np.concatenate([data, np.zeros(3, np.uint8)])
    at = np.flatnonzero(data >= _FIRST_LEAD)
    lead = np.take(data, at)
    pairs = np.take(padded[1:], at).astype(np.int64)
    pairs <<= 8
    pairs |= lead
    codes = np.take(table.of_pairs, pairs)
    is_two, is_four = lead < _LEAD_OF_THREE, lead >= _LEAD_OF_FOUR
    if is_two.all():
        return [_valid(2, at, codes)]
    two, three, four = (np.flatnonzero(is_it) for is_it in (is_two, ~(is_two | is_four), is_four))
    at_three, at_four = np.take(at, three), np.take(at, four)
    return [
        _valid(2, np.take(at, two), np.take(codes, two)),
        _valid(3, at_three, _three_byte_codes(padded, at_three, np.take(codes, three), table)),
        _valid(4, at_four, _four_byte_codes(padded, at_four, table)),
    ]


def _valid(length: int, at: NDArray[np.int64], codes: NDArray[np.uint8]) -> LongerCharacters:
    valid = codes != NO_CODE
    if not valid.all():
        at, codes = at[valid], codes[valid]
    return LongerCharacters(length, at, codes)


def _three_byte_codes(
    padded: NDArray[np.uint8], at: NDArray[np.int64], codes: NDArray[np.uint8], table: CodeTable
) -> NDArray[np.uint8]:
    """Return the codes of what may be characters of three bytes, NO_CODE where there is none.

    codes: what the first two bytes say; written to.
    """
    third = np.take(padded[2:], at)
    codes[third & 0xC0 != 0x80] = NO_CODE
    many = np.flatnonzero(codes == _MANY_CODES)
    index = third[many].astype(np.int64) << 8
    index |= padded[1:][at[many]]
    index |= (padded[at[many]] & 0xF).astype(np.int64) << 16
    codes[many] = table.of_three_bytes[index]
    return codes


def _four_byte_codes(
    padded: NDArray[np.uint8], at: NDArray[np.int64], table: CodeTable
) -> NDArray[np.uint8]:
    """Return the codes of what may be characters of four bytes, NO_CODE where there is none."""
    lead, *after = (padded[k:][at].astype(np.uint32) for k in range(4))
    points = lead & np.uint32(7)
    valid = lead < 0xF5
    for byte in after:
        valid &= byte & np.uint32(0xC0) == 0x80
        points = points << np.uint32(6) | byte & np.uint32(0x3F)
    valid &= (points >= 0x10000) & (points < unicode_classes.CODE_POINTS)
    codes = np.full(len(at), NO_CODE, np.uint8)
    codes[valid] = table.of_code_points[points[valid]]
    return codes


def decode(
    data: NDArray[np.uint8], codes: NDArray[np.uint8], table: CodeTable
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Decode UTF-8.

    codes: uint8 (n,), those of the single bytes; those of longer characters are written into it.

    Returns where characters begin, int64 (m,), and their codes, uint8 (m,).
    """
    begins = np.ones(len(data), np.bool_)
    for longer in longer_characters(data, table):
        codes[longer.at] = longer.codes
        for k in range(1, longer.length):
            begins[longer.at + k] = False
    positions = np.flatnonzero(begins)
    return positions, codes[positions]


def first_bytes(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the first byte of each character, but "s" for a long s, which counts as one.

    positions: int64 (m,), where the characters begin.

    Returns uint8 (m,).
    """
    first = data[positions]
    maybe = np.flatnonzero(first[:-1] == LONG_S[0])
    maybe = maybe[data[positions[maybe] + 1] == LONG_S[1]]
    maybe = maybe[positions[maybe + 1] - positions[maybe] == 2]
    first[maybe] = ord("s")
    return first
