"""Pattern ``class`` in NumPy: a pre-token starts where the class of bytes changes.

The classes are newline (0x0A), space (0x20), digit (0-9), letter (A-Z, a-z and every byte >= 0x80)
and punctuation (all other bytes, with TAB and CR). A pre-token starts at and after every newline
and where the class changes. But no pre-token starts at a letter or digit after a space: spaces
belong to the word or number after them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Marks, Pattern, Positions, Text

_BLOCK = 1 << 17  # bytes marked at once, so that the temporary arrays fit in the processor's cache


def _continuation_table() -> bytes:
    """Return a table by byte: the byte's class, and the classes that continue its pre-token.

    Each class is one bit of a nibble. The low nibble has the byte's class, the high nibble the
    classes that continue the pre-token. A newline has no bits, so the pre-token of a newline is one
    byte.
    """
    letter, digit, space, punctuation = 1, 2, 4, 8
    table = np.full(256, punctuation | punctuation << 4, np.uint8)
    table[0x80:] = letter | letter << 4
    table[ord("A") : ord("Z") + 1] = letter | letter << 4
    table[ord("a") : ord("z") + 1] = letter | letter << 4
    table[ord("0") : ord("9") + 1] = digit | digit << 4
    table[ord(" ")] = space | (space | letter | digit) << 4
    table[ord("\n")] = 0
    return table.tobytes()


_CONTINUATION = _continuation_table()


def _class_changes(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the starts of pre-tokens of pattern ``class`` in one document."""
    mask = np.empty(len(text), np.bool_)
    before = 0
    for first in range(0, len(text), _BLOCK):
        piece = text[first : first + _BLOCK].tobytes()
        # bytes.translate is faster than indexing in NumPy, which turns bytes into indices of 8
        # bytes.
        here = np.frombuffer(piece.translate(_CONTINUATION), np.uint8)
        out = mask[first : first + len(here)]
        out[0] = (before >> 4) & int(here[0]) == 0
        np.equal((here[:-1] >> 4) & here[1:], 0, out=out[1:])
        before = int(here[-1])
    return mask


class _ClassPattern(Pattern):
    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        mask = _class_changes(text)
        mask[inner] = True
        return mask

    def certain_starts(self, data: Text) -> Positions:
        return np.flatnonzero(_class_changes(data)[1:]) + 1


# The expression over characters. Its letters include all characters beyond ASCII, because the bytes
# of these characters are letters.
_CHARACTERS = (
    r" *[^\x00-@\[-\x60\{-\x7F]+| *[0-9]+| +|\n"
    r"|[\x00-\x09\x0B-\x1F!-/:-@\[-\x60\{-\x7F]+"
)
PATTERN = _ClassPattern(
    name="class",
    expression=r" *[A-Za-z\x80-\xff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x80-\xff]+",
    spellings={"tiktoken": _CHARACTERS, "huggingface": _CHARACTERS},
    kernel="class",
)
