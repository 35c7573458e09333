"""Pre-tokenization patterns: where text is cut into the pieces that tokens never cross.

- A pattern is published as a regular expression, so that others can reproduce it; the code never
  runs that expression. It applies a rule on characters and runs of them, which is the same thing
  and vectorises. No pattern looks behind: what follows a pre-token's start does not depend on what
  is before it, so a text may be cut there.
- Pattern ``class``: the byte classes are newline (0x0A), space (0x20), digit (0-9), letter (A-Z,
  a-z and every byte >= 0x80) and punctuation (all else, TAB and CR too). A pre-token starts at and
  after every newline and where the class changes, except that a letter or digit after a space
  continues: a run of spaces belongs to the word or number behind it.
- Pattern ``gpt2``: letters, numbers and white space as Unicode has them, see
  `llmgpu.bpe.pretokens.gpt2`.
- Patterns ``cl100k`` (also called ``gpt4``), ``rustbpe``, ``llama3``, ``qwen2`` and ``nanochat``:
  see `llmgpu.bpe.pretokens.cl100k_family`. ``cl100k`` is what tiktoken has; ``rustbpe`` is the
  spelling of it in rustbpe and minbpe, which cuts white space at the end of a text differently.
- Pattern ``o200k``: see `llmgpu.bpe.pretokens.o200k`.
- Pattern ``none``: a document is one pre-token.
- Any other regular expression is the pattern called ``regex:`` and the expression, see
  `llmgpu.bpe.pretokens.custom_regex`.
- A byte that is not valid UTF-8 is a character by itself, neither letter nor number nor mark nor
  white space; nothing is lost.
- Every document starts a pre-token, whatever the pattern.
- The expressions mean the same to tiktoken's, Hugging Face's and Python's `regex` engines. So
  ``cl100k`` has ``\\p{N}{1,3}`` and not the possessive ``{1,3}+`` of tiktoken's source, which is
  two repetitions to Oniguruma; behind it nothing could be given back. Its ``$`` follows all the
  white space there is, so it is the end of the text to engines for which it may be before a newline
  too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import cl100k_family as pattern_cl100k
from llmgpu.bpe.pretokens import custom_regex as pattern_regex
from llmgpu.bpe.pretokens import gpt2 as pattern_gpt2
from llmgpu.bpe.pretokens import o200k as pattern_o200k
from llmgpu.bpe.pretokens.blocks import Rule, last_set, last_start_of, mask_in_blocks
from llmgpu.errors import LlmgpuError

_LOOKAHEAD = 16  # bytes behind a byte on which it depends, with gpt2, whether a pre-token starts
_BLOCK = 1 << 17  # bytes looked up at once: the temporary arrays stay in the processor's cache
_WINDOW = 1 << 12  # bytes at the end of a text in which a start is looked for first


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
        Pattern(
            "cl100k",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        ),
        Pattern(
            "rustbpe",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        Pattern(
            "llama3",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        Pattern(
            "qwen2",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        Pattern(
            "nanochat",
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
        Pattern(
            "o200k",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        Pattern("none", r"[\x00-\xff]+"),
    )
}
ALIASES = {"gpt4": "cl100k"}
DEFAULT_PATTERN = "cl100k"
REGEX_PREFIX = "regex:"


def _gpt2_starts(
    data: NDArray[np.uint8], edges: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], int]:
    return pattern_gpt2.starts(data, edges), max(0, len(data) - _LOOKAHEAD)


_RULES: dict[str, Rule] = {
    name: partial(pattern_cl100k.starts, variant=variant)
    for name, variant in pattern_cl100k.VARIANTS.items()
}
_RULES |= {"o200k": pattern_o200k.starts, "gpt2": _gpt2_starts}


def pattern_of_expression(expression: str) -> str:
    """Return the name of the pattern that cuts by a regular expression."""
    for pattern in PATTERNS.values():
        if pattern.expression == expression:
            return pattern.name
    return get_pattern(REGEX_PREFIX + expression).name


def get_pattern(name: str) -> Pattern:
    """Return the pattern called `name`.

    Raises LlmgpuError with the known names if there is none, or if its expression is wrong.
    """
    if name.startswith(REGEX_PREFIX):
        expression = name.removeprefix(REGEX_PREFIX)
        pattern_regex.compile_expression(expression)
        return Pattern(name, expression)
    name = ALIASES.get(name, name)
    if name not in PATTERNS:
        known = ", ".join([*PATTERNS, *ALIASES])
        raise LlmgpuError(f"unknown pattern {name!r}: use one of {known}")
    return PATTERNS[name]


def start_mask(
    text: NDArray[np.uint8],
    pattern: str,
    document_starts: NDArray[np.int64],
    *,
    continues: bool = False,
    closed: bool = True,
) -> NDArray[np.bool_]:
    """Mark the bytes at which a pre-token starts.

    text: uint8 (n,).
    pattern: a name in PATTERNS; LlmgpuError if it is not.
    document_starts: positions in text at which documents begin, in [0, n]; n itself is ignored,
        repeats do no harm.
    continues: with pattern none, whether text[0] is inside of a pre-token; with any other one
        starts there.
    closed: whether the document ends at the end of text. If not, entries from the start that
        `last_start` gives are undecided.

    Returns bool (n,).
    """
    name, expression = astuple(get_pattern(pattern))
    inner = document_starts[(document_starts > 0) & (document_starts < len(text))]
    if len(text) == 0:
        return np.zeros(0, np.bool_)
    if name.startswith(REGEX_PREFIX):
        return pattern_regex.starts(text, expression, np.unique(inner))
    if name in _RULES:
        return mask_in_blocks(text, np.unique(inner), _RULES[name], closed=closed)
    if name == "class":
        mask = _class_changes(text)
    else:
        mask = np.zeros(len(text), np.bool_)
        mask[0] = not continues
    mask[inner] = True
    return mask


def start_masks_between(
    text: NDArray[np.uint8],
    pattern: str,
    document_starts: NDArray[np.int64],
    spans: Iterable[tuple[int, int]],
    *,
    closed: bool = False,
) -> Iterator[NDArray[np.bool_]]:
    """Yield parts of what `start_mask` gives, looking only around them.

    spans: where the parts begin and end, ascending. Parts are undecided where `start_mask` is.

    Yields bool (end - begin,) for each span.
    """
    known = 0  # where a pre-token starts, in the last part or before
    for begin, end in spans:
        starts = document_starts[document_starts >= known] - known
        known += last_start(text[known:begin], pattern, starts)
        mask = _mask_from(text, pattern, document_starts, known, end, closed=closed)
        yield mask[begin - known : end - known]
        known += last_set(mask[: end - known])


def _mask_from(
    text: NDArray[np.uint8],
    pattern: str,
    document_starts: NDArray[np.int64],
    begin: int,
    end: int,
    *,
    closed: bool,
) -> NDArray[np.bool_]:
    """Return the starts from `begin` on, where a pre-token starts; those before `end` are right."""
    starts = document_starts[document_starts >= begin] - begin
    behind = _WINDOW
    while True:
        part = text[begin : min(len(text), end + behind)]
        is_rest = begin + len(part) == len(text)
        if is_rest or begin + last_start(part, pattern, starts) >= end:
            return start_mask(part, pattern, starts, closed=closed and is_rest)
        behind *= 2


def last_start(
    text: NDArray[np.uint8],
    pattern: str,
    document_starts: NDArray[np.int64],
    *,
    closed: bool = False,
) -> int:
    """Return the last position found at which a pre-token starts whatever follows the text.

    text: uint8 (n,), beginning with a pre-token.
    pattern: a name in PATTERNS; LlmgpuError if it is not.
    document_starts: as for `start_mask`.
    closed: whether the document ends at the end of text, so that nothing follows.

    Returns a position in [0, n), 0 if no other is found or n is 0.
    """
    name = get_pattern(pattern).name
    inside = document_starts[document_starts < len(text)]
    begin = int(inside.max(initial=0))
    if name == "none" or name.startswith(REGEX_PREFIX) or len(text) == 0:
        return begin
    if name == "class":
        return _last_class_change(text, begin)
    return last_start_of(text, begin, _RULES[name], closed=closed)


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


def _class_changes(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark where pattern ``class`` starts a pre-token, documents inside the text apart."""
    mask = np.empty(len(text), np.bool_)
    before = 0
    for first in range(0, len(text), _BLOCK):
        piece = text[first : first + _BLOCK].tobytes()
        # bytes.translate beats NumPy's indexing, which widens each byte to an 8-byte index.
        here = np.frombuffer(piece.translate(_CONTINUATION), np.uint8)
        out = mask[first : first + len(here)]
        out[0] = (before >> 4) & int(here[0]) == 0
        np.equal((here[:-1] >> 4) & here[1:], 0, out=out[1:])
        before = int(here[-1])
    return mask


def _last_class_change(text: NDArray[np.uint8], begin: int) -> int:
    """Return the last start of pattern ``class`` behind `begin`, which is one."""
    size = _WINDOW
    while True:
        low = max(begin, len(text) - size)
        last = last_set(_class_changes(text[low:].copy()))
        if last > 0 or low == begin:
            return low + last
        size *= 2
