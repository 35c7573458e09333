"""Encoding by merges, written for reading: what Hugging Face and tiktoken do, merge by merge."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from tokenizers.normalizers import NFC

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.reference.bpe import pre_tokens

# The place and the result of each merge by its pair, and the ids of tokens that are not special.
Rules = tuple[dict[tuple[int, int], tuple[int, int]], dict[bytes, int]]
_RULES: WeakKeyDictionary[Vocabulary, Rules] = WeakKeyDictionary()


def rules_of(vocabulary: Vocabulary) -> Rules:
    """Return the rules of a vocabulary, which many texts are encoded with."""
    if vocabulary not in _RULES:
        merges = enumerate(vocabulary.merges.tolist())
        by_merges = {(left, right): (k, new) for k, (left, right, new) in merges}
        special = set(vocabulary.special_tokens.values())
        ids: dict[bytes, int] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in special:
                ids.setdefault(token, i)
        _RULES[vocabulary] = by_merges, ids
    return _RULES[vocabulary]


def bpe_encode(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Tokenize one document by merges, special tokens being text.

    With merges, the pair that is first in the list goes first; without any, the pair that spells
    the token of the lowest id. The leftmost of equal pairs goes first. A byte without a token is
    the unknown token; KeyError if there is none.
    """
    assert vocabulary.match == "bpe"
    if vocabulary.normalizer == "NFC":
        text = NFC().normalize_str(text.decode()).encode()
    by_merges, ids = rules_of(vocabulary)
    encoded: list[int] = []
    for piece in pre_tokens(text, vocabulary.pattern, vocabulary.unicode):
        if vocabulary.ignore_merges and piece in ids:
            encoded.append(ids[piece])
            continue
        parts = [_byte_id(vocabulary, ids, byte) for byte in piece]
        while True:
            candidates = []
            for i in range(len(parts) - 1):
                left, right = parts[i], parts[i + 1]
                if by_merges:
                    found = by_merges.get((left, right))
                else:
                    new = ids.get(vocabulary.tokens[left] + vocabulary.tokens[right])
                    found = None if new is None else (new, new)
                if found:
                    candidates.append((found[0], i, found[1]))
            if not candidates:
                break
            _, i, new = min(candidates)
            parts[i : i + 2] = [new]
        encoded += parts
    return encoded


def _byte_id(vocabulary: Vocabulary, ids: dict[bytes, int], byte: int) -> int:
    single = bytes([byte])
    if single not in ids and vocabulary.unknown_token is not None:
        return vocabulary.unknown_token
    return ids[single]
