"""Added tokens of a tokenizer.json that are tokens of its model, too."""

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
    """Check that ranks, by which a vocabulary without merges merges, never merge these tokens."""
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
    """Return the ids of the model's special tokens whose text may become a pre-token.

    VocabularyError if such a pre-token has other bytes than the special token.
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
    """Whether `data` is text that the pattern leaves whole."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(start_mask(text, pattern, np.zeros(1, np.int64)).sum() == 1)


def _can_make(normalizer: str | None, text: str) -> bool:
    """Whether a normalizer may make `text` of a text that does not contain it."""
    if normalizer == NFC:
        # The characters of ASCII that other characters become are K, the semicolon and the grave.
        return not text.isascii() or not {"K", ";", "`"}.isdisjoint(text)
    return normalizer is not None and get_normalizer(normalizer).name != "Strip"


def check_added_ids(added: dict[str, int], ids: dict[str, int]) -> None:
    """Check that the library, which numbers new tokens in order, gives these ids."""
    following = len(ids)
    for text, number in added.items():
        given = ids.get(text, following)
        following += text not in ids
        if given != number:
            raise VocabularyError(
                f"the added token {quote(text)} has id {number}, but the library would give {given}"
            )
