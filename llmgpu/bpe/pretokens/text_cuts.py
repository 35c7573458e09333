"""Where a text may be cut inside of documents so that its parts have the same pre-tokens.

A cut is where a pre-token starts in any surroundings, see `llmgpu.bpe.pretokens.blocks`, and where
no separator of documents is near: neither cut by it nor next to the characters that decide. White
space does not precede it, since some patterns take that whole where a text ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import BinaryIO

import numpy as np

from llmgpu.bpe.pretokens.blocks import Pattern, Positions, RulePattern, certain_starts
from llmgpu.text.parts import CutText

_NEAR = 16  # bytes before and after a cut: more than the characters that decide
_WINDOW = 1 << 14  # bytes that are looked at first


def cut_text_by(pattern: Pattern, separators: Sequence[bytes]) -> CutText | None:
    """Return what finds cuts of texts by a pattern; None if nothing is certain by it."""
    if not isinstance(pattern, RulePattern):
        return None
    return partial(_find_cut, pattern, separators)


def _find_cut(
    pattern: RulePattern, separators: Sequence[bytes], file: BinaryIO, offset: int
) -> int:
    """Return the first cut at an offset or after it; the length of the file if there is none."""
    margin = _NEAR + max(map(len, separators), default=0)
    begin = max(0, offset - margin)
    size = _WINDOW
    while True:
        file.seek(begin)
        data = _read(file, size + 2 * margin)
        is_end = len(data) < size + 2 * margin
        found = begin + certain_starts(np.frombuffer(data, np.uint8), pattern.unicode)
        found = found[(found >= offset) & (found < begin + len(data) - margin)]
        for separator in separators:
            found = _without(found, data, begin, separator)
        for position in found.tolist():
            if not _ends_in_space(data[max(0, position - begin - 4) : position - begin]):
                return int(position)
        if is_end:
            return begin + len(data)
        size *= 2


def _ends_in_space(text: bytes) -> bool:
    """Whether the last character of a text is white space."""
    return text.decode(errors="replace")[-1:].isspace()


def _read(file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes; less only at the end."""
    blocks = []
    while size and (block := file.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def _without(found: Positions, data: bytes, begin: int, separator: bytes) -> Positions:
    """Return the positions that a separator is not near; data: of the file, from `begin` on."""
    at = data.find(separator)
    while at >= 0 and len(found):
        first, end = begin + at - _NEAR, begin + at + len(separator) + _NEAR
        found = found[(found < first) | (found > end)]
        at = data.find(separator, at + 1)
    return found
