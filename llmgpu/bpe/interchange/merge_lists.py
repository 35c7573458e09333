"""What tokenizer.json and merges.txt have in common: tokens by text, and merges as pairs of texts.

A token's text is its bytes in GPT-2's alphabet; a special token's is its own. Both stand in one
map, so two tokens that are written alike can't both be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange.byte_level import to_text
from llmgpu.bpe.interchange.input_files import check_id, quote
from llmgpu.bpe.interchange.notes import Note, listed
from llmgpu.bpe.vocabulary.recovery import ordinary_ranks, recover_merges
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError


def check_vocabulary_map(content: object) -> dict[str, int]:
    """Return a map of ids by text as it was read; VocabularyError unless it is one."""
    if not isinstance(content, dict) or not content:
        raise VocabularyError("there is no map of tokens")
    for text, number in content.items():
        check_id(f"token {quote(text)}", number)
    if len(set(content.values())) < len(content):
        first: dict[int, str] = {}
        for text, number in content.items():
            if first.setdefault(number, text) != text:
                raise VocabularyError(
                    f"tokens {quote(first[number])} and {quote(text)} have one id, {number}"
                )
    return content


def number_merges(pairs: Iterable[tuple[str, str]], ids: Mapping[str, int]) -> NDArray[np.uint32]:
    """Return merges (left, right, result) of ids, uint32 (M, 3), from pairs of texts.

    VocabularyError for a part or a result that has no id, or a pair that is there twice.
    """
    try:
        flat = list(
            chain.from_iterable((ids[left], ids[right], ids[left + right]) for left, right in pairs)
        )
    except KeyError as error:
        raise VocabularyError(
            f"a merge needs the token {quote(error.args[0])}: there is none"
        ) from error
    merges = np.array(flat, np.uint32).reshape(-1, 3)
    _check_distinct(merges)
    return merges


def _check_distinct(merges: NDArray[np.uint32]) -> None:
    keys = merges[:, 0].astype(np.uint64) << np.uint64(32) | merges[:, 1]
    _, firsts = np.unique(keys, return_index=True)
    if len(firsts) < len(merges):
        again = np.setdiff1d(np.arange(len(merges)), firsts)[0]
        raise VocabularyError(f"merge {again + 1} of the list is there already")


def exportable_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return ids by text, ascending, special tokens included.

    VocabularyError if two are written alike, or tokens are not matched by merges.
    """
    if vocabulary.match != "bpe":
        raise VocabularyError("a vocabulary that matches greedily has no merges that give its ids")
    texts = {number: text for text, number in vocabulary.special_tokens.items()}
    ids: dict[str, int] = {}
    for number, token in enumerate(vocabulary.tokens):
        if not token:
            continue
        text = texts.get(number) or to_text(token)
        if ids.setdefault(text, number) != number:
            raise VocabularyError(
                f"ids {ids[text]} and {number} would both be written {quote(text)}: "
                "the format can't hold both"
            )
    return ids


def exportable_merges(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the merges (M, 3) by which a list gives the vocabulary's ids.

    Where there are only ranks they are recovered, see `llmgpu.bpe.vocabulary.recovery`.
    """
    if len(vocabulary.merges):
        return vocabulary.merges
    return recover_merges(ordinary_ranks(vocabulary))


def name_pairs(vocabulary: Vocabulary, merges: NDArray[np.uint32]) -> list[tuple[str, str]]:
    """Return the texts of the two parts of each merge."""
    texts = [to_text(token) for token in vocabulary.tokens]
    return [(texts[left], texts[right]) for left, right, _ in merges.tolist()]


def note_missing_bytes(vocabulary: Vocabulary, note: Note) -> None:
    """Say what becomes of bytes without a token."""
    missing = vocabulary.missing_bytes()
    if missing and vocabulary.unknown_token is None:
        shown = listed([f"0x{value:02x}" for value in missing])
        note(f"bytes without a token, which others leave out and are an error here: {shown}")
