"""The batched trainer against one that counts all pairs again for every merge."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe import train_numpy
from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.merges import SymbolMerges, byte_ids, translate
from llmgpu.bpe.symbols import SymbolWords, byte_symbols
from llmgpu.bpe.tie import byte_ranks
from llmgpu.bpe.words import count_words
from llmgpu.errors import LlmgpuError
from tests.reference import bpe as reference

# Few letters, so that there are many ties and runs.
DOCUMENT = st.one_of(
    st.lists(st.sampled_from(b"ab"), max_size=40).map(bytes),
    st.lists(st.sampled_from(b"abc \n"), max_size=60).map(bytes),
    st.lists(
        st.sampled_from([b"aa", b"aaa", b"b", b" ", b"\xc3\xa9", b"!", b"\x00"]), max_size=30
    ).map(b"".join),
)
DOCUMENTS = st.lists(DOCUMENT, max_size=5)
PATTERNS = st.sampled_from(["class", "none"])
TIES = st.sampled_from(["hf", "bytes"])


def train(
    documents: list[bytes], merges: int, pattern: str, tie: str, min_frequency: int
) -> SymbolMerges:
    return train_numpy.train(
        symbol_words(documents, pattern, tie), merges=merges, min_frequency=min_frequency
    )


def symbol_words(documents: list[bytes], pattern: str, tie: str = "hf") -> SymbolWords:
    words = count_words(corpus_from_bytes(documents), pattern)
    return byte_symbols(words, byte_ranks(tie))


def id_pairs(merges: SymbolMerges, tie: str) -> list[tuple[int, int]]:
    results = np.arange(256, 256 + len(merges.pairs), dtype=np.uint32)
    ids = translate(merges.pairs, results, byte_ids(byte_ranks(tie)))
    return [(left, right) for left, right, _ in ids.tolist()]


def recount(
    documents: list[bytes], merges: list[tuple[int, int]], pattern: str
) -> tuple[list[int], int]:
    """How often each pair occurs when it is merged, and the symbols left in the end."""
    words = Counter(tuple(w) for text in documents for w in reference.pre_tokens(text, pattern))
    counts = []
    for k, pair in enumerate(merges):
        pairs: Counter[tuple[int, int]] = Counter()
        merged: Counter[tuple[int, ...]] = Counter()
        for word, weight in words.items():
            for neighbours in pairwise(word):
                pairs[neighbours] += weight
            merged[reference.merge_word(word, pair, 256 + k)] += weight
        counts.append(pairs[pair])
        words = merged
    return counts, sum(len(word) * weight for word, weight in words.items())


def check(documents: list[bytes], merges: int, pattern: str, tie: str, min_frequency: int) -> None:
    trained = train(documents, merges, pattern, tie, min_frequency)
    expected = reference.train(documents, merges, pattern, tie, min_frequency)
    assert id_pairs(trained, tie) == expected
    assert (trained.counts.tolist(), trained.symbols) == recount(documents, expected, pattern)
    assert trained.pairs.dtype == np.uint32
    assert trained.pairs.shape == (len(expected), 2)
    assert trained.counts.dtype == np.int64


@settings(deadline=None, max_examples=300)
@given(DOCUMENTS, st.integers(0, 40), PATTERNS, TIES, st.integers(0, 4))
def test_merges_of_the_sequential_algorithm(
    documents: list[bytes], merges: int, pattern: str, tie: str, min_frequency: int
) -> None:
    check(documents, merges, pattern, tie, min_frequency)


@settings(deadline=None, max_examples=150)
@given(DOCUMENTS, PATTERNS, st.integers(1, 5), st.integers(1, 9))
def test_sizes_of_batches_and_lists_do_not_matter(
    documents: list[bytes], pattern: str, batch: int, short_list: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_numpy, "MAX_BATCH", batch)
        patch.setattr(train_numpy, "SHORT_LIST", short_list)
        check(documents, 30, pattern, "hf", 1)


def make_text(seed: int, words: int) -> bytes:
    """Text whose words have the frequencies of a natural language and share their parts."""
    rng = np.random.default_rng(seed)
    syllables = [bytes(rng.integers(97, 123, n).tolist()) for n in rng.integers(1, 4, 60)]
    vocabulary = [
        b"".join(syllables[s] for s in rng.integers(0, 60, n)) for n in rng.integers(1, 6, 400)
    ]
    picked = np.minimum(rng.zipf(1.3, words) - 1, 399)
    return b" ".join(vocabulary[k] for k in picked) + b".\n"


@pytest.mark.parametrize("tie", ["hf", "bytes"])
def test_merges_of_a_longer_text(tie: str) -> None:
    documents = [make_text(seed, 1500) for seed in (1, 2)]
    check(documents, 300, "class", tie, 2)


def test_long_keys_are_sorted_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_numpy, "_INDEX_BITS", 1)
    check([make_text(3, 300)], 100, "class", "hf", 2)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 64, 1001])
def test_runs_are_merged_from_the_left(length: int) -> None:
    check([b"a" * length, b"ba" + b"a" * length + b"b"], 20, "none", "hf", 1)


@pytest.mark.parametrize("documents", [[], [b""], [b"a"], [b"a", b"b", b"\n\n\n"]])
def test_nothing_to_merge(documents: list[bytes]) -> None:
    check(documents, 10, "class", "hf", 0)


def test_the_last_merge_is_frequent_enough() -> None:
    documents = [b"abab abab cd cd ef"]
    least = [int(train(documents, 99, "class", "hf", n).counts.min()) for n in (1, 2, 3)]
    assert least == [1, 2, 4]


def test_counts_have_64_bits() -> None:
    words = replace(symbol_words([b"abab"], "class"), counts=np.array([1 << 40]), total=4 << 40)
    trained = train_numpy.train(words, merges=9)
    assert id_pairs(trained, "hf") == [(97, 98), (256, 256)]
    assert trained.counts.tolist() == [2 << 40, 1 << 40]
    assert trained.symbols == 1 << 40


def test_progress_counts_merges() -> None:
    seen: list[tuple[str, int, int | None]] = []
    words = symbol_words([make_text(4, 100)], "class")
    train_numpy.train(words, merges=20, progress=lambda *call: seen.append(call))
    assert seen[-1] == ("merging", 20, 20)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_too_many_merges_are_refused() -> None:
    words = symbol_words([b"abab"], "class")
    with pytest.raises(LlmgpuError, match=r"1048577 tokens asked for.* 1048576"):
        train_numpy.train(words, merges=(1 << 20) - 255)


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_numpy, "MAX_POSITIONS", 8)
    assert len(train([b"abcdef"], 9, "none", "hf", 1).pairs) == 5  # and a separator at each end
    with pytest.raises(LlmgpuError, match="9 positions, the trainer can number 8"):
        train([b"abcdefg"], 9, "none", "hf", 1)
