"""Cuts of text between characters that are neighbours in no token.

In vocabularies of SentencePiece's kind, merges run over whole texts. But every symbol is a token or
a single character after every merge. A symbol across a border between two characters is a token
with these two neighbours. So no merge crosses a border between characters that are neighbours in no
token, merges on one side do not affect the other side, and the text may be cut at the border. Where
several unknown characters become one id, one of the two neighbours must have a token, because this
character never becomes part of the unknown token.

A text need not be cut at all such borders. A border is left out if its pair of characters shares a
bit with a pair that a token joins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.blocks import Marks, Pattern, Positions, Text

PAIR_BITS = 22  # equal in llmgpu/cpu/pieces.c
_POINTS = 0x110000  # code points; the next 256 numbers stand for bytes that are no character
_WINDOW = 1 << 12  # bytes at the end of a text, searched first


def _indices(before: NDArray[np.uint32], after: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the index of the bit of each pair of characters: (n,)."""
    hashed = (before * np.uint32(0x9E3779B1)) ^ (after * np.uint32(0x85EBCA77))
    plain = before << np.uint32(7) | after
    return np.where((before | after) < 128, plain, hashed >> np.uint32(32 - PAIR_BITS))


def neighbours_of(
    texts: Sequence[str], known: Sequence[str] | None, *, nowhere: bool = False
) -> NDArray[np.uint8]:
    """Return bits of pairs of characters that may be joined, then bits of characters with a token.

    texts: tokens. known: the characters with a token; None: all characters. nowhere: join all
        pairs, so that no text is cut.

    Returns packed bits, uint8, the lowest bit first.
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
    """A pattern that cuts between characters which no token joins; bits: see `neighbours_of`."""

    bits: NDArray[np.uint8]
    name: str = "none"
    expression: str = r"[\x00-\xff]+"
    kernel: str = "neighbours"

    @cached_property
    def _flags(self) -> NDArray[np.bool_]:
        return np.unpackbits(self.bits, bitorder="little").astype(np.bool_)

    @cached_property
    def _plain(self) -> re.Pattern[bytes] | None:
        """Matches a space after a letter, in reversed text, at an allowed cut; None: no cut."""
        letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", np.uint8)
        points = letters.astype(np.uint32)
        fits = letters[self._may_cut(points, np.full(len(points), 0x20, np.uint32))]
        return re.compile(b" (?=[" + fits.tobytes() + b"])") if len(fits) else None

    def _may_cut(self, before: NDArray[np.uint32], after: NDArray[np.uint32]) -> NDArray[np.bool_]:
        known = self._flags[1 << PAIR_BITS :]
        cut: NDArray[np.bool_] = ~self._flags[_indices(before, after)]
        return cut & (known[before] | known[after])

    def _cuts(self, data: bytes, *, only_valid: bool = False) -> Positions:
        """Return the positions, more than 0, at which a document may be cut.

        only_valid: only between characters that are valid UTF-8.
        """
        text = data.decode(errors="surrogateescape")
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_alone = (points >= 0xDC80) & (points < 0xDD00)
        sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
        sizes[is_alone] = 1
        points = np.where(is_alone, points - np.uint32(0xDC00) + np.uint32(_POINTS), points)
        cut = self._may_cut(points[:-1], points[1:])
        if only_valid:
            cut &= ~is_alone[:-1] & ~is_alone[1:]
        first = np.frombuffer(data, np.uint8)
        starts = np.cumsum(sizes)[:-1][cut]
        found: Positions = starts[(first[starts] & 0xC0) != 0x80]
        return found

    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        """Mark the allowed cuts, document by document."""
        mask = np.zeros(len(text), np.bool_)
        edges = np.unique(np.concatenate([[0], inner, [len(text)]])).astype(np.int64).tolist()
        for begin, end in pairwise(edges):
            mask[begin + self._cuts(text[begin:end].tobytes())] = True
            mask[begin] = True
        return mask

    def last_start(self, text: Text, begin: int, *, closed: bool) -> int:
        """Search in growing windows at the end of the text."""
        size = _WINDOW
        while True:
            low = max(begin, len(text) - size)
            cuts = self._cuts(text[low:].tobytes(), only_valid=True)
            if len(cuts) or low == begin:
                return low + int(cuts[-1]) if len(cuts) else begin
            size *= 2

    def last_plain_start(self, end: Text) -> int:
        """Return the distance of the last allowed cut before a space after a letter; 0: unknown."""
        found = self._plain.search(end.tobytes()[::-1]) if self._plain else None
        return found.start() + 1 if found else 0
