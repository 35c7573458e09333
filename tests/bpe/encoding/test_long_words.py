"""Long words merged window by window against the plain loop."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding import matching
from llmgpu.bpe.encoding.matching import BpeMatcher
from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from tests.bpe.encoding.test_matching import BYTES, make_vocabulary, merge_vocabularies
from tests.bpe.encoding.test_matching import rank_vocabularies as any_order
from tests.conftest import examples
from tests.reference import bpe as training
from tests.reference import encoding as reference

PARTS = st.lists(st.sampled_from(b"aaabc "), min_size=1, max_size=30).map(bytes)
WORDS = st.lists(st.tuples(PARTS, st.integers(1, 8)), min_size=1, max_size=6).map(
    lambda parts: b"".join(part * count for part, count in parts)
)


@st.composite
def trained(draw: st.DrawFn) -> Vocabulary:
    """A vocabulary as training makes it: every pair after those that make its parts."""
    merges = training.train([draw(WORDS)], draw(st.integers(1, 40)), "none", "hf", 1)
    spelled = training.spell(merges)
    triples = [(*pair, 256 + k) for k, pair in enumerate(merges)]
    return make_vocabulary(spelled, triples, ignore_merges=False)


@st.composite
def by_ranks(draw: st.DrawFn) -> Vocabulary:
    """The same tokens, merged by their ranks."""
    vocabulary = draw(trained())
    return replace(vocabulary, merges=np.empty((0, 3), np.uint32), ignore_merges=True)


def random_words(rng: random.Random, count: int) -> tuple[Vocabulary, list[bytes]]:
    """Tokens as long as small windows, by merges or by ranks, and words of them."""
    ids = list(rng.choice([b"a", b"ab", b"abc"]))
    tokens = list(BYTES)
    merges: list[tuple[int, int, int]] = []
    for _ in range(rng.randint(1, 25)):
        left, right = rng.choices(ids[-6:] if rng.random() < 0.5 else ids, k=2)
        spelled = tokens[left] + tokens[right]
        if len(spelled) > 40 or spelled in tokens:
            continue
        merges.append((left, right, len(tokens)))
        ids.append(len(tokens))
        tokens.append(spelled)
    by_ranks = rng.random() < 0.5
    vocabulary = make_vocabulary(tokens, [] if by_ranks else merges, ignore_merges=by_ranks)
    parts = [*BYTES[97:100], *tokens[256:]]
    return vocabulary, [b"".join(rng.choices(parts, k=rng.randint(20, 90))) for _ in range(count)]


def merge(vocabulary: Vocabulary, word: bytes) -> list[int]:
    return [*BpeMatcher(vocabulary).match_word(word)]


def test_windows_give_the_ids_of_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    for _ in range(examples(120)):
        vocabulary, words = random_words(rng, 10)
        found = []
        for window in (16, 1 << 20):
            monkeypatch.setattr(matching, "WINDOW", window)
            found.append([merge(vocabulary, word) for word in words])
        assert found[0] == found[1], vocabulary.tokens[256:]


def test_a_token_may_be_longer_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    merges = [[97, 97, 256], [98, 98, 257], [256, 256, 258], [257, 98, 259], [97, 259, 260]]
    merges += [[256, 259, 261], [258, 261, 262], [260, 262, 263], [98, 256, 264], [256, 264, 265]]
    merges += [[263, 97, 266], [263, 266, 267]]
    vocabulary = extend_vocabulary(
        byte_vocabulary("none", "hf"), merges, special_tokens=[], training={}
    )
    word = b"aaaaaaaaaaaabbbaaaaaabbbabbbaaaaaabbbabbbaaaaaabbba"
    monkeypatch.setattr(matching, "WINDOW", 11)  # the last token has 27 bytes
    assert merge(vocabulary, word) == [258, 258, 258, 259, 262, 267]


@settings(deadline=None, max_examples=examples(200))
@given(trained() | by_ranks(), WORDS, st.integers(8, 60))
def test_windows_of_any_size(vocabulary: Vocabulary, word: bytes, window: int) -> None:
    assume(not (vocabulary.ignore_merges and word in vocabulary.tokens))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "WINDOW", window)
        assert merge(vocabulary, word) == reference.bpe_encode(vocabulary, word)


@settings(deadline=None, max_examples=examples(100))
@given(merge_vocabularies() | any_order(), WORDS, st.integers(8, 60))
def test_pairs_that_rank_before_their_parts(
    vocabulary: Vocabulary, word: bytes, window: int
) -> None:
    assume(not (vocabulary.ignore_merges and word in vocabulary.tokens))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "WINDOW", window)
        patch.setattr(matching, "_REMEMBERED_WINDOWS", 2)
        assert merge(vocabulary, word) == reference.bpe_encode(vocabulary, word)


def letters_vocabulary() -> Vocabulary:
    """Pairs of letters, each of them a token, and runs of one letter up to 64."""
    merges = [(97 + a, 97 + b) for a in range(26) for b in range(26)]
    ids = {pair: 256 + k for k, pair in enumerate(merges)}
    run = ids[97, 97]
    for _ in range(5):
        merges.append((run, run))
        run = 255 + len(merges)
    spelled = BYTES + [bytes(pair) for pair in merges[:676]]
    for left, right in merges[676:]:
        spelled.append(spelled[left] + spelled[right])
    triples = [(*pair, 256 + k) for k, pair in enumerate(merges)]
    return make_vocabulary(spelled, triples, ignore_merges=False)


RANDOM: Any = partial(np.random.default_rng(4).integers, 97, 123, dtype=np.uint8)


@pytest.mark.parametrize("make", [partial(np.full, fill_value=97, dtype=np.uint8), RANDOM])
def test_the_memory_of_a_word_is_bounded(make: Any) -> None:
    vocabulary = letters_vocabulary()
    matcher = BpeMatcher(vocabulary)
    matcher.match_word(make(100).tobytes())
    word = make(50_000 if make is RANDOM else 4_000_000).tobytes()
    tracemalloc.start()
    try:
        ids = matcher.match_word(word)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert b"".join(vocabulary.tokens[i] for i in ids) == word
    assert peak < 3 * len(word) + (8 << 20)


def test_little_of_a_word_is_merged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows overlap by a small part of them, however long the word is."""
    vocabulary, word = letters_vocabulary(), RANDOM(200_000)
    merged = []

    def recorded(symbols: list[int], *rest: Any) -> list[int]:
        merged.append(len(symbols))
        return merge_by_heap(symbols, *rest)

    merge_by_heap = matching.merge_by_heap
    monkeypatch.setattr(matching, "merge_by_heap", recorded)
    merge(vocabulary, word.tobytes())
    assert sum(merged) < 1.1 * len(word)
    assert max(merged) == matching.WINDOW
