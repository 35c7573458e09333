"""What vocabularies are made of, and bytes per token by the number of merges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_encoder
from llmgpu.bpe.training.statistics import (
    DIGITS,
    PARTS,
    SIGNS,
    SPACE,
    SPECIAL,
    bytes_a_token,
    length_group,
    lengths_of,
    script_of,
    scripts_of,
)
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.bpe.words.count_host import count_words
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.encoding.test_encoder_gpu import hostile_text, train
from tests.bpe.encoding.test_special_encoding import SPECIAL as SPECIAL_TOKENS
from tests.bpe.encoding.test_special_encoding import vocabulary


@pytest.mark.parametrize(
    ("token", "script"),
    [
        (" the", "Latin"),
        ("ｔｈｅ", "Latin"),
        ("µ", "other letters"),
        ("\u0301", "other letters"),
        ("_é9", "Latin"),
        ("нет", "Cyrillic"),
        ("你好", "CJK"),
        ("नि", "Devanagari"),
        ("ि", "Devanagari"),
        ("123 4", DIGITS),
        (" \n\u3000", SPACE),
        (" !?", SIGNS),
        ("😀", SIGNS),
        (b"\xe4\xbd", PARTS),
        (b" \xe4\xbd", PARTS),
        (b"a\xe4", "Latin"),
    ],
)
def test_scripts(token: str | bytes, script: str) -> None:
    assert script_of(token.encode() if isinstance(token, str) else token) == script


def test_groups_have_every_id_once() -> None:
    for groups in (scripts_of(vocabulary()), lengths_of(vocabulary())):
        assert len(groups) == vocabulary().size
        assert Counter(groups)[SPECIAL] == len(SPECIAL_TOKENS)
    assert [length_group(n) for n in (0, 1, 16, 17, 99)] == [
        "0 (no token)",
        "1",
        "16",
        "17 or more",
        "17 or more",
    ]


def tokens_with(vocabulary: Vocabulary, merges: int, text: bytes) -> int:
    """Return how many tokens a text has by the first merges of a vocabulary."""
    size = 256 + merges
    first = replace(
        vocabulary, tokens=vocabulary.tokens[:size], merges=vocabulary.merges[:merges], match="bpe"
    )
    pieces = open_encoder(first, NUMPY).encode(corpus_from_bytes(text))
    return sum(len(piece.ids) for piece in pieces)


def test_bytes_a_token_are_those_of_the_first_merges() -> None:
    text = hostile_text(7, 30_000)
    trained = replace(train(text), match="bpe")
    words = count_words(corpus_from_bytes(text), trained.cut)
    rates = [*bytes_a_token(trained, words)]
    assert [count for count, _ in rates] == [
        *(n for n in (0, 256, 768, 1792) if n < len(trained.merges)),
        len(trained.merges),
    ]
    for count, rate in rates:
        assert rate == len(text) / tokens_with(trained, count, text)
    ranks = replace(trained, merges=np.empty((0, 3), np.uint32))
    assert [*bytes_a_token(ranks, words)][-1][1] == pytest.approx(rates[-1][1])
    assert [*bytes_a_token(trained.with_match("greedy"), words)] == []
