r"""How a tokenizer.json cuts text: a ByteLevel, possibly after Splits and Digits.

- One Split with the expression of a known pattern is read as this pattern. Any other pre-tokenizer
  becomes a pattern of the expressions of all steps, which the package regex runs one after the
  other (`llmgpu.bpe.pretokens.custom_regex`).
- Such a pattern is exact only if regex and Oniguruma agree. An expression is therefore accepted
  only if it consists of elements with the same meaning in both engines: characters, ``\s \S \d \r
  \n \t`` and classes such as ``\p{Lu}``, sets of these without nested sets, groups, alternatives,
  lookahead, and repetitions. Repetitions in braces may be neither possessive nor lazy. Ignoring
  case is accepted only for English contractions, because ignoring case may join characters. ``$``
  and ``^`` are refused: they match at the ends of lines in one engine, at the ends of the text in
  the other.
- Character classes follow the Unicode version of the package regex. A note says that other tools
  may have another version.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from llmgpu.bpe.interchange.token_tables import HUGGINGFACE, HUGGINGFACE_NAMES, expression_of
from llmgpu.bpe.pretokens.custom_regex import SPLITS_PREFIX, SplitsPattern, describe_splits
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.input_files import Note, quote

SUPPORTED = frozenset({"Split", "ByteLevel", "Digits"})

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ESCAPED = r"\\(?:p\{[A-Z][a-z]?\}|[sSdrnt]|\W)"
_PORTABLE = re.compile(
    rf"(?:{_ESCAPED}"
    rf"|\[\^?(?:{_ESCAPED}|(?!&&)[^\\\[\]])+\]"
    r"|\(\?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d\)|'\(\?i:\[sdmt\]\|ll\|ve\|re\)"
    r"|\(\?[:=!]|\((?!\?)|[)|]|[?*+]|\{\d+(?:,\d*)?\}(?![+?])"
    r"|[^\\\[\](){}^$.|?*+])*"
)


def read_pattern(steps: list[tuple[str, dict[str, Any]]], note: Note) -> str:
    """Return the name of the pattern by which a pre-tokenizer cuts text.

    steps: types and contents of the pre-tokenizer's components; the types are in SUPPORTED. note:
    called if the Python package `regex` will cut the text, because its version of Unicode may
    differ from that of the package tokenizers.

    Raises VocabularyError for components that can't be read exactly.
    """
    kinds = [kind for kind, _ in steps]
    if kinds[-1:] != ["ByteLevel"] or "ByteLevel" in kinds[:-1]:
        raise VocabularyError(
            f"pre_tokenizer is {kinds[:5]}, but must be a ByteLevel, optionally after Splits and "
            "Digits"
        )
    # The last step is ByteLevel. With use_regex, it also cuts by gpt2's expression.
    last = steps[-1][1]
    if last.get("add_prefix_space", True) is not False:
        raise VocabularyError("pre_tokenizer ByteLevel with add_prefix_space is not supported")
    use_regex = last.get("use_regex", True) is not False
    if len(steps) == 1:
        return "gpt2" if use_regex else "none"
    cuts = [_read_cut(kind, step) for kind, step in steps[:-1]]
    if use_regex:
        cuts.append((GPT2, True))
    # A single expression may be the published spelling of a known pattern.
    if len(cuts) == 1 and (known := HUGGINGFACE_NAMES.get(cuts[0][0])):
        return known
    # Any other pattern consists of expressions, and its pre-tokens contain all text. So a step that
    # removes matches is refused.
    for expression, is_isolated in cuts:
        if not is_isolated:
            raise VocabularyError(
                "pre_tokenizer Split may be Removed and inverted only with the expression of a "
                f"known pattern, not with {quote(expression)}"
            )
    return pattern_of_expressions([expression for expression, _ in cuts], note)


def pattern_of_expressions(expressions: Sequence[str], note: Note) -> str:
    """Return the name of the pattern that cuts by expressions, one after the other.

    note: called with the version of the package regex, because its Unicode version may differ from
    that of other tools.

    Raises VocabularyError for expressions that may mean something else to another engine, and if
    the package regex is missing.
    """
    for expression in expressions:
        check_portable(expression)
    try:
        pattern = SplitsPattern(describe_splits(expressions))
    except LlmgpuError as error:
        raise VocabularyError(str(error)) from error
    version = importlib.import_module("regex").__version__
    note(
        f"text is cut by the package regex ({version}), which may follow another version of "
        "Unicode than other tools"
    )
    return pattern.name


def describe_pattern(pattern: str, byte_level: dict[str, Any]) -> dict[str, Any]:
    """Return the pre-tokenizer for a pattern; VocabularyError for a pattern without one.

    byte_level: the ByteLevel that ends the pre-tokenizer, without use_regex.
    """
    if pattern in ("gpt2", "none"):
        return byte_level | {"use_regex": pattern == "gpt2"}
    if pattern.startswith(SPLITS_PREFIX):
        expressions = SplitsPattern(pattern.removeprefix(SPLITS_PREFIX)).expressions
        for expression in expressions:
            check_portable(expression)
    else:
        expressions = (expression_of(pattern, HUGGINGFACE),)
    splits = [
        {
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }
        for expression in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level | {"use_regex": False}]}


def check_portable(expression: str) -> None:
    """Raise VocabularyError for an expression that another engine may match differently."""
    found = _PORTABLE.match(expression)
    end = found.end() if found else 0
    if end < len(expression):
        raise VocabularyError(
            f"the expression {quote(expression)} is not that of a known pattern, and other engines "
            f"may match it differently from {quote(expression[end:])} on"
        )


def _read_cut(kind: str, step: dict[str, Any]) -> tuple[str, bool]:
    """Return the expression of a Split or of Digits, and whether its behavior is Isolated.

    With Isolated, matches and the text between matches become pre-tokens. Digits does this, too.
    """
    if kind == "Digits":
        return (r"\p{N}" if step.get("individual_digits") is True else r"\p{N}+"), True
    how = (step.get("behavior"), step.get("invert", False))
    # "Removed" and inverted removes the text between matches. The known patterns match all text, so
    # there is no text to remove.
    if how not in (("Isolated", False), ("Removed", True)):
        raise VocabularyError("pre_tokenizer Split must be Isolated, or Removed and inverted")
    given = step.get("pattern")
    if not isinstance(given, dict):
        raise VocabularyError("pattern of Split is not a JSON object")
    text, expression = given.get("String"), given.get("Regex")
    if isinstance(text, str) and text:
        expression = re.sub(r"(\W)", r"\\\1", text)
    if not isinstance(expression, str):
        raise VocabularyError("pre_tokenizer Split has neither a Regex nor a String")
    return expression, how == ("Isolated", False)
