"""Patterns cl100k, rustbpe, llama3, qwen2 and nanochat as a rule on runs of characters, in NumPy.

    '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*
    |\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+

A character is a letter, a number, a newline (CR or LF), other white space, or other. They differ in
the numbers that a pre-token holds, and only cl100k has the fifth alternative: the published
spellings differ in more, but no text tells them apart by it. A pre-token starts where the kind
changes, except that

- white space but a newline is joined by the letters behind it, and a plain space by other
  characters too;
- a single other character that starts a pre-token is joined by the letters behind it;
- newlines behind other characters go with them.

In what is left of a run of white space, pre-tokens start at its first character; behind its last
newline; and at its last character if that is no newline, before anything but the end of the
document. The alternative of cl100k is that at the end of a document such a run is never divided.
Numbers are counted from the first of their run. A pre-token also starts at letters behind a
contraction, which its apostrophe opens only if a pre-token starts there.

Nothing looks behind, so a text may be cut wherever a pre-token starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe import unicode_classes
from llmgpu.bpe.characters import EDGE_BYTE, CodeTable, decode, first_bytes

# A character's code: its class in the low half, and in the high half the classes that go on behind
# it. The edge of a document has none.
_LETTER, _NUMBER, _OTHER, _SPACE = 1, 2, 4, 8
_LETTER_CODE = _LETTER | _LETTER << 4
_NUMBER_CODE = _NUMBER | _NUMBER << 4
_OTHER_CODE = _OTHER | _OTHER << 4
_NEWLINE_CODE = _SPACE | _SPACE << 4
_SPACE_CODE = _SPACE | (_SPACE | _LETTER) << 4
_PLAIN_SPACE_CODE = _SPACE | (_SPACE | _LETTER | _OTHER) << 4
_EDGE_CODE = 0
_SPACE_BUT_NEWLINE = _SPACE | _LETTER << 4  # both bits
_SOLID = _LETTER | _NUMBER | _OTHER

_MARGIN = 4  # characters before the end of a text cut anywhere, of which the last may be incomplete


@dataclass(frozen=True)
class Rule:
    """How a pattern differs from the others.

    digits: numbers in a pre-token, at most.
    whole_at_end: white space at the end of a document is one pre-token, with newlines in it too.
    """

    digits: int
    whole_at_end: bool = False


def _code_table() -> CodeTable:
    by_class = [_OTHER_CODE] * 7
    for letter in (
        unicode_classes.UPPERCASE,
        unicode_classes.LOWERCASE,
        unicode_classes.OTHER_LETTER,
    ):
        by_class[letter] = _LETTER_CODE
    by_class[unicode_classes.NUMBER] = _NUMBER_CODE
    by_class[unicode_classes.WHITE_SPACE] = _SPACE_CODE
    own = {"\r": _NEWLINE_CODE, "\n": _NEWLINE_CODE, " ": _PLAIN_SPACE_CODE}
    return CodeTable(by_class, own)


_CODES = _code_table()


def _contraction_letters() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    single = np.zeros(256, np.bool_)
    single[list(b"sdmtSDMT")] = True
    double = np.zeros(1 << 16, np.bool_)
    for letters in (b"ll", b"ve", b"re"):
        for first in (letters[0], letters[0] - 32):
            for second in (letters[1], letters[1] - 32):
                double[first << 8 | second] = True
    return single, double


_SINGLE, _DOUBLE = _contraction_letters()


def starts(
    data: NDArray[np.uint8], edges: NDArray[np.int64], rule: Rule
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts, in a text that begins with one.

    data: uint8 (n,), n > 0. edges: int64, ascending, positions of bytes that are no text but stand
        where documents end.

    Returns bool (n,), and how many entries hold whatever follows the text.
    """
    raw = data.tobytes()
    codes = np.frombuffer(raw.translate(_CODES.of_bytes), np.uint8)
    plain = raw.isascii()
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = EDGE_BYTE, _EDGE_CODE
    if plain:
        return _character_starts(data, codes, rule), _decided(codes)
    positions, codes = decode(data, codes.copy(), _CODES)
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = _character_starts(first_bytes(data, positions), codes, rule)
    decided = _decided(codes)
    return mask, int(positions[decided])


def _decided(codes: NDArray[np.uint8]) -> int:
    """Return how many characters' marks don't depend on what follows them all."""
    last = len(codes) - _MARGIN
    size = 64
    while last > 0:
        window = np.flatnonzero(codes[max(0, last - size) : last] & _SPACE == 0)
        if len(window):
            return max(0, last - size) + int(window[-1]) + 1
        if size >= last:
            break
        size *= 2
    return 0


def _character_starts(
    first: NDArray[np.uint8], codes: NDArray[np.uint8], rule: Rule
) -> NDArray[np.bool_]:
    """Apply the rule to characters.

    first: uint8 (n,), the first byte of each. codes: uint8 (n,).
    """
    marked = np.ones(len(codes), np.bool_)
    np.equal((codes[:-1] >> 4) & codes[1:], 0, out=marked[1:])
    other, newline = codes == _OTHER_CODE, codes == _NEWLINE_CODE
    space = codes & _SPACE_BUT_NEWLINE == _SPACE_BUT_NEWLINE
    joined = (codes[1:] == _LETTER_CODE) & marked[:-1]
    joined |= newline[1:]
    joined &= other[:-1]
    marked[1:] &= ~joined
    marked[:-1] |= space[:-1] & (codes[1:] & _SOLID != 0)
    _mark_behind_newlines(marked, codes, newline, space, rule)
    _mark_numbers(marked, codes == _NUMBER_CODE, rule.digits)
    _mark_behind_contractions(marked, first, codes)
    return marked


def _mark_behind_newlines(
    marked: NDArray[np.bool_],
    codes: NDArray[np.uint8],
    newline: NDArray[np.bool_],
    space: NDArray[np.bool_],
    rule: Rule,
) -> None:
    """Mark other white space behind the last newline of its run, or behind newlines joined."""
    marked[1:] |= newline[:-1] & space[1:]
    stop = newline | (codes == _EDGE_CODE) if rule.whole_at_end else newline
    stopped = np.flatnonzero(space[:-1] & stop[1:])
    if len(stopped) == 0:
        return
    begins = np.flatnonzero(space & ~_shifted(space))
    again = begins[np.searchsorted(begins, stopped, "right") - 1]
    again = again[again > 0]
    again = again[newline[again - 1]]
    newline_begins = np.flatnonzero(newline & ~_shifted(newline))
    before = newline_begins[np.searchsorted(newline_begins, again) - 1] - 1
    marked[again] = (before >= 0) & (codes[before] == _OTHER_CODE)


def _shifted(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return what is before each character."""
    result = np.zeros(len(flags), np.bool_)
    result[1:] = flags[:-1]
    return result


def _mark_numbers(marked: NDArray[np.bool_], number: NDArray[np.bool_], digits: int) -> None:
    """Mark every so many digits of a number."""
    if digits == 1:
        marked |= number
        return
    begins = np.flatnonzero(number & marked)
    ends = np.flatnonzero(number & ~np.append(number[1:], False)) + 1
    long = ends - begins > digits
    begins, ends = begins[long], ends[long]
    more = (ends - begins - 1) // digits
    rank = np.arange(1, more.sum() + 1) - np.repeat(np.cumsum(more) - more, more)
    marked[np.repeat(begins, more) + digits * rank] = True


def _mark_behind_contractions(
    marked: NDArray[np.bool_], first: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> None:
    opened = np.flatnonzero(first == ord("'"))
    opened = opened[marked[opened]]
    if len(opened) == 0:
        return
    last = len(first) - 1  # what would be behind is undecided, or an edge that is no letter
    one, two = first[np.minimum(opened + 1, last)], first[np.minimum(opened + 2, last)]
    single, double = _SINGLE[one], _DOUBLE[one.astype(np.uint16) << 8 | two]
    behind = np.concatenate([opened[single] + 2, opened[double] + 3])
    behind = behind[behind <= last]
    marked[behind] |= codes[behind] == _LETTER_CODE
