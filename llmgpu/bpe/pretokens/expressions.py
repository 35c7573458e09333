"""Pre-tokens by the expression of a pattern, with 1 byte for each character.

The standard library's `re` runs the expression on bytes: an ASCII character is its own byte, and
any other character is replaced by a byte for its class.

The end of a match is certain if no later text can change it. The end depends only on the last run
of characters that a pattern may match together, and on the letters of a contraction. So all ends up
to the start of the last such run are certain, if they are further from the end of the text than a
contraction is long. The last bytes of a text are not considered, because they may begin an
incomplete character.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.unicode_classes import CodeTable, code_tables, decode

_BLOCK = 1 << 19  # bytes decoded at once
_FIRST = 1 << 22  # bytes matched at first; doubled as long as the end of the match is not certain
_LOOKAHEAD = 4  # characters; every contraction is shorter
_INCOMPLETE = 3  # largest number of bytes that an incomplete character has at the end of a text
_ERRORS = "surrogateescape"  # decodes a byte that is not valid UTF-8 as one character
_NEAR = 64  # characters at the end that are searched for the start of the last run first
# The only letter beyond ASCII that equals a letter of a contraction if case is ignored.
_LONG_S = "\u017f"
_LONG_S_CODE = 0x8F

# The bytes that replace characters beyond ASCII. OTHER also replaces invalid bytes.
_CODES = {number: 0x80 + number for number in range(7)}
_UPPER, _LOWER, _LETTER, _MARK, _NUMBER, _SPACE = (
    rf"\x{_CODES[number]:02x}"
    for number in (
        unicode_classes.UPPERCASE,
        unicode_classes.LOWERCASE,
        unicode_classes.OTHER_LETTER,
        unicode_classes.MARK,
        unicode_classes.NUMBER,
        unicode_classes.WHITE_SPACE,
    )
)
_LOWER += rf"\x{_LONG_S_CODE:02x}"
# The byte classes of each set. Expressions name Lt only beside Lu, and Lm only beside Lo, so Lt and
# Lm need no classes of their own.
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
_PARTS = re.compile(r"\\p\{\w+\}|\\.|\[\^?|.", re.DOTALL)
_table_of = code_tables(
    _CODES[unicode_classes.OTHER],
    _CODES,
    {chr(byte): byte for byte in range(128)} | {_LONG_S: _LONG_S_CODE},
)


@cache
def _compiled(expression: str) -> re.Pattern[bytes]:
    """Compile the expression of a named pattern, with its sets of characters as sets of bytes."""
    written = ""
    in_set = False
    for part in _PARTS.findall(expression):
        if part in _SETS:
            part = _SETS[part] if in_set else f"[{_SETS[part]}]"
        elif part == r"\S":
            part = rf"[^{_SETS[chr(92) + 's']}]"
        elif part == "$":
            part = r"\Z"
        in_set = (part.startswith("[") and not part.endswith("]")) or (in_set and part != "]")
        written += part
    # Where case is ignored, a long s may be the s of a contraction.
    long_s = rf"\x{_LONG_S_CODE:02x}"
    written = written.replace("(?i:[sdmt]", f"(?i:[sdmt{long_s}]")
    written = written.replace("(?i:'s|", f"(?i:'[s{long_s}]|")
    return re.compile(written.encode(), re.DOTALL)


def _members(*names: str, others: bool = False) -> bytes:
    """Return all bytes in the named sets; with `others`, all bytes outside of these sets."""
    written = "^" * others + "".join(_SETS[name] for name in names)
    return b"".join(re.findall(f"[{written}]".encode(), bytes(range(256)), re.DOTALL))


# Sets of characters of which a pattern may match several together: marks are in two sets, with
# letters and with other characters.
_RUNS = (
    _members(r"\p{N}"),
    _members(r"\s"),
    _members(r"\p{L}", r"\p{M}"),
    _members(r"\p{L}", r"\p{N}", r"\s", others=True),
)


def mark_starts(
    text: NDArray[np.uint8], edges: NDArray[np.int64], expression: str, unicode: str
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts, in a text that begins with a pre-token.

    text: uint8 (n,), n > 0. edges: ascending positions of bytes inserted where documents end; these
    bytes are ASCII and no text. expression, unicode: see `long_pretoken_end`.

    Returns bool (n,), and the number of entries that do not depend on later text.
    """
    matches, table = _compiled(expression).findall, _table_of(unicode)
    characters, positions = text.tobytes(), None
    if not characters.isascii():
        positions, codes = decode(text, table)
        characters, edges = codes.tobytes(), np.searchsorted(positions, edges)
    found: list[bytes] = []  # all pre-tokens and edges, in order
    begin = 0
    for edge in edges.tolist():
        found += matches(characters, begin, edge)
        found.append(characters[edge : edge + 1])
        begin = edge + 1
    found += matches(characters, begin)
    # starts: int64 (found,), the index of the first character of each pre-token or edge. Later text
    # can't change the first ones, `sure`.
    starts = np.cumsum([0, *map(len, found)])[:-1]
    sure = starts[starts <= max(_decided(characters), begin)]
    if positions is not None:
        starts = positions[starts]
    marked = np.zeros(len(text), np.bool_)
    marked[starts] = True
    return marked, int(starts[len(sure) - 1]) + 1


def long_pretoken_end(
    text: NDArray[np.uint8], expression: str, unicode: str, *, closed: bool
) -> int | None:
    """Return the end of the first pre-token of a text; None if the end depends on later text.

    text: uint8 (n,), n > 0, within one document. expression: of a `RulePattern`. unicode: version
    of the character classes. closed: whether a document ends with the text.

    Memory: 1 byte for each character that is searched, up to twice the length of the pre-token.
    """
    pattern, table = _compiled(expression), _table_of(unicode)
    characters = bytearray()
    blocks = [(0, 0)]  # the end of each block, as a number of characters and of bytes
    wanted = _FIRST
    while True:
        done = blocks[-1][1]
        while done < min(wanted, len(text)):
            end = _character_end(text, min(done + _BLOCK, len(text)))
            characters += _characters(text[done:end], table)
            blocks.append((len(characters), end))
            done = end
        found = pattern.match(characters)
        assert found is not None  # the expression of a named pattern matches any text
        last = found.end()
        del found  # a match keeps `characters` from growing
        if (closed and done == len(text)) or last <= _decided(characters):
            return _byte_place(text, blocks, last)
        if done == len(text):
            return None
        wanted *= 2


def _character_end(text: NDArray[np.uint8], end: int) -> int:
    """Return the last position, up to `end`, that is between two characters."""
    if end < len(text):
        for back in range(4):
            if text[end - back] & 0xC0 != 0x80:
                return end - back
    return end


def _characters(text: NDArray[np.uint8], table: CodeTable) -> bytes:
    """Return one byte for each character of a text."""
    data = text.tobytes()
    return data if data.isascii() else decode(text, table)[1].tobytes()


def _decided(characters: bytes | bytearray) -> int:
    """Return the position up to which later text can't change the ends of matches."""
    end = len(characters) - _INCOMPLETE
    if end <= 0:
        return 0
    runs = [run for run in _RUNS if characters[end - 1] in run]
    size = _NEAR
    while True:
        low = max(end - size, 0)
        begin = low + min(len(characters[low:end].rstrip(run)) for run in runs)
        if begin > low or low == 0:
            return min(begin, end - _LOOKAHEAD)
        size *= 2


def _byte_place(text: NDArray[np.uint8], blocks: list[tuple[int, int]], character: int) -> int:
    """Convert the index of a character to the position of the character's first byte.

    Also accepts the number of characters, for the end of the last character.
    """
    number = next(k for k, (end, _) in enumerate(blocks) if character <= end)
    if character == blocks[number][0]:
        return blocks[number][1]
    (first_character, first), (_, end) = blocks[number - 1 : number + 1]
    before = text[first:end].tobytes().decode(errors=_ERRORS)[: character - first_character]
    return first + len(before.encode(errors=_ERRORS))
