"""What must hold in every vocabulary, whether it was trained, imported or read from a file.

Sizes are compared before anything is made from them, so that checking a hostile vocabulary costs
no more memory than a multiple of its own.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from llmgpu.bpe.pretokens.custom_regex import REGEX_PREFIX
from llmgpu.bpe.pretokens.pattern import PATTERNS
from llmgpu.bpe.vocabulary.tie import TIE_RULES
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.errors import VocabularyError

if TYPE_CHECKING:
    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

MATCH_RULES = ("greedy", "bpe")
NORMALIZERS = (None, "NFC")
MAX_TRAINING_ENTRIES = 64
MAX_TEXT_BYTES = 1 << 16  # of the expression and of each text in the training data


def check_vocabulary(vocabulary: Vocabulary) -> None:
    """Raise VocabularyError, with the first thing that is wrong, unless all fits together."""
    if not 0 < vocabulary.size < NO_TOKEN:
        raise VocabularyError(f"{vocabulary.size} tokens: there must be 1 to {NO_TOKEN - 1}")
    _check_rules(vocabulary)
    _check_pattern(vocabulary.pattern, vocabulary.expression)
    _check_special_tokens(vocabulary)
    _check_merges(vocabulary)
    _check_training(vocabulary.training)


def _check_rules(vocabulary: Vocabulary) -> None:
    for what, value, known in (
        ("tie rule", vocabulary.tie, TIE_RULES),
        ("match rule", vocabulary.match, MATCH_RULES),
        ("normalizer", vocabulary.normalizer, NORMALIZERS),
    ):
        if value not in known:
            raise VocabularyError(f"unknown {what} {value!r}: this version knows {known}")
    unknown = vocabulary.unknown_token
    if unknown is not None and not 0 <= unknown < vocabulary.size:
        raise VocabularyError(f"the unknown token {unknown} is not below {vocabulary.size}")


def _check_pattern(name: str, expression: str) -> None:
    """A published name goes with its published expression, and with no other."""
    _check_text("the pattern's name", name)
    _check_text("the pattern's expression", expression)
    if name.startswith(REGEX_PREFIX) and name != REGEX_PREFIX + expression:
        raise VocabularyError(f"pattern {name!r} does not go with expression {expression!r}")
    for pattern in PATTERNS.values():
        if (pattern.name == name) != (pattern.expression == expression):
            raise VocabularyError(f"pattern {name!r} does not go with expression {expression!r}")


def _check_special_tokens(vocabulary: Vocabulary) -> None:
    for text, token in vocabulary.special_tokens.items():
        if not 0 <= token < vocabulary.size:
            raise VocabularyError(f"special token {text!r}: id {token} of {vocabulary.size}")
        if not text or vocabulary.tokens[token] != text.encode(errors="replace"):
            raise VocabularyError(f"special token {text!r} is not what id {token} spells")


def _check_merges(vocabulary: Vocabulary) -> None:
    merges = vocabulary.merges
    if merges.dtype != np.uint32 or merges.ndim != 2 or merges.shape[1] != 3:
        raise VocabularyError(f"merges must be uint32 (M, 3), not {merges.dtype} {merges.shape}")
    allowed = np.zeros(vocabulary.size, np.bool_)
    allowed[vocabulary.ordinary_ids] = True
    if (merges >= vocabulary.size).any() or not allowed[merges].all():
        raise VocabularyError("a merge has an id that is special or not in the vocabulary")
    lengths = vocabulary.token_lengths[merges]
    if (lengths[:, :2] == 0).any():
        raise VocabularyError("a merge has an empty part")
    # Lengths first: then no concatenation is longer than a token.
    if (lengths[:, 0] + lengths[:, 1] != lengths[:, 2]).any() or not _spell_results(vocabulary):
        raise VocabularyError("a merge does not spell its result")


def _spell_results(vocabulary: Vocabulary) -> bool:
    table = np.empty(vocabulary.size, np.object_)
    table[:] = vocabulary.tokens
    left, right, results = table[vocabulary.merges.T]
    return all(map(operator.eq, map(operator.add, left, right), results))


def _check_training(training: dict[str, int | float | str]) -> None:
    if len(training) > MAX_TRAINING_ENTRIES:
        raise VocabularyError(
            f"{len(training)} entries of training data, at most {MAX_TRAINING_ENTRIES} are kept"
        )
    for key, value in training.items():
        _check_text("a key of the training data", key)
        if isinstance(value, str):
            _check_text(f"training data {key!r}", value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            raise VocabularyError(f"training data {key!r} is neither a number nor a text")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise VocabularyError(f"training data {key!r} does not fit in 64 bits: {value}")


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise VocabularyError(f"{what} is not a text")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise VocabularyError(f"{what} is not valid Unicode") from error
    if length > MAX_TEXT_BYTES:
        raise VocabularyError(f"{what} has {length} bytes, at most {MAX_TEXT_BYTES} are kept")
