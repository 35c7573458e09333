"""The class of all patterns, and the class of patterns that are rules on characters.

No pattern looks back: pre-tokens after the start of a pre-token do not depend on the text before
it.

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
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.expressions import (
    INCOMPLETE,
    compile_over_codes,
    decided,
    pretoken_starts,
)
from llmgpu.bpe.pretokens.unicode_classes import CONTINUES, byte_codes
from llmgpu.cpu.library import CPattern
from llmgpu.text.parts import CutText

_LONGEST_BLOCK = 1 << 20  # bytes that are searched for a certain start
_WINDOW = 1 << 8  # bytes at the end of a text that are searched for a start first
_PLAIN_START = re.compile(rb" (?=[A-Za-z])")  # matches reversed text: a space after a letter
_OVERLAP = 16  # bytes that a window shares with the next: more than two characters

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

    def start_mask(
        self, text: Text, document_starts: Positions, *, continues: bool = False
    ) -> Marks:
        """Mark the bytes at which a pre-token starts.

        If the last document goes on after the text, the text that follows may change the marks at
        and after the position that `last_start` returns.

        text: uint8 (n,).
        document_starts: positions in text at which documents begin, in [0, n], maybe repeated; n
            itself is ignored.
        continues: with pattern none, whether text[0] is inside a pre-token; with any other pattern,
            a pre-token starts at text[0].

        Returns bool (n,).
        """
        if len(text) == 0:
            return np.zeros(0, np.bool_)
        inner = document_starts[(document_starts > 0) & (document_starts < len(text))]
        return self.mark(text, inner, continues=continues)

    @abstractmethod
    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        """Mark the bytes at which a pre-token starts; see `start_mask`.

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

        text: uint8 (n,), beginning with a pre-token. begin: start of the last document that begins
        in the text, 0 if none does.

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

    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        """Mark the starts, document by document."""
        inner, codes = np.unique(inner), byte_codes(text, self.unicode)
        # If documents begin inside a character, its parts are invalid: decode between such places.
        if len(cuts := inner[codes[inner] == CONTINUES]):
            parts = np.split(text, cuts)
            codes = np.concatenate([byte_codes(part, self.unicode) for part in parts])
        bounds = [0, *inner.tolist(), len(text)]
        mask = np.zeros(len(text), np.bool_)
        for starts in pretoken_starts(codes, self.expression, bounds):
            mask[starts] = True
        return mask

    def certain_starts(self, data: Text) -> Positions:
        """Return the positions between two characters of kinds that never join.

        By every rule pattern a pre-token starts at these positions. The last of several spaces is
        such a position, too. Only the characters next to a position decide.
        """
        codes: Any = byte_codes(data, self.unicode)
        complete = max(0, len(data) - INCOMPLETE)
        found = compile_over_codes(_CERTAIN).finditer(codes, 0, complete)
        return np.fromiter(map(re.Match.end, found), np.int64)

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
        codes = byte_codes(text[begin:], self.unicode)
        last, most = 0, decided(codes)
        for starts in pretoken_starts(codes, self.expression, [0, len(codes)]) if most else ():
            if starts[0] > most:
                break
            last = int(starts[starts <= most].max())
        return begin + last


@lru_cache(maxsize=16)
def make_rule(rule: str, unicode: str, digits: int, whole_at_end: int) -> CPattern:
    """Return a rule as a pattern of the CPU engine; see `CPattern`."""
    classes = unicode_classes.code_point_classes(unicode)
    return CPattern(rule, classes, digits, whole_at_end=bool(whole_at_end))


class DocumentPattern(Pattern):
    """A pattern by which each document is one pre-token."""

    def mark(self, text: Text, inner: Positions, *, continues: bool) -> Marks:
        """Mark the starts of documents; continues: whether the first one began before the text."""
        mask = np.zeros(len(text), np.bool_)
        mask[0] = not continues
        mask[inner] = True
        return mask

    def last_start(self, text: Text, begin: int) -> int:
        """Return the start of the last document."""
        return begin


# Where a pre-token always starts. Some patterns join marks to letters and to other characters. An
# apostrophe may begin a contraction, and a slash may join newlines before it.
_CERTAIN = r"\p{L}(?=[^\p{L}\p{M}'])|\p{N}(?=[^\p{N}])|[\r\n](?=[^\s/])|\s(?![\r\n])(?=\s\S)"


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
    begin, data = file.seek(max(0, offset - margin)), b""
    while block := file.read(max(len(data), _CUT_WINDOW)):
        data += block
        for at in pattern.certain_starts(np.frombuffer(data, np.uint8)).tolist():
            if offset - begin <= at < len(data) - margin and _may_cut(data, at, separators):
                return begin + int(at)
    return begin + len(data)


def _may_cut(data: bytes, at: int, separators: Sequence[bytes]) -> bool:
    """Whether position `at` is neither after white space nor near a separator."""
    is_near = (
        each in data[max(0, at - _NEAR - len(each)) : at + _NEAR + len(each)] for each in separators
    )
    before = data[max(0, at - 4) : at].decode(errors="replace")
    return not before[-1:].isspace() and not any(is_near)
