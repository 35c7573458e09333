"""Patterns cl100k, rustbpe, llama3, qwen2 and nanochat as a rule on runs of characters, in NumPy.

    '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*
    |\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+

They differ in the numbers that a pre-token holds, and only cl100k has the fifth alternative. The
published spellings differ in more, but no text tells them apart by that: newlines behind `\\s*` are
the last there are, and what is possessive could not be given back.

Pre-tokens are runs as `llmgpu.bpe.patterns.runs` has them, and one also starts at letters behind a
contraction, which its apostrophe opens only if a pre-token starts there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.patterns import unicode_classes
from llmgpu.bpe.patterns.characters import EDGE_BYTE, CodeTable, decode, first_bytes
from llmgpu.bpe.patterns.runs import (
    EDGE_CODE,
    LETTER_CODE,
    NEWLINE_CODE,
    NUMBER_CODE,
    OTHER_CODE,
    PLAIN_SPACE_CODE,
    SPACE_CODE,
    WHITE_SPACE,
    contraction_ends,
    last_without,
    run_starts,
)

_MARGIN = 4  # characters before the end of a text cut anywhere, of which the last may be incomplete


@dataclass(frozen=True)
class Variant:
    """How a pattern differs from the others.

    digits: numbers in a pre-token, at most.
    whole_at_end: white space at the end of a document is one pre-token, with newlines in it too.
    """

    digits: int
    whole_at_end: bool = False


VARIANTS = {
    "cl100k": Variant(digits=3, whole_at_end=True),
    "rustbpe": Variant(digits=3),
    "llama3": Variant(digits=3),
    "qwen2": Variant(digits=1),
    "nanochat": Variant(digits=2),
}


def _code_table() -> CodeTable:
    by_class = [OTHER_CODE] * 7
    for letter in (
        unicode_classes.UPPERCASE,
        unicode_classes.LOWERCASE,
        unicode_classes.OTHER_LETTER,
    ):
        by_class[letter] = LETTER_CODE
    by_class[unicode_classes.NUMBER] = NUMBER_CODE
    by_class[unicode_classes.WHITE_SPACE] = SPACE_CODE
    own = {"\r": NEWLINE_CODE, "\n": NEWLINE_CODE, " ": PLAIN_SPACE_CODE}
    return CodeTable(by_class, own)


_CODES = _code_table()


def starts(
    data: NDArray[np.uint8], edges: NDArray[np.int64], variant: Variant
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts, in a text that begins with one.

    data: uint8 (n,), n > 0. edges: int64, ascending, positions of bytes that are no text but stand
        where documents end.

    Returns bool (n,), and how many entries hold whatever follows the text.
    """
    raw = data.tobytes()
    codes = np.frombuffer(raw.translate(_CODES.of_bytes), np.uint8)
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = EDGE_BYTE, EDGE_CODE
    if raw.isascii():
        return _character_starts(data, codes, variant), _decided(codes)
    positions, codes = decode(data, codes.copy(), _CODES)
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = _character_starts(first_bytes(data, positions), codes, variant)
    return mask, int(positions[_decided(codes)])


def _character_starts(
    first: NDArray[np.uint8], codes: NDArray[np.uint8], variant: Variant
) -> NDArray[np.bool_]:
    """Apply the rule to characters.

    first: uint8 (n,), the first byte of each. codes: uint8 (n,).
    """
    marked = run_starts(codes, variant.digits, whole_at_end=variant.whole_at_end)
    opened = np.flatnonzero(first == ord("'"))
    opened = opened[marked[opened]]
    if len(opened):
        behind = contraction_ends(first, opened)
        behind = behind[(behind > 0) & (behind < len(codes))]
        marked[behind] |= codes[behind] == LETTER_CODE
    return marked


def _decided(codes: NDArray[np.uint8]) -> int:
    """Return how many characters' marks don't depend on what follows them all."""
    return last_without(codes, WHITE_SPACE, len(codes) - _MARGIN) + 1
