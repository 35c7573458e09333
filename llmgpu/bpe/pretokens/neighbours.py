"""Cuts of text between characters that are neighbours in no token.

In vocabularies of SentencePiece's kind, merges act on whole texts. But after every merge each
symbol is a token or a single character, so a symbol that crosses a border between two characters is
a token with these two characters as neighbours. If the characters are neighbours in no token, no
merge crosses the border, merges on one side do not affect the other side, and the text may be cut
there. If unknown characters in a row become one id, one of the two characters must have a token,
because such a character never becomes part of the unknown id.

A text need not be cut at all such borders. Pairs of characters are hashed to bits. A border is not
used if its pair has the same hash as a pair inside a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Marks, Pattern, Positions, Text
from llmgpu.bpe.pretokens.unicode_classes import code_points
from llmgpu.cpu.library import CPattern
from llmgpu.forking import cached_property

PAIR_BITS = 22  # bits of a pair's hash; must equal the number in llmgpu/cpu/pieces.c
# Number of code points. The next 256 numbers represent bytes that are not valid UTF-8.
_POINTS = 0x110000


def _indices(before: NDArray[np.uint32], after: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the hash of each pair of neighbouring characters, uint32 (n,), below 1 << PAIR_BITS.

    before, after: the left and the right characters as numbers, uint32 (n,).
    """
    hashed = (before * np.uint32(0x9E3779B1)) ^ (after * np.uint32(0x85EBCA77))
    plain = before << np.uint32(7) | after
    return np.where((before | after) < 128, plain, hashed >> np.uint32(32 - PAIR_BITS))


def neighbours_of(
    texts: Sequence[str], known: Sequence[str] | None, *, nowhere: bool = False
) -> NDArray[np.uint8]:
    """Return a bit for each hash of a pair of characters, then a bit for each character.

    The bit of a hash is set if a token contains a pair with this hash. The bit of a character is
    set if the character has a token.

    texts: the tokens. known: the characters with a token; None if all characters have one. nowhere:
    set the bits of all pairs, so that no text is cut.

    Returns packed bits, uint8, the lowest bit of a byte first.
    """
    joined = np.full(1 << PAIR_BITS, nowhere, np.bool_)
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)[:-1]
    inside = np.ones(max(0, len(points) - 1), np.bool_)
    inside[ends - 1] = False
    joined[_indices(points[:-1][inside], points[1:][inside])] = True
    has_token = np.full(_POINTS + 256, known is None, np.bool_)
    has_token[[ord(character) for character in known or ()]] = True
    return np.packbits(np.concatenate([joined, has_token]), bitorder="little")


@dataclass(frozen=True, eq=False, kw_only=True)
class NeighboursPattern(Pattern):
    """A pattern that cuts between characters that are neighbours in no token.

    bits: see `neighbours_of`.
    """

    bits: NDArray[np.uint8]
    name: str = "none"
    expression: str = r"[\x00-\xff]+"
    kernel: str = "neighbours"

    def for_engine(self) -> CPattern:
        return CPattern(self.kernel, self.bits)

    @cached_property
    def _flags(self) -> NDArray[np.bool_]:
        return np.unpackbits(self.bits, bitorder="little").astype(np.bool_)

    def _cuts(self, data: bytes, *, only_valid: bool = False) -> Positions:
        """Return the positions above 0 at which a document may be cut: int64, ascending.

        only_valid: cut only between characters that are valid UTF-8.
        """
        # Number the characters. points: code points, or _POINTS + value for invalid bytes. sizes:
        # bytes of each character. is_alone: whether the character is an invalid byte.
        points, sizes = code_points(data.decode(errors="surrogateescape"))
        is_alone = (points >= 0xDC80) & (points < 0xDD00)
        points = np.where(is_alone, points - np.uint32(0xDC00) + np.uint32(_POINTS), points)
        # Cut between characters where this is allowed, but never before a continuation byte.
        before, after, known = points[:-1], points[1:], self._flags[1 << PAIR_BITS :]
        cut = ~self._flags[_indices(before, after)] & (known[before] | known[after])
        if only_valid:
            cut &= ~is_alone[:-1] & ~is_alone[1:]
        first = np.frombuffer(data, np.uint8)
        starts = np.cumsum(sizes)[:-1][cut]
        found: Positions = starts[(first[starts] & 0xC0) != 0x80]
        return found

    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        """Mark the allowed cuts, document by document."""
        mask = np.zeros(len(text), np.bool_)
        edges = np.unique(np.concatenate([[0], inner, [len(text)]])).astype(np.int64).tolist()
        for begin, end in pairwise(edges):
            mask[begin + self._cuts(text[begin:end].tobytes())] = True
            mask[begin] = True
        return mask

    def certain_starts(self, data: Text) -> Positions:
        """Return the allowed cuts between characters that are valid UTF-8."""
        return self._cuts(data.tobytes(), only_valid=True)
