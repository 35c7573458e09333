"""Pre-tokens as runs of characters of a kind: what patterns cl100k and o200k have in common.

    [^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*
    |\\s++$|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+

A character is a letter, a number, a newline (CR or LF), other white space, or other. A pre-token
starts where the kind changes, except that

- white space but a newline is joined by the letters after it, and a plain space by other
  characters too;
- a single other character that starts a pre-token is joined by the letters after it;
- newlines after other characters go with them.

In what is left of a run of white space, pre-tokens start at its first character; after its last
newline; and at its last character if that is not a newline, before anything but the end of the
document. By the fifth alternative, which only cl100k has, a run at the end of a document is
never divided. Numbers are counted from the first of their run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A character's code: its class in the low half, and in the high half the classes that continue
# after it. The edge of a document has none.
_LETTER, _NUMBER, _OTHER, _SPACE = 1, 2, 4, 8
LETTER_CODE = _LETTER | _LETTER << 4
NUMBER_CODE = _NUMBER | _NUMBER << 4
OTHER_CODE = _OTHER | _OTHER << 4
NEWLINE_CODE = _SPACE | _SPACE << 4
SPACE_CODE = _SPACE | (_SPACE | _LETTER) << 4
PLAIN_SPACE_CODE = _SPACE | (_SPACE | _LETTER | _OTHER) << 4
EDGE_CODE = 0
WHITE_SPACE = _SPACE  # a bit of the code of any
_SPACE_BUT_NEWLINE = _SPACE | _LETTER << 4  # both bits
_SOLID = _LETTER | _NUMBER | _OTHER


@dataclass(frozen=True, eq=False)
class WideCharacters:
    """Where characters of several bytes begin, and the last bytes of them; int64 (m,)."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]


def run_starts(
    codes: NDArray[np.uint8],
    digits: int,
    *,
    whole_at_end: bool,
    wide: WideCharacters | None = None,
) -> NDArray[np.bool_]:
    """Mark the characters at which a pre-token starts, in a text that begins with one.

    codes: uint8 (n,), n > 0, of characters.
    digits: a pre-token holds up to this many numbers.
    whole_at_end: white space at the end of a document is one pre-token, even with newlines in it.
    wide: codes are of bytes, all those of a character the same, and these have several. It needs
        those that are not letters; numbers may not be among them.

    Returns bool (n,).
    """
    # A pre-token starts where the character before does not continue into this one.
    marked = np.ones(len(codes), np.bool_)
    np.equal((codes[:-1] >> 4) & codes[1:], 0, out=marked[1:])
    other, newline = codes == OTHER_CODE, codes == NEWLINE_CODE
    space = codes & _SPACE_BUT_NEWLINE == _SPACE_BUT_NEWLINE
    begun = marked  # of a character's last byte: whether a pre-token starts at the character
    if wide is not None:
        begun = marked.copy()
        begun[wide.last] = marked[wide.first]
    # Join letters to the single other character before them, and newlines to other characters.
    joined = (codes[1:] == LETTER_CODE) & begun[:-1]
    joined |= newline[1:]
    joined &= other[:-1]
    marked[1:] &= ~joined
    # The last white space before anything else starts a pre-token, and may join what follows.
    marked[:-1] |= space[:-1] & (codes[1:] & _SOLID != 0)
    if wide is not None:
        marked[wide.first] |= marked[wide.last]
        marked[wide.last] = False
    # White space after newlines starts one, too, unless more newlines follow.
    marked[1:] |= newline[:-1] & space[1:]
    stop = newline | (codes == EDGE_CODE) if whole_at_end else newline
    _unmark_before_newlines(marked, other, newline, space, stop)
    _mark_numbers(marked, codes == NUMBER_CODE, digits)
    return marked


def run_begins(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where runs of True begin."""
    begins = flags.copy()
    begins[1:] &= ~flags[:-1]
    return np.flatnonzero(begins)


def run_ends(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the first positions after runs of True."""
    ends = flags.copy()
    ends[:-1] &= ~flags[1:]
    return np.flatnonzero(ends) + 1


def _ends_of(flags: NDArray[np.bool_], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first positions after those runs of True that begin at `begins`, ascending.

    The flags are the bits of one large number. Adding the first bit of a run carries through the
    run and sets the bit after it: all runs are found in one addition.
    """
    first = np.zeros(len(flags), np.bool_)
    first[begins] = True
    runs, added = (
        int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
        for bits in (flags, first)
    )
    after = ((runs + added) | runs) ^ runs
    packed = np.frombuffer(after.to_bytes(len(flags) // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little").view(np.bool_))


def last_without(codes: NDArray[np.uint8], bits: int, end: int) -> int:
    """Return the last position before `end` whose code has none of these bits, or -1."""
    size = 64
    while end > 0:
        first = max(0, end - size)
        found = np.flatnonzero(codes[first:end] & bits == 0)
        if len(found):
            return first + int(found[-1])
        end = first
        size *= 2
    return -1


def _unmark_before_newlines(
    marked: NDArray[np.bool_],
    other: NDArray[np.bool_],
    newline: NDArray[np.bool_],
    space: NDArray[np.bool_],
    stop: NDArray[np.bool_],
) -> None:
    """Join white space between newlines, unless the first of them belong to what is before."""
    begins = np.flatnonzero(newline[:-1] & space[1:]) + 1
    if len(begins) == 0:
        return
    # A run to the end of the text is not stopped: the last position is in it.
    again = begins[stop[np.minimum(_ends_of(space, begins), len(stop) - 1)]]
    if len(again) == 0:
        return
    newlines = run_begins(newline)
    before = newlines[np.searchsorted(newlines, again) - 1] - 1
    marked[again] = (before >= 0) & other[before]


def _mark_numbers(marked: NDArray[np.bool_], number: NDArray[np.bool_], digits: int) -> None:
    """Mark the start of every group of `digits` numbers but the first, which is marked already."""
    if digits == 1:
        marked |= number
        return
    followed = number[digits:].copy()  # by at least `digits` more numbers
    for k in range(digits):
        followed &= number[k:][: len(followed)]
    if not followed.any():
        return
    begins, ends = run_begins(followed), run_ends(followed)
    # A run of m flags has ceil(m / digits) groups after the first.
    more = (ends - begins + digits - 1) // digits
    rank = np.arange(1, more.sum() + 1) - np.repeat(np.cumsum(more) - more, more)
    marked[np.repeat(begins, more) + digits * rank] = True


_SINGLE, _DOUBLE = np.zeros(256, np.bool_), np.zeros(1 << 16, np.bool_)
_SINGLE[list(b"sdmt")] = True
_DOUBLE[[first << 8 | second for first, second in (b"ll", b"ve", b"re")]] = True
_LOWERCASE = np.frombuffer(bytes(range(256)).lower(), np.uint8)


def contraction_ends(
    first: NDArray[np.uint8], opened: NDArray[np.int64], *, any_case: bool = True
) -> NDArray[np.int64]:
    """Return where the contractions end that apostrophes open; 0 for those that open none.

    first: uint8 (n,), the first byte of each character, see `characters.first_bytes`.
    opened: int64 (m,), where there are apostrophes.
    any_case: also find contractions in capitals.

    Returns int64 (m,), in [0, n].
    """
    last = len(first) - 1  # an apostrophe at the very end finds itself, which is not a letter
    one, two = first[np.minimum(opened + 1, last)], first[np.minimum(opened + 2, last)]
    if any_case:
        one, two = _LOWERCASE[one], _LOWERCASE[two]
    single = _SINGLE[one]
    double = _DOUBLE[one.astype(np.uint16) << 8 | two] & (opened + 2 <= last)
    return np.where(single, opened + 2, np.where(double, opened + 3, 0))
