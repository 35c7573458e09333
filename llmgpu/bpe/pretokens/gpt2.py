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
from llmgpu.bpe.pretokens.characters import EDGE_BYTE, LETTERS, CodeTable, decode

# A character's code: its class in the low half, and in the high half the classes that continue
# after it. The edge of a document continues nothing, and ends white space as white space would.
_LETTER, _NUMBER, _OTHER, _SPACE = 1, 2, 4, 8
_ALL = _LETTER | _NUMBER | _OTHER | _SPACE
_EDGE_CODE = _SPACE
_APOSTROPHE = ord("'")
_LOOKAHEAD = 16  # a start depends on no more bytes than this after it


def _code(kind: int) -> int:
    return kind | kind << 4


_CODES = CodeTable(
    _code(_OTHER),
    dict.fromkeys(LETTERS, _code(_LETTER))
    | {unicode_classes.NUMBER: _code(_NUMBER), unicode_classes.WHITE_SPACE: _code(_SPACE)},
    {" ": _SPACE | _ALL << 4},
)


def _contraction_letters() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    single = np.zeros(256, np.bool_)
    single[list(b"sdmt")] = True
    double = np.zeros(1 << 16, np.bool_)
    double[[first << 8 | second for first, second in (b"ll", b"ve", b"re")]] = True
    return single, double


_SINGLE, _DOUBLE = _contraction_letters()


def _rule(data: NDArray[np.uint8], edges: NDArray[np.int64]) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts; a `blocks.Rule`."""
    return _starts(data, edges), max(0, len(data) - _LOOKAHEAD)


def _starts(data: NDArray[np.uint8], edges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the bytes at which a pre-token starts, in a piece of text with edges in it.

    data: uint8 (n,). edges: positions of bytes that are not text but stand between documents.

    Returns bool (n,). The first bytes lack what is before them, the last ones what follows: they
    are undecided within a few bytes of the ends, unless an edge is there.
    """
    raw = data.tobytes()
    codes = np.frombuffer(raw.translate(_CODES.of_bytes), np.uint8)
    plain = raw.isascii()
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = EDGE_BYTE, _EDGE_CODE
    if plain:
        return _character_starts(data, codes)
    positions, decoded = decode(data, codes.copy(), _CODES)
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = _character_starts(data[positions], decoded)
    return mask


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
    if len(opened):
        _mark_contractions(marked, first, codes, opened)
    return marked


def _mark_contractions(
    marked: NDArray[np.bool_],
    first: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    opened: NDArray[np.int64],
) -> None:
    """Join contractions with their apostrophes, and start pre-tokens at letters after them."""
    last = len(first) - 1  # what would be after is undecided, or an edge, which is not a letter
    one, two = first[np.minimum(opened + 1, last)], first[np.minimum(opened + 2, last)]
    single = _SINGLE[one]
    double = _DOUBLE[one.astype(np.uint16) << 8 | two]
    marked[opened[single | double] + 1] = False
    after = np.concatenate([opened[single] + 2, opened[double] + 3])
    after = after[after <= last]
    marked[after] |= codes[after] == _code(_LETTER)


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
