r"""Pre-tokenization patterns: rules that cut text into pre-tokens, whose ends no token crosses.

- A pattern is published as a regular expression, so that other tools can reproduce it. NumPy runs
  this expression, see `llmgpu.bpe.pretokens.expressions`. The kernels and the CPU engine apply an
  equivalent rule on characters and runs of characters. No pattern looks back: pre-tokens after the
  start of a pre-token do not depend on the text before it, so a text may be cut there.
- `llmgpu.bpe.pretokens.names` declares all patterns.
- By pattern ``none`` a document is one pre-token. Any other regular expression is the pattern
  called ``regex:`` and the expression, see `llmgpu.bpe.pretokens.custom_regex`.
- ``cl100k`` is tiktoken's pattern. ``rustbpe`` is the spelling of rustbpe and minbpe, which cuts
  white space at the end of a text differently.
- A byte that is not valid UTF-8 is a character by itself, neither letter nor number nor mark nor
  white space; nothing is lost.
- Every document starts a pre-token, by any pattern.
- The letters depend on the version of Unicode, so a pattern with character classes exists once for
  each version; see `llmgpu.bpe.pretokens.unicode_classes`.
- The expressions mean the same to tiktoken's, Hugging Face's and Python's `regex` engines. So
  ``cl100k`` has ``\p{N}{1,3}`` and not the possessive ``{1,3}+`` of tiktoken's source, because
  Oniguruma reads ``{1,3}+`` as two repetitions. Possession makes no difference here: nothing after
  the numbers makes the expression give back a number. The ``$`` of ``cl100k`` follows all white
  space of a run, so ``$`` means the end of the text even in engines whose ``$`` may also match
  before a newline.
"""

from __future__ import annotations

from dataclasses import replace

from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.names import ALIASES, PATTERNS, REGEX_PREFIX, SPLITS_PREFIX
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION, check_version
from llmgpu.errors import LlmgpuError
from llmgpu.input_files import quote
from llmgpu.spelling import spelled


def pattern_of_expression(expression: str) -> str:
    """Return the name of the pattern that cuts by a regular expression."""
    return get_pattern(REGEX_PREFIX + expression).name


def get_pattern(name: str, unicode: str = DEFAULT_VERSION) -> Pattern:
    """Return the pattern called `name`, with the character classes of a Unicode version.

    The published expression of a pattern is also accepted as its name.

    Raises LlmgpuError for an unknown name or version, and for an invalid expression.
    """
    check_version(unicode)
    if name.startswith(REGEX_PREFIX):
        expression = name.removeprefix(REGEX_PREFIX)
        published = (known.name for known in PATTERNS.values() if known.expression == expression)
        name = next(published, name)
    if name.startswith((REGEX_PREFIX, SPLITS_PREFIX)):
        from llmgpu.bpe.pretokens.custom_regex import custom_pattern

        return custom_pattern(name)
    name = ALIASES.get(name, name)
    if name not in PATTERNS:
        known = ", ".join([*PATTERNS, *ALIASES])
        argument = f"{REGEX_PREFIX!r} and the expression"
        by_expression = spelled(f"--pattern-regex (in Python, {argument})", argument)
        raise LlmgpuError(f"unknown pattern {quote(name)}: use one of {known}, or {by_expression}")
    found = PATTERNS[name]
    return found if found.unicode in (None, unicode) else replace(found, unicode=unicode)


def as_pattern(pattern: str | Pattern) -> Pattern:
    """Return the pattern with this name; a `Pattern` is returned unchanged.

    Raises LlmgpuError for an unknown name.
    """
    return pattern if isinstance(pattern, Pattern) else get_pattern(pattern)
