"""Checks of what a vocabulary says of itself: its pattern, and how it was trained."""

from __future__ import annotations

from collections.abc import Mapping

from llmgpu.bpe.pretokens.custom_regex import REGEX_PREFIX, SPLITS_PREFIX
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary import chat
from llmgpu.bpe.vocabulary.file import (
    MAX_TEXT_BYTES,
    MAX_TRAINING_ENTRIES,
    NORMALIZED_TOKENS,
    PREFIX_IDS,
    SUFFIX_IDS,
    UNICODE,
)
from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote


def check_pattern(name: str, expression: str) -> None:
    """Raise VocabularyError unless a published name and its published expression come together."""
    _check_text("the pattern's name", name)
    _check_text("the pattern's expression", expression)
    prefixes = [prefix for prefix in (REGEX_PREFIX, SPLITS_PREFIX) if name.startswith(prefix)]
    fits = not prefixes or name == prefixes[0] + expression
    for pattern in PATTERNS.values():
        fits = fits and (pattern.name == name) == (pattern.expression == expression)
    if not fits:
        raise VocabularyError(
            f"pattern {quote(name)} does not have the expression {quote(expression)}"
        )


def check_training(training: Mapping[str, object], recorded: Mapping[str, str]) -> None:
    """Raise VocabularyError for training data that a file can't hold.

    recorded: the rules that the file keeps among them.
    """
    if len(training) > MAX_TRAINING_ENTRIES:
        raise VocabularyError(
            f"{len(training)} entries of training data, but the limit is {MAX_TRAINING_ENTRIES}"
        )
    rules = (UNICODE, NORMALIZED_TOKENS, PREFIX_IDS, SUFFIX_IDS, chat.SOURCE, chat.TOKENS)
    for rule in rules:
        if rule in training:
            raise VocabularyError(
                f"training data can't hold {quote(rule)}, which is an argument of its own"
            )
    for rule, text in recorded.items():
        _check_text(f"the list of {rule}", text)
    for key, value in training.items():
        _check_text("a key of the training data", key)
        if isinstance(value, str):
            _check_text(f"training data {quote(key)}", value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise VocabularyError(f"training data {quote(key)} is neither a number nor a string")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise VocabularyError(f"training data {quote(key)} does not fit in 64 bits: {value}")


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise VocabularyError(f"{what} is not a string")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise VocabularyError(f"{what} is not valid Unicode") from error
    if length > MAX_TEXT_BYTES:
        raise VocabularyError(f"{what} has {length} bytes, but the limit is {MAX_TEXT_BYTES}")
