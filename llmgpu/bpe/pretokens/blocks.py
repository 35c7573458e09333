"""The class of all patterns, and the class of patterns that are rules on characters.

No pattern looks back: pre-tokens after the start of a pre-token do not depend on the text before
it. So a long text is cut into blocks at starts of pre-tokens, and each block is matched as a whole
text.

A document may be cut where a pre-token starts in any surroundings (`certain_starts`): the two
halves have the same pre-tokens as the whole. No separator of documents may lie across the cut or
next to the characters that decide the start. The cut may not follow white space, since some
patterns take all white space at the end of a text as one pre-token.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.expressions import long_pretoken_end, mark_starts
from llmgpu.bpe.pretokens.unicode_classes import LETTERS, code_tables, decode
from llmgpu.cpu.library import TEXT_PADDING, CPattern, library
from llmgpu.text.parts import CutText

# Bytes marked at once. With smaller blocks, threads would mostly wait for each other.
_BLOCK = 1 << 19
_LONGEST_BLOCK = 1 << 22
_WINDOW = 1 << 8  # bytes at the end of a text that are searched for a start first
_PLAIN_START = re.compile(rb" (?=[A-Za-z])")  # matches reversed text: a space after a letter
_OVERLAP = 16  # bytes that a window shares with the next: more than two characters
_INCOMPLETE = 3  # largest number of bytes that an incomplete character has at the end of a text

Text = NDArray[np.uint8]
Positions = NDArray[np.int64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern(ABC):
    """A pattern that cuts text into pre-tokens.

    name: the name that users give.
    expression: the equivalent regular expression over bytes.
    spellings: expressions for other tools ("tiktoken", "huggingface") that need another spelling;
        None if the tool can't express the pattern.
    kernel: marks starts on a device: wgsl/pretoken/<kernel>_starts.wgsl, with `constants`.
    unicode: version of the character classes; None for a pattern without classes.
    """

    name: str
    expression: str
    spellings: Mapping[str, str | None] = field(default_factory=dict)
    kernel: str
    constants: Mapping[str, int] = field(default_factory=dict)
    unicode: str | None = None

    @abstractmethod
    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        """Mark the bytes at which a pre-token starts; see `pattern.start_mask`.

        text: uint8 (n,), n > 0. inner: positions in (0, n) at which documents begin.

        Returns bool (n,).
        """

    def certain_starts(self, data: Text) -> Positions:
        """Return positions at which a pre-token starts whatever text surrounds the data.

        data: uint8 (n,), within one document; the first byte may be inside a character.

        Returns int64 (m,), ascending, all above 0.
        """
        return np.empty(0, np.int64)

    def last_certain_start(self, data: Text) -> int:
        """Return one of the `certain_starts` near the end of the data; 0 if there is none."""
        return int(self.certain_starts(data).max(initial=0))

    def for_engine(self) -> CPattern:
        """Return the pattern for the CPU engine. If it `is_marked`, `mark` marks the starts."""
        constants = (self.constants.get(name, 0) for name in ("DIGITS", "WHOLE_AT_END"))
        version = self.unicode or unicode_classes.DEFAULT_VERSION
        return make_rule(self.kernel, version, *constants)

    def last_start(self, text: Text, begin: int) -> int:
        """Return a position near the end at which a pre-token starts, whatever text follows.

        text: uint8 (n,), n > 0. begin: start of the last document, less than n. If the document
        began before the text, begin is 0, and a pre-token starts there.

        Returns a position in [begin, n); `begin` if no other position is certain.
        """
        # Search windows from the end of the text on. A window is copied, because mapped memory of a
        # device is slow to read.
        low, size = len(text), _WINDOW
        while low > begin:
            end = min(len(text), low + _OVERLAP)
            low = max(begin, low - size)
            if last := self.last_certain_start(text[low:end].copy()):
                return low + last
            size = min(2 * size, _LONGEST_BLOCK)
        return begin


@dataclass(frozen=True, eq=False, kw_only=True)
class RulePattern(Pattern):
    """A pattern that is a rule on characters.

    Without a device and the engine, the module `re` applies the pattern's regular expression.
    """

    unicode: str = unicode_classes.DEFAULT_VERSION

    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        """Mark starts block by block. A pre-token always starts at the first byte."""
        # Insert a zero byte, called an edge, at the end of each document.
        inner = np.unique(inner)
        spread = np.insert(text, inner, 0) if len(inner) else text
        data = np.append(spread, np.uint8(0)) if closed else spread
        edges = inner + np.arange(len(inner))
        every_edge = np.append(edges, len(spread)) if closed else edges
        mask = np.empty(len(data), np.bool_)
        first, size = 0, _BLOCK
        # Mark block by block. A block ends at the last start that later text can't change.
        while first < len(data):
            end = min(len(data), first + size)
            low, high = np.searchsorted(every_edge, (first, end))
            marked, decided = mark_starts(
                data[first:end], every_edge[low:high] - first, self.expression, self.unicode
            )
            cut = len(marked) if end == len(data) else _last_set(marked[:decided])
            mask[first : first + cut] = marked[:cut]
            if cut == 0 and size >= _LONGEST_BLOCK:
                cut = self._mark_long(data[first:], every_edge[low:] - first, mask[first:])
            first, size = first + cut, size * 2 if cut == 0 else _BLOCK
        mask = mask[: len(spread)]
        return np.delete(mask, edges) if len(inner) else mask

    def _mark_long(self, data: Text, edges: Positions, mask: Marks) -> int:
        """Mark the first pre-token, which is too long for a block; return the start of the next.

        If the end depends on text that has not been read, the pre-token is taken to end with
        `data`. Starts that are marked after it lie behind the position that `last_start` returns,
        and are not used.
        """
        limit = int(edges[0]) if len(edges) else len(data)
        if limit == 0:  # the previous block ended where a document ends: skip the edge
            return 1
        end = long_pretoken_end(data[:limit], self.expression, self.unicode, closed=True)
        assert end is not None
        mask[:end] = False
        mask[0] = True
        return end + (end == limit < len(data))  # skip the edge, if the pre-token ends at one

    def certain_starts(self, data: Text) -> Positions:
        """Return the positions between two characters of kinds that never join.

        By every rule pattern a pre-token starts at these positions. The last of several spaces is
        such a position, too. Only the characters next to a position decide.
        """
        positions, codes = decode(data, _codes_of(self.unicode))
        complete = positions < len(data) - _INCOMPLETE
        positions, codes = positions[complete], codes[complete]
        certain = _CERTAIN_STARTS[codes[:-1], codes[1:]]
        is_space = (codes == _SPACE) | (codes == _NEWLINE)
        certain[:-1] |= is_space[:-2] & (codes[1:-1] == _SPACE) & ~is_space[2:]
        return positions[np.flatnonzero(certain) + 1]

    def last_certain_start(self, data: Text) -> int:
        """Search for a space after a letter first, which takes 0.5 us instead of 50 us."""
        found = _PLAIN_START.search(data.tobytes()[::-1])
        return len(data) - 1 - found.start() if found else super().last_certain_start(data)

    def last_start(self, text: Text, begin: int) -> int:
        """Search the end of the text for a certain start, else mark the last document."""
        low = max(begin, len(text) - _LONGEST_BLOCK)
        last = super().last_start(text, low)
        if last > low:
            return last
        # Go from block to block. A block ends at the last start that later text can't change.
        first, size, no_edges = begin, _BLOCK, np.empty(0, np.int64)
        while True:
            block = text[first : first + size].copy()
            marked, decided = mark_starts(block, no_edges, self.expression, self.unicode)
            cut = _last_set(marked[:decided])
            if first + len(block) == len(text):
                return first + cut
            # The first pre-token is too long for a block.
            if cut == 0 and size >= _LONGEST_BLOCK:
                rest = text[first:]
                if self._reaches_end(rest):
                    return first
                end = long_pretoken_end(rest, self.expression, self.unicode, closed=False)
                if end is None or end == len(rest):
                    return first
                cut = end
            first, size = first + cut, size * 2 if cut == 0 else _BLOCK

    def _reaches_end(self, text: Text) -> bool:
        """Whether the CPU engine finds that the first pre-token reaches the last bytes of the text.

        The engine answers faster than the expression, and without memory.
        """
        if library() is None:
            return False
        rule = self.for_engine()
        return not rule.is_marked and rule.first_end(text) == len(text) - TEXT_PADDING


@lru_cache(maxsize=16)
def make_rule(rule: str, unicode: str, digits: int, whole_at_end: int) -> CPattern:
    """Return a rule as a pattern of the CPU engine; see `CPattern`."""
    classes = unicode_classes.code_point_classes(unicode)
    return CPattern(rule, classes, digits, whole_at_end=bool(whole_at_end))


class DocumentPattern(Pattern):
    """A pattern by which each document is one pre-token."""

    def mark(self, text: Text, inner: Positions, *, continues: bool, closed: bool) -> Marks:
        """Mark the starts of documents; continues: whether the first one began before the text."""
        mask = np.zeros(len(text), np.bool_)
        mask[0] = not continues
        mask[inner] = True
        return mask

    def last_start(self, text: Text, begin: int) -> int:
        """Return the start of the last document."""
        return begin


def _last_set(flags: Marks) -> int:
    """Return the position of the last True; 0 if there is none."""
    return max(flags.tobytes().rfind(1), 0)


_KINDS = 7
_OTHER, _LETTER, _NUMBER, _SPACE, _NEWLINE, _SIGN, _SLASH = range(_KINDS)

_codes_of = code_tables(
    _OTHER,
    dict.fromkeys(LETTERS, _LETTER)
    | {
        unicode_classes.NUMBER: _NUMBER,
        unicode_classes.WHITE_SPACE: _SPACE,
        unicode_classes.OTHER: _SIGN,
    },
    {"'": _OTHER, "\n": _NEWLINE, "\r": _NEWLINE, "/": _SLASH},
)


# Whether a pre-token always starts between a left and a right kind of character: bool (7, 7). The
# kind "other" includes marks, because some patterns join marks to letters, and the apostrophe,
# because an apostrophe may begin a contraction. A slash may join newlines before it.
_CERTAIN_STARTS = np.zeros((_KINDS, _KINDS), np.bool_)
_CERTAIN_STARTS[_LETTER, [_NUMBER, _SPACE, _NEWLINE, _SIGN, _SLASH]] = True
_CERTAIN_STARTS[_NUMBER] = True
_CERTAIN_STARTS[_NUMBER, _NUMBER] = False
_CERTAIN_STARTS[_NEWLINE, [_OTHER, _LETTER, _NUMBER, _SIGN]] = True


NONE = DocumentPattern(
    name="none",
    expression=r"[\x00-\xff]+",
    spellings={"tiktoken": r"[\s\S]+", "huggingface": None},
    kernel="none",
)


# No separator may be within this many bytes of a cut. Fewer bytes decide whether a cut is allowed.
_NEAR = 16
_CUT_WINDOW = 1 << 14  # bytes that are searched for a cut first


def cut_text_by(pattern: Pattern, separators: Sequence[bytes]) -> CutText | None:
    """Return a function that finds cuts of texts by a pattern; None if the pattern has no cuts."""
    if not isinstance(pattern, RulePattern):
        return None
    return partial(_find_cut, pattern, separators)


def _find_cut(
    pattern: RulePattern, separators: Sequence[bytes], file: BinaryIO, offset: int
) -> int:
    """Return the first cut at or after `offset`; the length of the file if there is none."""
    margin = _NEAR + max(map(len, separators), default=0)
    begin = max(0, offset - margin)
    size = _CUT_WINDOW
    while True:
        file.seek(begin)
        data = _read(file, size + 2 * margin)
        is_end = len(data) < size + 2 * margin
        found = begin + pattern.certain_starts(np.frombuffer(data, np.uint8))
        found = found[(found >= offset) & (found < begin + len(data) - margin)]
        found = found[~_near_separators(data, separators)[found - begin]]
        for position in (found - begin).tolist():
            before = data[max(0, position - 4) : position].decode(errors="replace")
            if not before[-1:].isspace():
                return begin + int(position)
        if is_end:
            return begin + len(data)
        size *= 2


def _read(file: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes; fewer only at the end of the file."""
    blocks = []
    while size and (block := file.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def _near_separators(data: bytes, separators: Sequence[bytes]) -> Marks:
    """Return for each position whether one of the separators is within _NEAR bytes, bool (n,)."""
    near = np.zeros(len(data), np.bool_)
    for separator in separators:
        at = data.find(separator)
        while at >= 0:
            near[max(0, at - _NEAR) : at + len(separator) + _NEAR + 1] = True
            at = data.find(separator, at + 1)
    return near
