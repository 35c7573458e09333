"""Byte pair encoding of words against the plain loop, by merges and by ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.encoding import matching
from llmgpu.bpe.encoding.matching import BpeMatcher, Words
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
    text = np.frombuffer(b"".join(words), np.uint8)
    bounds = np.concatenate([[0], np.cumsum([len(word) for word in words])])
    spans = Words(bounds[:-1], bounds[1:], bounds[1:])
    matcher = BpeMatcher(vocabulary)
    for matches in (matcher.match(text, spans), matcher.match_long(text, spans)):
        assert matches.ids.dtype == np.uint32
        ends = np.concatenate([[0], np.cumsum(matches.counts)]).tolist()
        assert [matches.ids[a:b].tolist() for a, b in pairwise(ends)] == expected


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


def test_keys_of_words_that_are_done_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round looks at the words that still merge, not at all of them."""
    sizes = []

    class Recording(matching._MergingWords):
        def best_keys(self) -> NDArray[np.uint32]:
            best = super().best_keys()
            sizes.append(len(self._keys))
            return best

    monkeypatch.setattr(matching, "_MergingWords", Recording)
    tokens = [*BYTES, *(b"a" * length for length in range(2, 33))]
    merges = [(97 if k == 256 else k - 1, 97, k) for k in range(256, len(tokens))]
    vocabulary = make_vocabulary(tokens, merges, ignore_merges=False)
    check(vocabulary, [b"a" * 3] * 500 + [b"a" * 33])
    assert sizes[0] == 3 * 500 + 33 and set(sizes[2:12]) == {33}


def test_several_long_words() -> None:
    word = b"ab" * matching.MOST_BYTES
    tokens = [*BYTES, b"ab"]
    vocabulary = make_vocabulary(tokens, [(97, 98, 256)], ignore_merges=False)
    for words in ([word], [word, word + b"a"], [word, word, word], [b"a", word]):
        check(vocabulary, words)


def test_no_words() -> None:
    vocabulary = make_vocabulary(BYTES, [], ignore_merges=True)
    none = np.empty(0, np.int64)
    matches = BpeMatcher(vocabulary).match(np.empty(0, np.uint8), Words(none, none, none))
    assert (len(matches.ids), len(matches.counts)) == (0, 0)
