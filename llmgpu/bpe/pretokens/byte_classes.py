"""Pattern ``class`` in NumPy: a pre-token starts where the class of bytes changes.

The classes are newline (0x0A), space (0x20), digit (0-9), letter (A-Z, a-z and every byte >= 0x80)
and punctuation (all other bytes, with TAB and CR). A pre-token starts at and after every newline
and where the class changes. But no pre-token starts at a letter or digit after a space: spaces
belong to the word or number after them.
"""

from __future__ import annotations

import numpy as np

from llmgpu.bpe.pretokens.blocks import Marks, Pattern, Positions, Text


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


class _ClassPattern(Pattern):
    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        # bytes.translate is faster than indexing in NumPy, which turns bytes into indices of 8
        # bytes.
        codes = np.frombuffer(text.tobytes().translate(_CONTINUATION), np.uint8)
        mask = np.ones(len(text), np.bool_)
        np.equal((codes[:-1] >> 4) & codes[1:], 0, out=mask[1:])
        mask[inner] = True
        return mask

    def certain_starts(self, data: Text) -> Positions:
        marks = self.mark(data, np.empty(0, np.int64), continues=False)
        return np.flatnonzero(marks[1:]) + 1


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
