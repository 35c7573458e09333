"""Encoding by merges, written for reading: what Hugging Face and tiktoken do, merge by merge."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from tokenizers.normalizers import NFC

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.reference.bpe import pre_tokens


class Rules:
    """The rules of a vocabulary, and the ids of the pre-tokens that it has encoded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        merges = enumerate(vocabulary.merges.tolist())
        # The place and the result of each merge by its pair.
        self.by_merges = {(left, right): (k, new) for k, (left, right, new) in merges}
        special = set(vocabulary.special_tokens.values())
        self.ids: dict[bytes, int] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in special:
                self.ids.setdefault(token, i)
        self.encoded: dict[bytes, list[int]] = {}


_RULES: WeakKeyDictionary[Vocabulary, Rules] = WeakKeyDictionary()


def bpe_encode(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Tokenize one document by merges, special tokens being text.

    With merges, the pair that is first in the list goes first; without any, the pair that spells
    the token of the lowest id. The leftmost of equal pairs goes first. A byte without a token is
    the unknown token; KeyError if there is none.
    """
    assert vocabulary.match == "bpe"
    if vocabulary.normalizer == "NFC":
        text = NFC().normalize_str(text.decode()).encode()
    if vocabulary not in _RULES:
        _RULES[vocabulary] = Rules(vocabulary)
    rules, encoded = _RULES[vocabulary], []
    for piece in pre_tokens(text, vocabulary.pattern, vocabulary.unicode):
        if piece not in rules.encoded:
            rules.encoded[piece] = _encode_piece(vocabulary, rules, piece)
        encoded += rules.encoded[piece]
    return encoded


def _encode_piece(vocabulary: Vocabulary, rules: Rules, piece: bytes) -> list[int]:
    if vocabulary.ignore_merges and piece in rules.ids:
        return [rules.ids[piece]]
    parts = [_byte_id(vocabulary, rules.ids, byte) for byte in piece]
    while True:
        candidates = []
        for i in range(len(parts) - 1):
            left, right = parts[i], parts[i + 1]
            if rules.by_merges:
                found = rules.by_merges.get((left, right))
            else:
                new = rules.ids.get(vocabulary.tokens[left] + vocabulary.tokens[right])
                found = None if new is None else (new, new)
            if found:
                candidates.append((found[0], i, found[1]))
        if not candidates:
            return parts
        _, i, new = min(candidates)
        parts[i : i + 2] = [new]


def _byte_id(vocabulary: Vocabulary, ids: dict[bytes, int], byte: int) -> int:
    single = bytes([byte])
    if single not in ids and vocabulary.unknown_token is not None:
        return vocabulary.unknown_token
    return ids[single]
