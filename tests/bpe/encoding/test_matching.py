"""Byte pair encoding of words against the plain loop, by merges and by ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding import matching
from llmgpu.bpe.encoding.encoder_numpy import Matches, _Table
from llmgpu.bpe.encoding.matching import BpeMatcher
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.conftest import examples
from tests.reference import encoding as reference

BYTES = [bytes([value]) for value in range(256)]
LETTERS = b"abc "
WORDS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=40).map(bytes), min_size=1, max_size=8
)
TOKENS = st.lists(
    st.lists(st.sampled_from(LETTERS), min_size=2, max_size=6).map(bytes), max_size=25, unique=True
)


def make_vocabulary(
    tokens: list[bytes], merges: list[tuple[int, int, int]], *, ignore_merges: bool
) -> Vocabulary:
    return Vocabulary(
        tuple(tokens),
        np.array(merges, np.uint32).reshape(-1, 3),
        "none",
        PATTERNS["none"].expression,
        match="bpe",
        ignore_merges=ignore_merges,
    )


@st.composite
def merge_vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Merges in any order, also such that no training gives: repeated, of results to come."""
    tokens = BYTES + draw(TOKENS)
    ids = {token: number for number, token in enumerate(tokens)}
    cuts = [
        (ids[token[:cut]], ids[token[cut:]], ids[token])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    merges = draw(st.lists(st.sampled_from(cuts), min_size=1, max_size=40)) if cuts else []
    return make_vocabulary(tokens, merges, ignore_merges=not merges or draw(st.booleans()))


@st.composite
def rank_vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Tokens in any order, bytes among them."""
    return make_vocabulary(
        draw(st.permutations([bytes([letter]) for letter in LETTERS] + draw(TOKENS))),
        [],
        ignore_merges=True,
    )


def check(vocabulary: Vocabulary, words: list[bytes]) -> None:
    expected = [reference.bpe_encode(vocabulary, word) for word in words]
    matcher = BpeMatcher(vocabulary)
    assert [[*matcher.match_word(word)] for word in words] == expected
    ids, counts = encode(matcher, words)
    assert (ids.dtype, counts.dtype) == (np.uint32, np.int64)
    ends = np.concatenate([[0], np.cumsum(counts)]).tolist()
    assert [ids[a:b].tolist() for a, b in pairwise(ends)] == expected


def encode(matcher: BpeMatcher, words: list[bytes]) -> Matches:
    padded = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
    return _Table().encode(matcher, padded, np.cumsum([0, *map(len, words)]))


@settings(deadline=None, max_examples=examples(150))
@given(merge_vocabularies(), WORDS)
def test_merges_in_their_order(vocabulary: Vocabulary, words: list[bytes]) -> None:
    check(vocabulary, words)


@settings(deadline=None, max_examples=examples(150))
@given(rank_vocabularies(), WORDS)
def test_the_lowest_rank_first(vocabulary: Vocabulary, words: list[bytes]) -> None:
    check(vocabulary, words)


@settings(deadline=None, max_examples=examples(150))
@given(merge_vocabularies() | rank_vocabularies(), WORDS, st.data())
def test_an_unknown_token_that_merges(
    vocabulary: Vocabulary, words: list[bytes], data: st.DataObject
) -> None:
    """Bytes without a token become one that pairs may have: several bytes are one symbol."""
    unknown = data.draw(st.integers(0, vocabulary.size - 1))
    check(replace(vocabulary, unknown_token=unknown), [word + b"xb" for word in words])


def test_words_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words merged whole and in windows, in any order."""
    window = 128
    monkeypatch.setattr(matching, "WINDOW", window)
    tokens = [*BYTES, *(b"a" * length for length in range(2, 33)), b"ab"]
    merges = [(97 if k == 256 else k - 1, 97, k) for k in range(256, len(tokens) - 1)]
    merges.append((97, 98, len(tokens) - 1))
    vocabulary = make_vocabulary(tokens, merges, ignore_merges=False)
    lengths = [1, 2, 3, 33, window - 1, window, window + 1, 3 * window]
    words = [b"a" * length for length in lengths] + [b"ab" * length for length in lengths]
    check(vocabulary, words + [b"aab"] * 300 + words[::-1])


def test_several_long_words() -> None:
    word = b"ab" * matching.WINDOW
    tokens = [*BYTES, b"ab"]
    vocabulary = make_vocabulary(tokens, [(97, 98, 256)], ignore_merges=False)
    for words in ([word], [word, word + b"a"], [word, word, word], [b"a", word]):
        check(vocabulary, words)


def test_no_words() -> None:
    vocabulary = make_vocabulary(BYTES, [], ignore_merges=True)
    ids, counts = encode(BpeMatcher(vocabulary), [])
    assert (len(ids), len(counts)) == (0, 0)
