"""Pre-tokenization patterns: where text is cut into the pieces that tokens never cross.

- A pattern is published as a regular expression, so that others can reproduce it; the code never
  runs that expression. It applies a local rule on a few bytes around each, which is the same thing,
  vectorises, and makes a mask independent of where the text is sliced.
- Pattern ``class``: the byte classes are newline (0x0A), space (0x20), digit (0-9), letter (A-Z,
  a-z and every byte >= 0x80) and punctuation (all else, TAB and CR too). A pre-token starts at and
  after every newline and where the class changes, except that a letter or digit after a space
  continues: a run of spaces belongs to the word or number behind it.
- Pattern ``gpt2``: letters, numbers and white space as Unicode has them, see
  `llmgpu.bpe.pattern_gpt2`. A byte that is not valid UTF-8 is a character by itself, neither letter
  nor number nor white space; nothing is lost.
- Pattern ``none``: a document is one pre-token.
- Every document starts a pre-token, whatever the pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe import pattern_gpt2
from llmgpu.errors import LlmgpuError

CONTEXT = 16  # bytes before a byte on which it depends whether a pre-token starts there; fewer do
LOOKAHEAD = 16  # and bytes behind it
_BLOCK = 1 << 17  # bytes looked up at once: the temporary arrays stay in the processor's cache


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
        Pattern(
            "gpt2",
            r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
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
    context: bytes = b"",
    *,
    closed: bool = True,
) -> NDArray[np.bool_]:
    """Mark the bytes at which a pre-token starts.

    text: uint8 (n,).
    pattern: a name in PATTERNS; LlmgpuError if it is not.
    document_starts: positions in text at which documents begin, in [0, n]; n itself is ignored,
        repeats do no harm.
    context: the CONTEXT bytes, or as many as there are, before text[0] in the same document.
    closed: whether the document ends at the end of text. If not, the last LOOKAHEAD entries of the
        result are undecided.

    Returns bool (n,).
    """
    name = get_pattern(pattern).name
    inner = document_starts[(document_starts > 0) & (document_starts < len(text))]
    if len(text) == 0:
        return np.zeros(0, np.bool_)
    if len(inner) < len(document_starts) and document_starts.min() == 0:
        context = b""
    if name == "gpt2":
        return _gpt2_mask(text, np.unique(inner), context, closed)
    if name == "class":
        mask = _class_changes(text, context)
    else:
        mask = np.zeros(len(text), np.bool_)
        mask[0] = not context
    mask[inner] = True
    return mask


_WINDOW_BYTES = 1 << 12  # text at the end of a slice in which the start of a word is looked for


def last_start(text: NDArray[np.uint8], pattern: str, document_starts: NDArray[np.int64]) -> int:
    """Return the last place in an open text at which a pre-token is certain to start, 0 if none."""
    known = len(text) - LOOKAHEAD
    window = _WINDOW_BYTES
    first = known
    while first > 0:
        first = max(0, known - window)
        context = context_at(text, first, document_starts, b"")
        starts = document_starts[document_starts >= first] - first
        mask = start_mask(text[first:], pattern, starts, context, closed=False)
        found = np.flatnonzero(mask[: known - first])
        if len(found):
            return first + int(found[-1])
        window *= 2
    return 0


def context_at(
    text: NDArray[np.uint8], position: int, document_starts: NDArray[np.int64], context: bytes
) -> bytes:
    """Return the CONTEXT bytes before a position in its document, or as many as there are.

    document_starts: int64, ascending. context: that of text[0].
    """
    before = document_starts[document_starts <= position]
    first = int(before[-1]) if len(before) else 0
    last = text[max(first, position - CONTEXT) : position].tobytes()
    return last if len(before) else (context + last)[-CONTEXT:]


def _gpt2_mask(
    text: NDArray[np.uint8], inner: NDArray[np.int64], context: bytes, closed: bool
) -> NDArray[np.bool_]:
    """Mark the starts of pattern gpt2 block by block; documents begin at `inner`, ascending."""
    edge = np.zeros(1, np.uint8)
    before = np.frombuffer(context, np.uint8) if context else edge
    spread = np.insert(text, inner, 0) if len(inner) else text
    data = np.concatenate([before, spread, edge[:closed]])
    edges = len(before) + inner + np.arange(len(inner))
    first_edge, last_edge = [0] if not context else [], [len(data) - 1] if closed else []
    every_edge = np.concatenate([first_edge, edges, last_edge]).astype(np.int64)
    mask = np.empty(len(data), np.bool_)
    for first in range(0, len(data), _BLOCK):
        begin, end = max(0, first - CONTEXT), min(len(data), first + _BLOCK + LOOKAHEAD)
        low, high = np.searchsorted(every_edge, (begin, end))
        marked = pattern_gpt2.starts(data[begin:end], every_edge[low:high] - begin)
        mask[first : first + _BLOCK] = marked[first - begin : first - begin + _BLOCK]
    if len(inner):
        mask = np.delete(mask, edges)
    return mask[len(before) : len(before) + len(text)]


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


def _class_changes(text: NDArray[np.uint8], context: bytes) -> NDArray[np.bool_]:
    """Mark where pattern ``class`` starts a pre-token, documents inside the text apart."""
    mask = np.empty(len(text), np.bool_)
    before = _CONTINUATION[context[-1]] if context else 0
    for first in range(0, len(text), _BLOCK):
        piece = text[first : first + _BLOCK].tobytes()
        # bytes.translate beats NumPy's indexing, which widens each byte to an 8-byte index.
        here = np.frombuffer(piece.translate(_CONTINUATION), np.uint8)
        out = mask[first : first + len(here)]
        out[0] = (before >> 4) & int(here[0]) == 0
        np.equal((here[:-1] >> 4) & here[1:], 0, out=out[1:])
        before = int(here[-1])
    return mask
