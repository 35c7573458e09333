"""Pattern o200k as a rule on runs of characters, in NumPy.

    [^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|..)?
    |[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|..)?
    |\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+

Pre-tokens are runs as `llmgpu.bpe.pretokens.runs` has them, where marks count as letters, and

- slashes after newlines that go with other characters count as newlines;
- where other characters make a pre-token, because they are several or follow a plain space, the
  marks after them and the other characters and marks that follow go with them;
- a contraction after letters or marks goes with them, unless it is after another one: then its
  apostrophe begins the next word;
- a word is divided before a capital (Lu, Lt) that follows a small letter (Ll), with letters of
  other kinds or marks in between or not; and before capitals at its end if a letter of another kind
  or a mark is before them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import runs, unicode_classes
from llmgpu.bpe.pretokens.blocks import RulePattern
from llmgpu.bpe.pretokens.characters import EDGE_BYTE, code_tables, decode, first_bytes
from llmgpu.bpe.pretokens.runs import (
    contraction_ends,
    last_without,
    run_begins,
    run_ends,
    run_starts,
)

# A character's code: one bit each for its class, and two for white space.
_CAPITAL, _SMALL, _OTHER_LETTER, _MARK, _NUMBER, _OTHER, _SPACE, _NEWLINE = (
    1 << k for k in range(8)
)
_EDGE = 0
_PLAIN_SPACE = _SPACE | _NEWLINE
_NEUTRAL = _OTHER_LETTER | _MARK  # goes with capitals and with small letters
_WORD = _CAPITAL | _SMALL | _NEUTRAL
_WHITE_SPACE = _SPACE | _NEWLINE

_DIGITS = 3
_MARGIN = 4  # characters before the end of a text cut anywhere, of which the last may be incomplete


_CODES = code_tables(
    _OTHER,
    {
        unicode_classes.UPPERCASE: _CAPITAL,
        unicode_classes.LOWERCASE: _SMALL,
        unicode_classes.OTHER_LETTER: _OTHER_LETTER,
        unicode_classes.MARK: _MARK,
        unicode_classes.NUMBER: _NUMBER,
        unicode_classes.WHITE_SPACE: _SPACE,
    },
    {"\r": _NEWLINE, "\n": _NEWLINE, " ": _PLAIN_SPACE},
)


def _run_codes() -> bytes:
    """Return the code that `runs` has for each code here."""
    table = np.full(256, runs.EDGE_CODE, np.uint8)
    table[[_CAPITAL, _SMALL, _OTHER_LETTER, _MARK]] = runs.LETTER_CODE
    table[_NUMBER] = runs.NUMBER_CODE
    table[_OTHER] = runs.OTHER_CODE
    table[_SPACE] = runs.SPACE_CODE
    table[_PLAIN_SPACE] = runs.PLAIN_SPACE_CODE
    table[_NEWLINE] = runs.NEWLINE_CODE
    return table.tobytes()


_RUN_CODES = _run_codes()


def _rule(
    data: NDArray[np.uint8], edges: NDArray[np.int64], unicode: str
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts; a `blocks.Rule`."""
    raw = data.tobytes()
    table = _CODES[unicode]
    codes = np.frombuffer(raw.translate(table.of_bytes), np.uint8).copy()
    if len(edges):
        data = data.copy()
        data[edges], codes[edges] = EDGE_BYTE, _EDGE
    if raw.isascii():
        decided = _decided(codes)
        return _character_starts(data, codes), decided
    positions, codes = decode(data, codes, table)
    decided = int(positions[_decided(codes)])
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = _character_starts(first_bytes(data, positions), codes)
    return mask, decided


def _decided(codes: NDArray[np.uint8]) -> int:
    """Return how many characters' marks don't depend on what follows them all.

    Those of white space do if it continues to the end, and those of capitals may.
    """
    end = len(codes) - _MARGIN
    last = last_without(codes, _CAPITAL, end)
    if last == end - 1:
        last = last_without(codes, _WHITE_SPACE, end)
    return last + 1


def _character_starts(first: NDArray[np.uint8], codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Apply the rule to characters.

    first: uint8 (n,), the first byte of each. codes: uint8 (n,), written to.
    """
    _take_slashes(first, codes)
    _take_marks(codes)
    contracted = _contractions(first, codes)
    codes[contracted] = _EDGE  # nothing continues after them
    run_codes = np.frombuffer(codes.tobytes().translate(_RUN_CODES), np.uint8)
    marked = run_starts(run_codes, _DIGITS, whole_at_end=False)
    _divide_words(marked, codes)
    marked[contracted] = False
    return marked


def _take_slashes(first: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """Make newlines of the slashes that go with newlines before them."""
    slash = first == ord("/")
    newline = codes == _NEWLINE
    after = np.flatnonzero(newline[:-1] & slash[1:]) + 1
    if len(after) == 0:
        return
    # Slashes count if other characters are before the newlines; a mark there has to be looked into.
    begins, ends = run_begins(newline), run_ends(slash)
    before = begins[np.searchsorted(begins, after) - 1] - 1
    until = ends[np.searchsorted(ends, after, "right")]
    kinds = np.where(before >= 0, codes[before], _EDGE)
    sure = kinds == _OTHER
    codes[_spans(after[sure], until[sure], len(codes))] = _NEWLINE
    for k in np.flatnonzero(kinds == _MARK):  # in order: one may depend on the one before
        if _goes_with_others(codes, int(before[k])):
            codes[after[k] : until[k]] = _NEWLINE


def _spans(begins: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """Return bool (size,), True in spans that don't overlap or touch."""
    change = np.zeros(size + 1, np.int8)
    change[begins] = 1
    change[ends] = -1
    return np.cumsum(change[:-1], dtype=np.int8) > 0


def _goes_with_others(codes: NDArray[np.uint8], mark: int) -> bool:
    """Tell whether the mark at a position belongs to a pre-token of other characters."""
    begin = last_without(codes, _OTHER | _MARK, mark) + 1
    other = codes[begin:mark] == _OTHER
    first, after = run_begins(other), run_ends(other)
    spaced = begin > 0 and codes[begin - 1] == _PLAIN_SPACE and bool(other[:1].any())
    return spaced or bool((after - first > 1).any())


def _take_marks(codes: NDArray[np.uint8]) -> None:
    """Make other characters of the marks that go with them."""
    other = codes == _OTHER
    if not (other[:-1] & (codes[1:] == _MARK)).any():
        return
    # In each run of others and marks, the first others that make a pre-token take all that follows.
    either = codes & (_OTHER | _MARK) != 0
    begins, ends = run_begins(either), run_ends(either)
    first, after = run_begins(other), run_ends(other)
    spaced = (first > 0) & (codes[first - 1] == _PLAIN_SPACE)
    first = first[spaced | (after - first > 1)]
    run = np.searchsorted(begins, first, "right") - 1
    run, chosen = np.unique(run, return_index=True)
    codes[_spans(first[chosen], ends[run], len(codes))] = _OTHER


def _contractions(first: NDArray[np.uint8], codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the characters of contractions that go with what is before them."""
    opened = np.flatnonzero(first == ord("'"))
    opened = opened[opened > 0]
    opened = opened[codes[opened - 1] & _WORD != 0]
    ends = contraction_ends(first, opened)
    opened, ends = opened[ends > 0], ends[ends > 0]
    # Of those that follow each other directly, every second begins a word.
    rank = np.arange(len(opened))
    alone = np.ones(len(opened), np.bool_)
    alone[1:] = opened[1:] != ends[:-1]
    rank -= np.maximum.accumulate(np.where(alone, rank, 0))
    opened, ends = opened[rank % 2 == 0], ends[rank % 2 == 0]
    return np.concatenate([opened, opened + 1, opened[ends - opened == 3] + 2])


def _divide_words(marked: NDArray[np.bool_], codes: NDArray[np.uint8]) -> None:
    """Mark the capitals before which words are divided."""
    capital, neutral = codes == _CAPITAL, (codes == _OTHER_LETTER) | (codes == _MARK)
    marked[1:] |= (codes[:-1] == _SMALL) & capital[1:]
    at = np.flatnonzero(neutral[:-1] & capital[1:]) + 1
    if len(at) == 0:
        return
    # Capitals after neutral letters: divide if small letters are before those, or the word ends.
    begins, ends = run_begins(neutral), run_ends(capital)
    before = begins[np.searchsorted(begins, at) - 1] - 1
    after = ends[np.searchsorted(ends, at, "right")]
    after_small = (before >= 0) & (codes[before] == _SMALL)
    at_end = np.append(codes, _EDGE)[after] & _WORD == 0
    marked[at] |= after_small | at_end


PATTERN = RulePattern(
    name="o200k",
    expression=r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    kernel="o200k",
    rule=_rule,
)
