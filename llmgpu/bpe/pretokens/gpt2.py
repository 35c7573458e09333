"""Pattern gpt2 as a local rule on characters, in NumPy.

    '(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A character is a letter, a number, white space or other. A pre-token starts

- where the class changes, except after a plain space, which joins what is not white space, and
  except at the letters of a contraction;
- at the last of several white-space characters before something else;
- at a letter after a contraction.

An apostrophe opens a contraction only if a pre-token starts at it: after a letter, a number, white
space other than a plain space, or nothing. A byte that is not part of a valid UTF-8 sequence (RFC
3629) is a character of class other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.blocks import RulePattern
from llmgpu.bpe.pretokens.characters import EDGE_BYTE, LETTERS, code_tables, decode
from llmgpu.bpe.pretokens.runs import contraction_ends

# A character's code: its class in the low half, and in the high half the classes that continue
# after it. The edge of a document continues nothing, and ends white space as white space would.
_LETTER, _NUMBER, _OTHER, _SPACE = 1, 2, 4, 8
_ALL = _LETTER | _NUMBER | _OTHER | _SPACE
_EDGE_CODE = _SPACE
_APOSTROPHE = ord("'")
_LOOKAHEAD = 16  # a start depends on no more bytes than this after it


def _code(kind: int) -> int:
    return kind | kind << 4


_CODES = code_tables(
    _code(_OTHER),
    dict.fromkeys(LETTERS, _code(_LETTER))
    | {unicode_classes.NUMBER: _code(_NUMBER), unicode_classes.WHITE_SPACE: _code(_SPACE)},
    {" ": _SPACE | _ALL << 4},
)


def _rule(
    data: NDArray[np.uint8], edges: NDArray[np.int64], unicode: str
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts; a `blocks.Rule`."""
    decided = max(0, len(data) - _LOOKAHEAD)
    raw = data.tobytes()
    table = _CODES[unicode]
    codes = np.frombuffer(raw.translate(table.of_bytes), np.uint8)
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = EDGE_BYTE, _EDGE_CODE
    if raw.isascii():
        return _character_starts(data, codes), decided
    positions, decoded = decode(data, codes.copy(), table)
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = _character_starts(data[positions], decoded)
    return mask, decided


def _character_starts(first: NDArray[np.uint8], codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Apply the rule to characters.

    first: uint8 (n,), the first byte of each. codes: uint8 (n,).
    """
    marked = np.ones(len(codes), np.bool_)
    np.equal((codes[:-1] >> 4) & codes[1:], 0, out=marked[1:])
    # The last of several white-space characters before something else.
    marked[1:-1] |= (codes[:-2] & codes[1:-1] & ~codes[2:] & _SPACE) != 0
    # An apostrophe opens a contraction only where a pre-token starts.
    opened = np.flatnonzero(first == _APOSTROPHE)
    opened = opened[marked[opened]]
    ends = contraction_ends(first, opened, any_case=False)
    opened, ends = opened[ends > 0], ends[ends > 0]
    # Join its letters to it, and start a pre-token at letters after those.
    marked[opened + 1] = False
    ends = ends[ends < len(codes)]
    marked[ends] |= codes[ends] == _code(_LETTER)
    return marked


PATTERN = RulePattern(
    name="gpt2",
    expression=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    spellings={
        "tiktoken": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
        r"|\s+(?!\S)|\s"
    },
    kernel="gpt2",
    rule=_rule,
)
