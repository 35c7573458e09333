"""Patterns cl100k, rustbpe, llama3, qwen2 and nanochat as a rule on runs of characters, in NumPy.

    '(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*
    |\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+

They differ in how many numbers a pre-token holds, and only cl100k has the fifth alternative. The
published spellings differ in more, but not in effect: newlines after `\\s*` are the last there are,
and what is possessive could not be given back anyway.

Pre-tokens are runs as `llmgpu.bpe.pretokens.runs` has them, and one also starts at letters after a
contraction, which its apostrophe opens only if a pre-token starts there.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.blocks import RulePattern
from llmgpu.bpe.pretokens.characters import (
    EDGE_BYTE,
    LETTERS,
    LONG_S,
    CodeTable,
    code_tables,
    decode,
    first_bytes,
    longer_characters,
)
from llmgpu.bpe.pretokens.runs import (
    EDGE_CODE,
    LETTER_CODE,
    NEWLINE_CODE,
    NUMBER_CODE,
    OTHER_CODE,
    PLAIN_SPACE_CODE,
    SPACE_CODE,
    WHITE_SPACE,
    WideCharacters,
    contraction_ends,
    last_without,
    run_starts,
)

_MARGIN = 4  # characters before the end of a text cut anywhere, of which the last may be incomplete


_CODES = code_tables(
    OTHER_CODE,
    dict.fromkeys(LETTERS, LETTER_CODE)
    | {unicode_classes.NUMBER: NUMBER_CODE, unicode_classes.WHITE_SPACE: SPACE_CODE},
    {"\r": NEWLINE_CODE, "\n": NEWLINE_CODE, " ": PLAIN_SPACE_CODE},
)


def _rule(
    data: NDArray[np.uint8],
    edges: NDArray[np.int64],
    unicode: str,
    *,
    digits: int,
    whole_at_end: bool,
) -> tuple[NDArray[np.bool_], int]:
    """Mark the bytes at which a pre-token starts; a `blocks.Rule` once the variant is bound.

    digits: a pre-token holds up to this many numbers.
    whole_at_end: white space at the end of a document is one pre-token, even with newlines in it.
    """
    mark = partial(_starts, digits=digits, whole_at_end=whole_at_end)
    raw = data.tobytes()
    table = _CODES[unicode]
    codes = np.frombuffer(raw.translate(table.of_bytes), np.uint8)
    if len(edges):
        data, codes = data.copy(), codes.copy()
        data[edges], codes[edges] = EDGE_BYTE, EDGE_CODE
    apostrophes = np.flatnonzero(data == ord("'"))
    if raw.isascii():
        return mark(data, codes, apostrophes), _decided(codes, _MARGIN)
    codes = codes.copy()
    wide = _spread(data, codes, table)
    if wide is not None and not _before_long_s(data, apostrophes):
        return mark(data, codes, apostrophes, wide), _decided(codes, 4 * _MARGIN)
    positions, codes = decode(data, codes, table)
    first = first_bytes(data, positions)
    mask = np.zeros(len(data), np.bool_)
    mask[positions] = mark(first, codes, np.flatnonzero(first == ord("'")))
    return mask, int(positions[_decided(codes, _MARGIN)])


def _before_long_s(data: NDArray[np.uint8], apostrophes: NDArray[np.int64]) -> bool:
    """Tell whether a long s is after an apostrophe: it counts as an s there, with two bytes."""
    inside = apostrophes[apostrophes < len(data) - len(LONG_S)]
    return bool(((data[inside + 1] == LONG_S[0]) & (data[inside + 2] == LONG_S[1])).any())


def _spread(
    data: NDArray[np.uint8], codes: NDArray[np.uint8], table: CodeTable
) -> WideCharacters | None:
    """Give all bytes of longer characters their code; None if numbers are among those.

    codes: uint8 (n,), those of the single bytes.

    Returns those that are not letters.
    """
    first, last = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    longer = longer_characters(data, table)
    if any((characters.codes == NUMBER_CODE).any() for characters in longer):
        return None
    for characters in longer:
        for k in range(characters.length):
            codes[k:][characters.at] = characters.codes
        wide = np.take(characters.at, np.flatnonzero(characters.codes != LETTER_CODE))
        first.append(wide)
        last.append(wide + (characters.length - 1))
    return WideCharacters(np.concatenate(first), np.concatenate(last))


def _starts(
    first: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    apostrophes: NDArray[np.int64],
    wide: WideCharacters | None = None,
    *,
    digits: int,
    whole_at_end: bool,
) -> NDArray[np.bool_]:
    """Apply the rule to characters, or to the bytes of a text.

    first: uint8 (n,), the first byte of each, or all bytes. codes: uint8 (n,). apostrophes: where
        they are. wide: of bytes, see `run_starts`.
    """
    marked = run_starts(codes, digits, whole_at_end=whole_at_end, wide=wide)
    opened = apostrophes[marked[apostrophes]]
    if len(opened):
        after = contraction_ends(first, opened)
        after = after[(after > 0) & (after < len(codes))]
        marked[after] |= codes[after] == LETTER_CODE
    return marked


def _decided(codes: NDArray[np.uint8], margin: int) -> int:
    """Return how many marks depend neither on what follows nor on the last `margin` codes."""
    return last_without(codes, WHITE_SPACE, len(codes) - margin) + 1


def _variant(
    name: str,
    expression: str,
    *,
    digits: int,
    whole_at_end: bool = False,
    spellings: dict[str, str | None] | None = None,
) -> RulePattern:
    """Return a pattern of the family; digits, whole_at_end: see `_rule`."""
    return RulePattern(
        name=name,
        expression=expression,
        spellings=spellings or {},
        kernel="cl100k",
        constants={"DIGITS": digits, "WHOLE_AT_END": int(whole_at_end)},
        rule=partial(_rule, digits=digits, whole_at_end=whole_at_end),
    )


# OpenAI's spelling. In Oniguruma, which Hugging Face uses, {1,3}+ is a repeated repeat instead.
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = _variant(
    "cl100k",
    _CL100K.replace("{1,3}+", "{1,3}"),
    digits=3,
    whole_at_end=True,
    spellings={"tiktoken": _CL100K},
)
RUSTBPE = _variant(
    "rustbpe",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    digits=3,
)
LLAMA3 = _variant(
    "llama3",
    _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    digits=3,
)
QWEN2 = _variant(
    "qwen2",
    _SHORT_FORMS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    digits=1,
)
NANOCHAT = _variant(
    "nanochat",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    digits=2,
)
