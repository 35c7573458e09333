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
from codecs import getincrementaldecoder
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import LlmgpuError

VERSIONS = ("16.0", "18.0")
DEFAULT_VERSION = "16.0"
UNRECORDED_VERSION = "18.0"

CODE_POINTS = 0x110000

# The classes. In Unicode's categories, UPPERCASE is Lu and Lt, LOWERCASE is Ll, OTHER_LETTER is Lm
# and Lo, MARK is M, and NUMBER is N.
OTHER, UPPERCASE, LOWERCASE, OTHER_LETTER, MARK, NUMBER, WHITE_SPACE = range(7)

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
# Codes of bytes, see `byte_codes`. The code of a class is CLASS_CODE plus its number.
CLASS_CODE, LONG_S_CODE, CONTINUES = 0x80, 0x8F, 0x90
_LONG_S = 0x17F  # the only letter beyond ASCII that equals a letter "s" if case is ignored
_BLOCK = 1 << 16  # bytes decoded at once
_SURROGATES = (0xD800, 0xE000)


def code_points(characters: str) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return each character's code point, uint32 (n,), and its length in UTF-8 bytes, int64 (n,).

    A lone surrogate counts as one byte, because it stands for an invalid byte (`surrogateescape`).
    """
    points = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    sizes[(points >= _SURROGATES[0]) & (points < _SURROGATES[1])] = 1
    return points, sizes


@cache
def _character_codes(version: str) -> NDArray[np.uint8]:
    codes = code_point_classes(version) + np.uint8(CLASS_CODE)
    codes[: 1 << 7], codes[_LONG_S] = np.arange(1 << 7), LONG_S_CODE
    return codes


def byte_codes(text: NDArray[np.uint8], version: str) -> NDArray[np.uint8]:
    """Return a code for each byte of a text: uint8 (n,), the text itself if it is ASCII.

    An ASCII character is its own code. The first byte of any other character has the code of the
    character's class, or LONG_S_CODE. Its other bytes have the code CONTINUES.
    """
    if text.max(initial=0) < 1 << 7:
        return text
    codes = np.full(len(text), CONTINUES, np.uint8)
    decoder = getincrementaldecoder("utf-8")("surrogateescape")
    done = 0
    for first in range(0, len(text), _BLOCK):
        block = text[first : first + _BLOCK].tobytes()
        points, sizes = code_points(decoder.decode(block, first + _BLOCK >= len(text)))
        ends = done + np.cumsum(sizes)
        codes[ends - sizes] = _character_codes(version)[points]
        done += int(sizes.sum())
    return codes
