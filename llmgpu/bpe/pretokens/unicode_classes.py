"""Classes of code points, by version of Unicode, and the characters of a text with their classes.

- DEFAULT_VERSION is the Unicode version of tiktoken 0.14 and tokenizers 0.23, so that the named
  patterns cut as in these tools. The two tools agree about every code point.
- UNRECORDED_VERSION is the version of a vocabulary file whose pattern has classes but whose
  training data names no version.
- A vocabulary, word counts and a checkpoint record the version with which they were made.
- In a text, a byte that is not part of a valid UTF-8 sequence (RFC 3629) is a character by itself,
  neither letter, number, mark nor white space.

scripts/make_unicode_classes.py makes unicode_VERSION.txt, a list of runs of code points in order: a
run is its length (omitted: 1) and a letter for the class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import LlmgpuError

VERSIONS = ("16.0", "18.0")
DEFAULT_VERSION = "16.0"
UNRECORDED_VERSION = "18.0"

CODE_POINTS = 0x110000

OTHER = 0
UPPERCASE = 1  # Lu, Lt
LOWERCASE = 2  # Ll
OTHER_LETTER = 3  # Lm, Lo
MARK = 4  # M
NUMBER = 5  # N
WHITE_SPACE = 6

_LETTERS = "oulxmns"


def check_version(version: object) -> None:
    """Raise LlmgpuError unless there is a table of this version of Unicode."""
    if version not in VERSIONS:
        raise LlmgpuError(
            f"there are no character classes of Unicode {str(version)[:40]!r}; this llmgpu has "
            f"those of {' and '.join(VERSIONS)}"
        )


@cache
def code_point_classes(version: str) -> NDArray[np.uint8]:
    """Return the class of every code point: uint8 (0x110000,), read-only.

    version: one of VERSIONS; LlmgpuError for another version.
    """
    check_version(version)
    table = Path(__file__).with_name(f"unicode_{version}.txt")
    _, _, written = table.read_text(encoding="ascii").partition("\n")  # the first line is a comment
    runs = re.findall(r"([0-9]*)([a-z])", "".join(written.split()))
    lengths = [int(length or "1") for length, _ in runs]
    classes = np.repeat(np.array([_LETTERS.index(name) for _, name in runs], np.uint8), lengths)
    classes.flags.writeable = False
    return classes


LETTERS = (UPPERCASE, LOWERCASE, OTHER_LETTER)
_FIRST_LEAD = 0xC2  # lowest first byte of a character of several bytes
# Lowest first bytes of characters of 3 bytes, of characters of 4 bytes, and of invalid bytes.
_LEADS = (0xE0, 0xF0, 0xF5)
# The smallest valid code point, by number of bytes.
_LEAST = np.array([0, 0, 0x80, 0x800, 0x10000], np.uint32)
_SURROGATES = (0xD800, 0xE000)


class CodeTable(NamedTuple):
    """A code for each character of a text, by one version of Unicode.

    of_code_points: uint8 (0x110000,), the code of every code point.
    of_bytes: by byte, the code of an ASCII character or of a byte that is not part of valid UTF-8.
    """

    of_code_points: NDArray[np.uint8]
    of_bytes: bytes


def code_tables(
    other: int, by_class: Mapping[int, int], own: Mapping[str, int]
) -> Callable[[str], CodeTable]:
    """Return a function that makes the `CodeTable` of a version of Unicode once.

    by_class: the code of each class of `unicode_classes`. other: code of the classes that
    `by_class` lacks. own: codes of single characters, used in place of the codes of their classes.
    """

    @cache
    def table(version: str) -> CodeTable:
        code_of = np.array([by_class.get(number, other) for number in range(7)], np.uint8)
        codes: NDArray[np.uint8] = code_of[code_point_classes(version)]
        for character, code in own.items():
            codes[ord(character)] = code
        of_bytes = np.full(256, code_of[OTHER])
        of_bytes[:128] = codes[:128]
        return CodeTable(codes, of_bytes.tobytes())

    return table


def code_points(characters: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the code point of each character, uint32 (n,), and its bytes in UTF-8, int64 (n,).

    A lone surrogate is one byte, as `str` decodes a byte that is not valid UTF-8.
    """
    points = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    sizes[(points >= _SURROGATES[0]) & (points < _SURROGATES[1])] = 1
    return points, sizes


def decode(
    data: NDArray[np.uint8], table: CodeTable
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Decode UTF-8 to the positions and codes of its characters.

    Returns the starts of characters, int64 (m,), and their codes, uint8 (m,).
    """
    codes = np.frombuffer(data.tobytes().translate(table.of_bytes), np.uint8).copy()
    padded = np.concatenate([data, np.zeros(3, np.uint8)])
    # Compute the code points of characters of several bytes, and drop invalid sequences.
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
    valid &= (points >= _LEAST[lengths]) & (points < CODE_POINTS)
    valid &= (points < _SURROGATES[0]) | (points >= _SURROGATES[1])
    at, lengths = at[valid], lengths[valid]
    codes[at] = table.of_code_points[points[valid]]
    # A continuation byte of a valid character does not begin a character.
    begins = np.ones(len(data), np.bool_)
    for k in range(1, 4):
        begins[at[lengths > k] + k] = False
    positions = np.flatnonzero(begins)
    return positions, codes[positions]
