"""What a vocabulary is made of, and what each part of it does for a text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.training.linked_words import apply_merges
from llmgpu.bpe.training.symbols import seed_symbols
from llmgpu.bpe.vocabulary.recovery import listed_merges
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.progress import Progress, no_progress

MOST_LENGTH = 16  # bytes; longer tokens are one group
PARTS, DIGITS, SPACE, SIGNS = "parts of characters", "digits", "white space", "punctuation, symbols"
SPECIAL = "special tokens"


# What names of letters begin with that are of several scripts, or say it in another word.
_NO_SCRIPTS = frozenset(
    (
        "",
        "Combining",
        "Double",
        "Feminine",
        "Masculine",
        "Mathematical",
        "Micro",
        "Modifier",
        "Variation",
    )
)
_WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def scripts_of(vocabulary: Vocabulary) -> list[str]:
    """Return the script of each token, by id."""
    special = set(vocabulary.special_tokens.values())
    return [
        SPECIAL if number in special else script_of(token)
        for number, token in enumerate(vocabulary.tokens)
    ]


def script_of(token: bytes) -> str:
    """Return the script of a token's first letter as Unicode names letters: Latin, Cyrillic, CJK.

    A token without letters is digits, punctuation and symbols, or white space; one that is not
    UTF-8 and has no letter is a part of characters.
    """
    text = token.decode(errors="ignore")
    kinds = {unicodedata.category(character)[0]: character for character in reversed(text)}
    if "L" in kinds or "M" in kinds:
        return _script_of_letter(kinds.get("L") or kinds["M"])
    if len(text.encode()) < len(token):
        return PARTS
    if "N" in kinds:
        return DIGITS
    return SPACE if text.isspace() else SIGNS


@cache
def _script_of_letter(letter: str) -> str:
    words = unicodedata.name(letter, "").split(" ")
    name = words[words[0] in _WIDTHS and len(words) > 1].split("-")[0].capitalize()
    if name == "Cjk":
        return "CJK"
    return "other letters" if name in _NO_SCRIPTS else name


def lengths_of(vocabulary: Vocabulary) -> list[str]:
    """Return the group of each token by its length in bytes, by id."""
    special = set(vocabulary.special_tokens.values())
    return [
        SPECIAL if number in special else length_group(len(token))
        for number, token in enumerate(vocabulary.tokens)
    ]


def length_group(length: int) -> str:
    """Return the name of tokens of a length: "0 (no token)", "1", ..., "16", "17 or more"."""
    if not length:
        return "0 (no token)"
    return str(length) if length <= MOST_LENGTH else f"{MOST_LENGTH + 1} or more"


def bytes_a_token(
    vocabulary: Vocabulary, words: DistinctWords, progress: Progress = no_progress
) -> Iterator[tuple[int, float]]:
    """Yield, for growing numbers of the vocabulary's merges, how many bytes a token has then.

    Each number of merges makes 2^k ids, the last one is that of all. words: of a text, cut by the
    vocabulary's pattern. Nothing is yielded for a vocabulary that does not merge.

    Raises VocabularyError for merges that can't be made one after the other, see `seed_symbols`.
    """
    if vocabulary.match != "bpe":
        return
    if not len(vocabulary.merges):
        vocabulary = replace(vocabulary, merges=listed_merges(vocabulary), ignore_merges=True)
    ranks = byte_ranks("hf")
    symbols = seed_symbols(vocabulary, ranks)
    left = symbols.words(words, ranks)
    steps: NDArray[np.int64] = (1 << np.arange(8, 31)) - 256
    done = 0
    for count in (*steps[steps < len(symbols.merges)].tolist(), len(symbols.merges)):
        left = apply_merges(left, symbols.merges[done:count], progress)
        done = count
        yield count, words.text_bytes / left.total
