"""Making vocabularies of the 256 bytes or by additions, and recovering merges from ranks.

The tie rule decides which of several equally frequent pairs is merged first: the pair whose left
symbol has the lowest rank, then the pair whose right symbol has the lowest rank. The rank of a
merged symbol is its id, so it ranks after all bytes. The two rules rank bytes differently:

- ``bytes``: a byte ranks as its value.
- ``hf``: bytes rank in the order of their characters in Hugging Face's byte-level alphabet (GPT-2's
  bytes_to_unicode): a printable Latin-1 byte has its Latin-1 character, and every other byte has
  the next free code point from 256 on. Hugging Face's trainer makes the same merges.

A vocabulary may have ranks instead of merges. Then any two neighbouring symbols whose bytes
together are a token may merge, the pair of the token with the lowest rank first. Merge the bytes of
a token by this rule until two symbols are left. These two symbols are the token's pair.

No other pair ever makes the token. Take the stretch of a text that becomes the token. Until the
token is made, no merge crosses the ends of the stretch. So the merges inside the stretch are those
of the token's bytes alone, in the same order, and the last two symbols are the token's pair.

Hence a list with one merge per token, sorted by rank, gives the same ids as the ranks. A token has
no pair if its bytes never merge to the token. By ranks, such a token results only from a pre-token
of exactly its bytes. By merges, `ignore_merges` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import AnyStr

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


# In `starts`: two symbols have merged across this position, so no symbol ends here.
_NO_PART = -2


def ordinary_ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Return the ids of ordinary tokens by their bytes, ascending by id.

    Tokens with the same bytes have one entry, with the lowest id.
    """
    ranks: dict[bytes, int] = {}
    ids = vocabulary.ordinary_ids.tolist()
    for token, number in zip(vocabulary.ordinary_tokens, ids, strict=True):
        if token:
            ranks.setdefault(token, number)
    return ranks


def listed_merges(vocabulary: Vocabulary) -> NDArray[np.uint32]:
    """Return the merges of a vocabulary; if it has only ranks, the merges that give the same ids.

    uint32 (M, 3): left, right and result.
    """
    if len(vocabulary.merges):
        return vocabulary.merges
    return recover_merges(ordinary_ranks(vocabulary))


def recover_merges(ranks: Mapping[bytes, int]) -> NDArray[np.uint32]:
    """Return merges that give the same ids as ranks: uint32 (M, 3), left, right and result.

    ranks: id by token; a lower id merges first. Every byte of a token is a token, too.
    """
    triples = [
        (ranks[pair[0]], ranks[pair[1]], rank)
        for token, rank in ranks.items()
        if len(token) > 1 and (pair := last_pair(token, ranks))
    ]
    triples.sort(key=lambda triple: triple[2])
    return np.array(triples, np.uint32).reshape(-1, 3)


def last_pair(token: AnyStr, ranks: Mapping[AnyStr, int]) -> tuple[AnyStr, AnyStr] | None:
    """Merge the bytes or characters of `token` until two symbols are left.

    ranks: rank by token. The lowest rank merges first, and of equal ranks the leftmost pair.

    Returns the two symbols; None if merging stops with more than two.
    """
    length = len(token)
    ends = list(range(1, length + 1))  # ends[k]: the end of the symbol that begins at k
    starts = list(range(-1, length))  # starts[k]: the start of the symbol that ends at k
    # Heap of pairs of neighbouring symbols: rank, begin and end.
    waiting: list[tuple[int, int, int]] = []

    def push(begin: int, end: int) -> None:
        rank = ranks.get(token[begin:end])
        if rank is not None:
            heappush(waiting, (rank, begin, end))

    for begin in range(length - 1):
        push(begin, begin + 2)
    parts = length
    while parts > 2 and waiting:
        _, begin, end = heappop(waiting)
        middle = ends[begin]
        if starts[begin] == _NO_PART or middle == length or ends[middle] != end:
            continue  # one of the two symbols has merged since
        ends[begin], starts[middle], starts[end] = end, _NO_PART, begin
        parts -= 1
        # Push the pairs of the new symbol with its two neighbours.
        if begin > 0:
            push(starts[begin], end)
        if end < length:
            push(begin, ends[end])
    return None if parts > 2 else (token[: ends[0]], token[ends[0] :])
