"""Merging in little memory against merging linked words."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.training import batched_numpy, merge_host, scanned_words
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import SymbolWords, byte_symbols
from llmgpu.bpe.vocabulary.tie import byte_ranks
from llmgpu.bpe.words.distinct_words import DistinctWords
from llmgpu.cpu import library
from llmgpu.errors import InputError
from tests.bpe.word_lists import as_words
from tests.conftest import examples

# "!" is symbol 0.
PARTS = st.lists(st.sampled_from(b"aaab!cd"), min_size=1, max_size=4).map(bytes)
WORDS = st.lists(st.tuples(PARTS, st.integers(1, 12)), min_size=1, max_size=4).map(
    lambda parts: b"".join(part * count for part, count in parts)
)
COUNTS = st.dictionaries(WORDS, st.sampled_from([1, 2, 5, 1000]), min_size=1, max_size=12)


@settings(deadline=None, max_examples=examples(120))
@given(
    COUNTS,
    st.sampled_from([1, 4, 40, 300]),
    st.sampled_from([0, 2, 3]),
    st.sampled_from([None, 3, 16]),
    st.fixed_dictionaries(
        {
            "CHUNK": st.sampled_from([9, 50, 1 << 18]),
            "MOST_LISTED": st.sampled_from([1, 3, 1 << 14]),
            "MOST_COUNTED": st.sampled_from([60, 1 << 22]),
            "LISTED_SHARE": st.sampled_from([1, 4, 20]),
        }
    ),
)
def test_the_same_merges(
    counts: dict[bytes, int], merges: int, least: int, longest: int | None, sizes: dict[str, int]
) -> None:
    words = byte_symbols(as_words(counts), byte_ranks("hf"))
    options = TrainingOptions(1000, min_frequency=least, max_token_length=longest)
    expected = batched_numpy.train(words, options, merges=merges)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(scanned_words, name, size)
        made = batched_numpy.train(words, options, merges=merges, scans=True)
    assert made.pairs.tolist() == expected.pairs.tolist()
    assert made.counts.tolist() == expected.counts.tolist()
    assert made.symbols == expected.symbols


def test_many_words_with_the_first_symbol() -> None:
    """Pairs with it lose their counts, and are listed, as others are."""
    options = TrainingOptions(1000, min_frequency=1)
    for seed in range(60):
        rng = random.Random(seed)
        letters = (rng.choices(b"ab!cde", k=rng.randint(2, 9)) for _ in range(60))
        counts = {bytes(word): rng.randint(1, 9) for word in letters}
        words = byte_symbols(as_words(counts), byte_ranks("hf"))
        expected, made = (
            batched_numpy.train(words, options, merges=40, scans=scans) for scans in (False, True)
        )
        assert made.pairs.tolist() == expected.pairs.tolist(), seed
        assert made.counts.tolist() == expected.counts.tolist(), seed


def test_positions_are_kept_until_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of merged pairs are not kept, and stale ones are dropped once there is no room."""
    monkeypatch.setattr(scanned_words, "LISTED_SHARE", 1)
    words = byte_symbols(as_words({b"abcabdabc" * 3: 1}), byte_ranks("hf"))
    pairs = scanned_words.ScannedWords(words, 3, lambda keys, counts: counts > 0)
    for made, drops in ((256, False), (257, True), (258, True)):
        best = max(pairs.live(1).tolist(), key=lambda slot: pairs.counts.values[slot])
        if drops:
            pairs._most_positions = 0
        pairs.merge_batch(np.array([best]), np.array([made]))
        assert len(pairs._positions[0]) == len(pairs._positions[best]) == 0
        sizes = [len(positions) for positions in pairs._positions]
        assert pairs._kept_positions == sum(sizes)
        if drops:
            assert sizes == pairs.counts.values.tolist()


def one_word(letters: bytes, size: int) -> SymbolWords:
    data = np.random.default_rng(3).choice(np.frombuffer(letters, np.uint8), size)
    words = DistinctWords(data, np.array([0, size]), np.ones(1, np.int64))
    return byte_symbols(words, byte_ranks("hf"))


@pytest.mark.parametrize("letters", [b"a", b"abcdefghijklmnopqrstuvwxyz"])
def test_memory_is_a_small_multiple_of_the_words(
    letters: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanned_words, "CHUNK", 1 << 12)
    monkeypatch.setattr(scanned_words, "MOST_LISTED", 1 << 10)
    size = 1_000_000
    tracemalloc.start()
    try:
        words = one_word(letters, size)
        assert tracemalloc.get_traced_memory()[0] < size + (1 << 16)
        batched_numpy.train(words, TrainingOptions(1000), merges=60, scans=True, keeps_words=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # From NumPy 2.5 on `ndarray.resize` copies, which takes 2 of these.
    assert peak < 10 * size + (1 << 20)
    estimate = scanned_words.COSTS.of(1, size) - scanned_words.COSTS.fixed
    assert peak - (1 << 20) <= estimate <= 2 * peak


def test_what_is_long_or_too_much_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = merge_host.memory_costs(1000, 8000)
    assert usual is not scanned_words.COSTS
    monkeypatch.setenv(library.VARIABLE, "numpy")
    assert merge_host.memory_costs(1, 8000) is scanned_words.COSTS
    monkeypatch.delenv(library.VARIABLE)
    monkeypatch.setattr(merge_host, "free_memory", lambda: 1 << 20)
    assert merge_host.memory_costs(1000, 8000) is scanned_words.COSTS
    monkeypatch.setattr(merge_host, "free_memory", lambda: None)
    assert merge_host.memory_costs(1000, 8000) is usual


def test_too_little_memory_is_said_before_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_host, "free_memory", lambda: 5_000_000)
    words = one_word(b"ab", 1000)
    with pytest.raises(InputError, match=r"^merging 1 distinct .* up to 185 MB .* 5 MB are free"):
        merge_host.train(words, TrainingOptions(300), merges=3)
