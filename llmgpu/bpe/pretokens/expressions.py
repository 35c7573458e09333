"""Pre-tokens by the expression of a pattern, over a code for each byte of a text.

The standard library's `re` runs the expression on codes: an ASCII character is its own code, any
other character has the code of its class, and each of its further bytes has the code CONTINUES. So
the expression is written with CONTINUES after each character, and matches whole characters.

The end of a match is certain if no later text can change it. The end depends only on the last run
of characters that a pattern may match together, and on the letters of a contraction. So all ends up
to the start of the last such run are certain, if they are further from the end of the text than a
contraction is long. The last bytes of a text are not considered, because they may begin an
incomplete character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.unicode_classes import (
    CLASS_CODE,
    CONTINUES,
    LONG_S_CODE,
    UPPERCASE,
    WHITE_SPACE,
)

INCOMPLETE = 3  # largest number of bytes that an incomplete character has at the end of a text
_LOOKAHEAD = 4  # bytes; every contraction is shorter
_BLOCK = 1 << 16  # starts listed, and codes searched, at once

# The code of each class that has a set, in the order of the classes' numbers.
_UPPER, _LOWER, _LETTER, _MARK, _NUMBER, _SPACE = (
    rf"\x{CLASS_CODE + number:02x}" for number in range(UPPERCASE, WHITE_SPACE + 1)
)
_LONG_S, _MORE = rf"\x{LONG_S_CODE:02x}", rf"\x{CONTINUES:02x}"
_LOWER += _LONG_S
# The codes of each set. Expressions name Lt only beside Lu, and Lm only beside Lo, so Lt and Lm
# need no codes of their own.
_SETS = {
    r"\p{L}": rf"A-Za-z{_UPPER}{_LOWER}{_LETTER}",
    r"\p{Lu}": rf"A-Z{_UPPER}",
    r"\p{Lt}": "",
    r"\p{Lm}": "",
    r"\p{Lo}": _LETTER,
    r"\p{Ll}": rf"a-z{_LOWER}",
    r"\p{M}": _MARK,
    r"\p{N}": rf"0-9{_NUMBER}",
    r"\s": rf" \t-\r{_SPACE}",
}
# A set of characters, its quantifier, and the sign of a possessive quantifier.
_REPEATED = re.compile(r"(?:\[(\^?)([^\]]+)\]|(\\p\{\w+\}|\\s))([?*+]|\{\d,\d\})?(\+?)")


def _over_codes(found: re.Match[str]) -> str:
    """Return the expression over codes for a match of _REPEATED."""
    inside, count, possessive = found[2] or found[3], found[4] or "", found[5]
    for name, codes in _SETS.items():
        inside = inside.replace(name, codes)
    # one: the first byte of a character of the set. more: a character's first or other byte.
    one, more = f"[{inside}]", f"[{inside}{_MORE}]"
    if found[1]:
        one, more = f"[^{inside}{_MORE}]", f"[^{inside}]"
    if count in ("*", "+"):
        several = f"{one}{more}*{possessive}"
        return several if count == "+" else f"(?:{several})?{possessive}"
    return f"(?:{one}{_MORE}*+){count}{possessive}"


@cache
def compile_over_codes(expression: str) -> re.Pattern[bytes]:
    r"""Compile the expression of a named pattern, or another with the same elements, over codes.

    ``\S`` also matches inside of a character, so that ``(?!\S)`` fails there.
    """
    # Where case is ignored, a long s may be the s of a contraction.
    written = expression.replace("(?i:[sdmt]", f"(?i:[sdmt{_LONG_S}]")
    written = written.replace("(?i:'s|", f"(?i:'[s{_LONG_S}]|").replace("$", r"\Z")
    written = _REPEATED.sub(_over_codes, written)
    return re.compile(written.replace(r"\S", "[^" + _SETS[r"\s"] + "]").encode(), re.DOTALL)


def pretoken_starts(
    codes: NDArray[np.uint8], expression: str, bounds: Sequence[int]
) -> Iterator[NDArray[np.int64]]:
    """Yield the starts of pre-tokens, int64 (n,), in order.

    codes: uint8, see `unicode_classes.byte_codes`. expression: of a `RulePattern`. bounds: the
    start of each document, then the end of the last one.
    """
    find: Any = compile_over_codes(expression).finditer
    matches = chain.from_iterable(find(codes, begin, end) for begin, end in pairwise(bounds))
    found = map(re.Match.start, matches)
    while len(starts := np.fromiter(islice(found, _BLOCK), np.int64)):
        yield starts


# The codes of characters of which a pattern may match several together: marks are in two sets, with
# letters and with other characters.
_RUNS = [
    b"".join(re.findall(f"[{codes}]".encode(), bytes(range(256)), re.DOTALL))
    for codes in (
        _SETS[r"\p{N}"] + _MORE,
        _SETS[r"\s"] + _MORE,
        _SETS[r"\p{L}"] + _MARK + _MORE,
        "^" + _SETS[r"\p{L}"] + _SETS[r"\p{N}"] + _SETS[r"\s"],
    )
]


def decided(codes: NDArray[np.uint8]) -> int:
    """Return the position up to which later text can't change the ends of matches."""
    end = len(codes) - INCOMPLETE
    if end <= 0:
        return 0
    # The last code that is not CONTINUES tells which runs may go on.
    last = codes[max(end - 4, 0) : end].tobytes().rstrip(bytes([CONTINUES]))[-1:]
    begins = (_run_begin(codes, end, run) for run in _RUNS if last in run)
    return max(0, min(end - _LOOKAHEAD, *begins))


def _run_begin(codes: NDArray[np.uint8], end: int, run: bytes) -> int:
    """Return where the codes of a run begin that end at `end`."""
    while end:
        block = codes[max(0, end - _BLOCK) : end].tobytes()
        kept = len(block.rstrip(run))
        end -= len(block) - kept
        if kept:
            break
    return end
