"""Making vocabularies: from the 256 bytes, or by adding merges and special tokens to a vocabulary.

The tie rule decides which of several equally frequent pairs is merged first: the pair whose left
symbol has the lowest rank, then the pair whose right symbol has the lowest rank. The rank of a
merged symbol is its id, so it ranks after all bytes. The two rules rank bytes differently:

- ``bytes``: a byte ranks as its value.
- ``hf``: bytes rank in the order of their characters in Hugging Face's byte-level alphabet (GPT-2's
  bytes_to_unicode): a printable Latin-1 byte has its Latin-1 character, and every other byte has
  the next free code point from 256 on. Hugging Face's trainer makes the same merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.bpe.pretokens.unicode_classes import DEFAULT_VERSION
from llmgpu.bpe.vocabulary import TIE_RULES
from llmgpu.bpe.vocabulary.file import PackedTokens
from llmgpu.bpe.vocabulary.trie import NO_TOKEN
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.library import library
from llmgpu.cpu.tokens import append_merges
from llmgpu.errors import LlmgpuError, VocabularyError
from llmgpu.input_files import quote


def _make_alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    number = {value: 0x100 + k for k, value in enumerate(others)}
    return tuple(chr(number.get(value, value)) for value in range(256))


ALPHABET = _make_alphabet()  # the byte-level alphabet: a character for each byte


def byte_ranks(tie: str) -> NDArray[np.uint32]:
    """Return the rank of each byte under the rule `tie`: uint32 (256,), a permutation.

    Raises LlmgpuError for an unknown rule.
    """
    if tie not in TIE_RULES:
        raise LlmgpuError(f"unknown tie rule {quote(tie)}: use one of {', '.join(TIE_RULES)}")
    ranks = np.arange(256, dtype=np.uint32)
    if tie == "hf":
        ranks[np.argsort(ALPHABET)] = np.arange(256, dtype=np.uint32)
    return ranks


_LONG_TOKEN = 64  # bytes allocated for each new token, an estimate of the mean length


def byte_vocabulary(pattern: str, tie: str, unicode: str = DEFAULT_VERSION) -> Vocabulary:
    """Return the vocabulary from which training starts: the 256 bytes, matched by merges.

    pattern: a name. unicode: version of the pattern's character classes.

    Raises LlmgpuError for an unknown pattern or version, VocabularyError for an unknown tie rule.
    """
    known = get_pattern(pattern, unicode)
    return Vocabulary(
        tokens=tuple(bytes([value]) for value in range(256)),
        merges=np.empty((0, 3), np.uint32),
        pattern=known.name,
        expression=known.expression,
        tie=tie,
        match="bpe",
        unicode=unicode,
    )


def extend_vocabulary(
    seed: Vocabulary,
    merges: ArrayLike,
    *,
    special_tokens: Sequence[str],
    training: dict[str, int | float | str],
) -> Vocabulary:
    """Append the results of merges to a vocabulary, then special tokens. Existing ids stay.

    merges: integers (M, 3), ids of the left token, the right token and the result. A result is the
    next free id, or the id of an existing token with the same bytes.

    special_tokens: texts, which get the ids after the results. training: facts about the training.

    Raises VocabularyError for a merge of an id that does not exist yet, for any other result, and
    for a special token that is empty, repeated or spelled like another token.
    """
    triples = np.asarray(merges)
    triples = triples.astype(np.int64) if triples.size else np.empty((0, 3), np.int64)
    tokens = _appended(seed, triples)
    special = _number_special_tokens(special_tokens, tokens)
    return replace(
        seed,
        tokens=(*tokens, *(text.encode() for text in special)) if special else tokens,
        merges=np.concatenate([seed.merges, triples.astype(np.uint32)]),
        special_tokens=seed.special_tokens | special,
        training=dict(training),
    )


def _appended(seed: Vocabulary, merges: NDArray[np.int64]) -> PackedTokens:
    """Return the tokens of a vocabulary followed by the results of merges, int64 (M, 3)."""
    if library() is not None and len(merges) and 0 <= merges.min() <= merges.max() < NO_TOKEN:
        most = seed.token_offsets[-1] + _LONG_TOKEN * len(merges)
        made = append_merges(seed.token_data, seed.token_offsets, merges.astype(np.uint32), most)
        if made is not None:
            return PackedTokens(made[0].tobytes(), made[1])
    tokens = list(seed.tokens)
    for k, (left, right, result) in enumerate(merges.tolist()):
        if not (0 <= left < len(tokens) and 0 <= right < len(tokens)):
            raise VocabularyError(
                f"merge {k} of {[left, right]}: only ids below {len(tokens)} exist by then"
            )
        if result == len(tokens):
            tokens.append(tokens[left] + tokens[right])
        elif not 0 <= result < len(tokens):
            raise VocabularyError(f"merge {k} makes id {result}, but the next one is {len(tokens)}")
    return PackedTokens.of(tokens)


def _number_special_tokens(texts: Sequence[str], tokens: Sequence[bytes]) -> dict[str, int]:
    """Return the ids of special tokens by text: the ids that follow `tokens`."""
    numbered: dict[str, int] = {}
    taken = set(tokens) if texts else set()
    for text in texts:
        try:
            spelled = text.encode()
        except UnicodeEncodeError as error:
            raise VocabularyError(f"special token {quote(text)} is not valid Unicode") from error
        if not spelled or spelled in taken:
            reason = "is already a token" if spelled else "is empty"
            raise VocabularyError(f"special token {quote(text)} {reason}: choose another text")
        taken.add(spelled)
        numbered[text] = len(tokens) + len(numbered)
    return numbered
