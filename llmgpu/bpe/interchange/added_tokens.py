"""Checks of the added tokens in a tokenizer.json against the tokens of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmgpu.bpe.interchange.token_tables import stands_for_bytes, to_bytes
from llmgpu.bpe.pretokens.blocks import Pattern
from llmgpu.bpe.pretokens.pattern import start_mask
from llmgpu.errors import VocabularyError
from llmgpu.input_files import quote
from llmgpu.text.normalizing import NFC, get_normalizer


def check_unmerged(tokens: set[bytes], ignore_merges: bool) -> None:
    """Check that Hugging Face's library and llmgpu give the same ids for a model without merges.

    Without merges, llmgpu lets two neighbours become a token if together they spell it. The library
    uses a token of several bytes only for a whole pre-token (ignore_merges). So the check fails if
    a token consists of two other tokens.
    """
    longer = sorted(token for token in tokens if len(token) > 1)
    if longer and not ignore_merges:
        raise VocabularyError("model BPE has tokens of several bytes, but no merges")
    for token in longer:
        if any(token[:cut] in tokens and token[cut:] in tokens for cut in range(1, len(token))):
            raise VocabularyError(
                f"model BPE has no merges, but the token {quote(token)} consists of two others: "
                "without merges, it would be merged here"
            )


def find_whole(
    special: Mapping[str, int],
    pattern: Pattern,
    *,
    normalizer: str | None,
    normalized: Sequence[int],
    single_words: Sequence[int],
) -> list[int]:
    """Return the ids of the special tokens that a pre-token may spell.

    Usually no pre-token has the text of a special token, because the search for special tokens
    finds this text before the pattern cuts. The search misses the text if the normalizer produces
    it, or if the token has the flag single_word and stands inside a word.

    special: ids by text of special tokens that are tokens of the model, too. normalized: ids of the
    special tokens that are searched after the normalizer. single_words: ids of the special tokens
    with the flag single_word.

    Raises VocabularyError if such a pre-token has other bytes than the special token.
    """
    found = []
    for text, number in special.items():
        if not stands_for_bytes(text):
            continue
        data = to_bytes(text)
        text_bytes = text.encode()
        can_be_missed = number in single_words or (
            number not in normalized and _can_make(normalizer, text)
        )
        if not (can_be_missed or data != text_bytes) or not _is_pre_token(data, pattern):
            continue
        if data != text_bytes:
            raise VocabularyError(
                f"the added token {quote(text)} is also the model's token for the bytes "
                f"{data.hex(' ')}, and can't be both here: remove it from added_tokens"
            )
        found.append(number)
    return found


def _is_pre_token(data: bytes, pattern: Pattern) -> bool:
    """Whether the pattern leaves `data` as a single pre-token."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(start_mask(text, pattern, np.zeros(1, np.int64)).sum() == 1)


def _can_make(normalizer: str | None, text: str) -> bool:
    """Whether a normalizer may produce `text` from a text that does not contain it."""
    if normalizer == NFC:
        # NFC maps other characters to only three ASCII characters: K, semicolon, grave accent.
        return not text.isascii() or not {"K", ";", "`"}.isdisjoint(text)
    return normalizer is not None and get_normalizer(normalizer).name != "Strip"


def check_added_ids(added: dict[str, int], ids: dict[str, int]) -> None:
    """Check that Hugging Face's library gives added tokens the ids that the file states.

    The library ignores the stated id of a token that the model lacks, and numbers such tokens in
    the order of the list, from the model's size on.

    added: stated ids by text, in the order of the list. ids: the model's ids by text.
    """
    following = len(ids)
    for text, number in added.items():
        given = ids.get(text, following)
        following += text not in ids
        if given != number:
            raise VocabularyError(
                f"the added token {quote(text)} has id {number}, but the library would give {given}"
            )
