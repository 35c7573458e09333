"""Pre-tokenization patterns: where text is cut into the pieces that tokens never cross.

- A pattern is published as a regular expression over bytes, so that others can reproduce it; the
  code never runs that expression. It applies a local rule on each byte and the byte before it,
  which is the same thing, vectorises, and makes a mask independent of where the text is sliced.
- Pattern ``class``: the byte classes are newline (0x0A), space (0x20), digit (0-9), letter (A-Z,
  a-z and every byte >= 0x80) and punctuation (all else, TAB and CR too). A pre-token starts at and
  after every newline and where the class changes, except that a letter or digit after a space
  continues: a run of spaces belongs to the word or number behind it.
- Pattern ``none``: a document is one pre-token.
- Every document starts a pre-token, whatever the pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import LlmgpuError

_BLOCK = 1 << 18  # bytes looked up at once: the temporary arrays stay in the processor's cache


@dataclass(frozen=True)
class Pattern:
    """A way to cut text: its name, and the same as a regular expression over bytes."""

    name: str
    expression: str


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            "class",
            r" *[A-Za-z\x80-\xff]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x80-\xff]+",
        ),
        Pattern("none", r"[\x00-\xff]+"),
    )
}


def get_pattern(name: str) -> Pattern:
    """Return the pattern called `name`; LlmgpuError with the known names if there is none."""
    if name not in PATTERNS:
        known = ", ".join(PATTERNS)
        raise LlmgpuError(f"unknown pattern {name!r}: use one of {known}")
    return PATTERNS[name]


def start_mask(
    text: NDArray[np.uint8],
    pattern: str,
    document_starts: NDArray[np.int64],
    previous: int = -1,
) -> NDArray[np.bool_]:
    """Mark the bytes at which a pre-token starts.

    text: uint8 (n,).
    pattern: a name in PATTERNS; LlmgpuError if it is not.
    document_starts: positions in text at which documents begin, in [0, n]; n itself is ignored,
        repeats do no harm.
    previous: the byte before text[0] in the same document, -1 if text[0] begins a document.

    Returns bool (n,).
    """
    if get_pattern(pattern).name == "class":
        mask = _class_changes(text, previous)
    else:
        mask = np.zeros(len(text), np.bool_)
        mask[:1] = previous < 0
    mask[document_starts[document_starts < len(text)]] = True
    return mask


def _continuation_table() -> bytes:
    """Per byte: low nibble its class (one bit), high nibble the classes that continue after it.

    A newline has neither: nothing continues into it nor out of it.
    """
    letter, digit, space, punctuation = 1, 2, 4, 8
    table = np.full(256, punctuation | punctuation << 4, np.uint8)
    table[0x80:] = letter | letter << 4
    table[ord("A") : ord("Z") + 1] = letter | letter << 4
    table[ord("a") : ord("z") + 1] = letter | letter << 4
    table[ord("0") : ord("9") + 1] = digit | digit << 4
    table[ord(" ")] = space | (space | letter | digit) << 4
    table[ord("\n")] = 0
    return table.tobytes()


_CONTINUATION = _continuation_table()


def _class_changes(text: NDArray[np.uint8], previous: int) -> NDArray[np.bool_]:
    """Mark where pattern ``class`` starts a pre-token, documents inside the text apart."""
    mask = np.empty(len(text), np.bool_)
    before = _CONTINUATION[previous] if previous >= 0 else 0
    for first in range(0, len(text), _BLOCK):
        piece = text[first : first + _BLOCK].tobytes()
        # bytes.translate beats NumPy's indexing, which widens each byte to an 8-byte index.
        here = np.frombuffer(piece.translate(_CONTINUATION), np.uint8)
        out = mask[first : first + len(here)]
        out[0] = (before >> 4) & int(here[0]) == 0
        np.equal((here[:-1] >> 4) & here[1:], 0, out=out[1:])
        before = int(here[-1])
    return mask
