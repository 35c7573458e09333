"""Long words, which are merged one at a time with a heap, against the plain loop."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.encoding import matching
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


@settings(deadline=None, max_examples=examples(300))
@given(trained() | by_ranks() | merge_vocabularies() | any_order(), WORDS)
def test_words_merged_with_a_heap(vocabulary: Vocabulary, word: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "MOST_BYTES", 1)
        ids, _ = matching.BpeMatcher(vocabulary).match([word])
    assert ids.tolist() == reference.bpe_encode(vocabulary, word)


def test_tokens_as_long_as_words() -> None:
    rng = random.Random(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "MOST_BYTES", 1)
        for _ in range(examples(120)):
            vocabulary, words = random_words(rng, 10)
            ids, _ = matching.BpeMatcher(vocabulary).match(words)
            expected = [reference.bpe_encode(vocabulary, word) for word in words]
            assert ids.tolist() == [number for each in expected for number in each]
