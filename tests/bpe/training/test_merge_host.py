"""Merging on the CPU engine against the sequential algorithm, and against NumPy."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.training import batched_numpy, merge_host
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, Spellings, SymbolWords, byte_symbols
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.cpu import library
from llmgpu.errors import InputError, LlmgpuError
from tests.bpe.training.test_batched_gpu import distinct
from tests.bpe.training.test_batched_numpy import (
    DOCUMENTS,
    PATTERNS,
    REPEATED,
    TIES,
    id_pairs,
    make_text,
    recount,
    symbol_words,
    triples_of,
)
from tests.conftest import examples
from tests.reference import bpe as reference

pytestmark = pytest.mark.skipif(library.library() is None, reason="the CPU engine is not built")

BYTES = [bytes([value]) for value in range(256)]
WORDS = st.dictionaries(
    st.lists(st.sampled_from(b"ab c"), max_size=40).map(bytes),
    st.sampled_from([1, 1, 2, 3, 1 << 40]),
    max_size=20,
)
TOKENS = st.lists(
    st.lists(st.sampled_from(b"ab c"), min_size=2, max_size=6).map(bytes), unique=True
)


def assert_same(trained: Merges, expected: Merges) -> None:
    assert trained.pairs.tolist() == expected.pairs.tolist()
    assert trained.counts.tolist() == expected.counts.tolist()
    assert trained.symbols == expected.symbols
    assert (trained.pairs.dtype, trained.counts.dtype) == (np.uint32, np.int64)


def test_the_first_pair_is_found_after_the_table_grows() -> None:
    text = np.random.default_rng(1).integers(0, 256, 60_000, np.uint8).tobytes()
    words = symbol_words([b"\0\0" + text + b" \0\0" * 99], "none")
    options, task = TrainingOptions(256), MergeTask(merges=3)
    assert_same(*(one.train(words, options, task) for one in (merge_host, batched_numpy)))


def assert_same_words(words: SymbolWords, expected: SymbolWords) -> None:
    for name in ("symbols", "offsets", "counts", "lengths"):
        given, wanted = getattr(words, name), getattr(expected, name)
        assert given.tolist() == wanted.tolist() and given.dtype == wanted.dtype, name
    assert words.total == expected.total


def words_of_tokens(words: dict[bytes, int], tokens: list[bytes]) -> SymbolWords:
    symbols = byte_symbols(distinct(words), byte_ranks("bytes"))
    return replace(symbols, lengths=np.fromiter(map(len, tokens), np.uint32))


@settings(deadline=None, max_examples=examples(200))
@given(DOCUMENTS, PATTERNS, TIES, st.integers(0, 4), st.none() | st.integers(1, 7))
def test_merges_of_the_sequential_algorithm(
    documents: list[bytes], pattern: str, tie: str, min_frequency: int, longest: int | None
) -> None:
    options = TrainingOptions(256, min_frequency=min_frequency, max_token_length=longest)
    trained = merge_host.train(symbol_words(documents, pattern, tie), options, MergeTask(merges=40))
    expected = reference.train(documents, 40, pattern, tie, min_frequency, longest)
    assert id_pairs(trained, tie) == expected
    assert (trained.counts.tolist(), trained.symbols) == recount(documents, expected, pattern)


@settings(deadline=None, max_examples=examples(200))
@given(WORDS, st.integers(0, 60), st.integers(0, 60))
def test_training_and_replaying_give_what_numpy_gives(
    words: dict[bytes, int], merges: int, replayed: int
) -> None:
    symbols = byte_symbols(distinct(words), byte_ranks("hf"))
    whole = merge_host.train(symbols, REPEATED, MergeTask(merges=merges))
    assert_same(whole, batched_numpy.train(symbols, REPEATED, MergeTask(merges=merges)))
    first = triples_of(whole.pairs)[:replayed]
    halfway = merge_host.apply_merges(symbols, first)
    assert_same_words(halfway, batched_numpy.apply_merges(symbols, first))
    rest = merge_host.train(halfway, REPEATED, MergeTask(merges=merges - len(first)))
    assert [*first[:, :2].tolist(), *rest.pairs.tolist()] == whole.pairs.tolist()
    assert rest.symbols == whole.symbols


def test_a_longer_text_gives_what_numpy_gives() -> None:
    words = symbol_words([make_text(8, 8000)], "none")
    expected = batched_numpy.train(words, REPEATED, MergeTask(merges=2000))
    assert_same(merge_host.train(words, REPEATED, MergeTask(merges=2000)), expected)


@settings(deadline=None, max_examples=examples(200))
@given(WORDS, st.integers(1, 3), st.none() | st.integers(2, 7), st.integers(2, 40))
def test_few_pairs_at_a_time_give_the_same_merges(
    words: dict[bytes, int], least: int, longest: int | None, most_pairs: int
) -> None:
    options = TrainingOptions(1000, min_frequency=least, max_token_length=longest)
    symbols = byte_symbols(distinct(words), byte_ranks("hf"))
    trainer = merge_host.Trainer(symbols, 60, least=least, longest=longest, most_pairs=most_pairs)
    pairs, counts = trainer.train(60, 1 << 40)
    assert_same(
        Merges(pairs, counts, trainer.total),
        batched_numpy.train(symbols, options, MergeTask(merges=60)),
    )


def test_a_longer_text_with_few_pairs_at_a_time() -> None:
    """Random bytes have many equally frequent pairs, more of them than are indexed at a time."""
    text = np.random.default_rng(2).integers(0, 256, 30_000, np.uint8).tobytes()
    symbols = symbol_words([text, make_text(8, 8000)], "none")
    trainer = merge_host.Trainer(symbols, 3000, least=2, most_pairs=2000)
    pairs, counts = trainer.train(3000, 1 << 40)
    expected = batched_numpy.train(symbols, REPEATED, MergeTask(merges=3000))
    assert_same(Merges(pairs, counts, trainer.total), expected)


def test_little_memory_is_enough_for_few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = merge_host.memory_costs(10**6, 10**7)
    assert usual is merge_host.ENGINE_COSTS
    free = usual.of(10**6, 10**7) - 1
    monkeypatch.setattr(merge_host, "free_memory", lambda: free)
    assert merge_host.memory_costs(10**6, 10**7) is merge_host.LITTLE_COSTS
    monkeypatch.setattr(merge_host, "free_memory", lambda: None)
    assert merge_host.memory_costs(10**6, 10**7) is usual
    words = symbol_words([make_text(8, 8000)], "none")
    expected = merge_host.train(words, REPEATED, MergeTask(merges=200))
    monkeypatch.setattr(merge_host, "LITTLE_COSTS", usual._replace(fixed=0))
    monkeypatch.setattr(merge_host, "free_memory", lambda: usual.fixed)
    monkeypatch.setattr(merge_host, "FEW_PAIRS", 20)
    assert_same(merge_host.train(words, REPEATED, MergeTask(merges=200)), expected)


@pytest.mark.parametrize("engine", ["c", "numpy"])
def test_too_little_memory_is_said_before_merging(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.VARIABLE, engine)
    monkeypatch.setattr(merge_host, "free_memory", lambda: 5_000_000)
    needed, remedy = {"c": (185, "use less"), "numpy": (11, "use the CPU engine.* or use less")}[
        engine
    ]
    message = rf"^merging 1 distinct .* up to {needed} MB .* 5 MB are free: {remedy} text"
    with pytest.raises(InputError, match=message):
        merge_host.train(
            symbol_words([b"ab" * 500], "none"), TrainingOptions(300), MergeTask(merges=3)
        )


@settings(deadline=None, max_examples=examples(200))
@given(WORDS, TOKENS, st.randoms())
def test_a_symbol_is_made_in_several_ways(
    words: dict[bytes, int], spelled: list[bytes], random: Random
) -> None:
    tokens = BYTES + spelled
    symbol_of = {token: symbol for symbol, token in enumerate(tokens)}
    ways = [
        (symbol_of[token[:cut]], symbol_of[token[cut:]], symbol_of[token])
        for token in spelled
        for cut in range(1, len(token))
        if token[:cut] in symbol_of and token[cut:] in symbol_of
    ]
    random.shuffle(ways)
    merges = np.array(ways, np.uint32).reshape(-1, 3)
    symbols = words_of_tokens(words, tokens)
    expected = batched_numpy.apply_merges(symbols, merges)
    assert_same_words(merge_host.apply_merges(symbols, merges), expected)


@pytest.mark.parametrize("runs", [[4], [5], [2, 4], [4, 6, 3]])
def test_counts_after_a_merge_into_a_symbol_that_is_there_already(runs: list[int]) -> None:
    """It is before a merged pair, as are symbols that the same merge has just made."""
    made = 256
    words = [[made] + [97] * run for run in runs]
    symbols = SymbolWords(
        np.array([symbol for word in words for symbol in word], np.uint32),
        np.cumsum([0, *map(len, words)]),
        np.arange(1, len(runs) + 1),
        np.array([1] * 256 + [2], np.uint32),
        sum((k + 1) * len(word) for k, word in enumerate(words)),
    )
    trainer = merge_host.Trainer(symbols, 1)
    trainer.merge(np.array([[97, 97, made]], np.uint32))
    expected = sum((k + 1) * (run // 2) for k, run in enumerate(runs))
    (pairs, counts), _ = trainer.merge_best(Spellings([*BYTES, b"aa"], []))
    assert (pairs.tolist(), counts.tolist()) == ([[made, made]], [expected])


@settings(deadline=None, max_examples=examples(100))
@given(WORDS, TOKENS)
def test_symbols_that_no_merge_has_made_are_reached(
    words: dict[bytes, int], spelled: list[bytes]
) -> None:
    tokens = BYTES + spelled
    symbols, new = words_of_tokens(words, tokens), range(256, len(tokens))
    trained = merge_host.train(
        symbols, REPEATED, MergeTask(merges=20, spellings=Spellings(tokens, new))
    )
    expected = batched_numpy.train(
        symbols, REPEATED, MergeTask(merges=20, spellings=Spellings(tokens, new))
    )
    assert_same(trained, expected)


def test_words_of_long_symbols() -> None:
    """The engine has a cell for each byte of a symbol, and those inside of one hold no symbol."""
    rng = np.random.default_rng(1)
    lengths = np.array([1] * 256 + [2, 3, 4, 9, 17], np.uint32)
    symbols = rng.choice(np.array([0, 1, *range(256, 261)], np.uint32), 60_000)
    offsets = np.arange(0, len(symbols) + 1, 6)
    counts = np.ones(len(offsets) - 1, np.int64)
    words = SymbolWords(symbols, offsets, counts, lengths, len(symbols))
    expected = batched_numpy.train(words, REPEATED, MergeTask(merges=20))
    assert_same(merge_host.train(words, REPEATED, MergeTask(merges=20)), expected)
    merges = np.column_stack([expected.pairs, np.arange(261, 281, dtype=np.uint32)])
    expected_words = batched_numpy.apply_merges(words, merges)
    assert_same_words(merge_host.apply_merges(words, merges), expected_words)


def test_progress_of_replaying_ends_at_the_number_of_merges() -> None:
    words = symbol_words([b"abcabc"], "class")
    merges = np.array([[97, 98, 256], [256, 99, 257], [1, 2, 258]], np.uint32)
    for engine in (merge_host, batched_numpy):
        seen: list[tuple[str, int, int | None]] = []
        engine.apply_merges(words, merges, lambda *call: seen.append(call))  # noqa: B023
        assert seen[-1] == ("replaying merges", 3, 3)


def test_more_symbols_than_can_be_numbered_are_not_replayed() -> None:
    words = symbol_words([b"abab"], "class")
    merges = np.array([[97, 98, 1 << 20]], np.uint32)
    for engine in (merge_host, batched_numpy):
        with pytest.raises(LlmgpuError, match="1048577 tokens"):
            engine.apply_merges(words, merges)


def test_a_result_for_which_there_is_no_room_is_refused() -> None:
    trainer = merge_host.Trainer(symbol_words([b"abab"], "class"), 1)
    with pytest.raises(ValueError, match="a merge has a symbol that does not exist"):
        trainer.merge(np.array([[97, 98, 257]], np.uint32))
    trainer.merge(np.array([[97, 98, 256]], np.uint32))


@pytest.mark.parametrize(
    "merges", [[0, 1, 2], [97, 300, 256], [97, 98, 256, 97, 256, 256], [97, 98, 257, 97, 256, 257]]
)
def test_a_result_of_other_bytes_is_refused(merges: list[int]) -> None:
    words = symbol_words([b"abab"], "class")
    with pytest.raises(ValueError, match="a merge has a symbol that does not exist"):
        merge_host.apply_merges(words, np.array(merges, np.uint32).reshape(-1, 3))


@pytest.mark.parametrize("occurrences", [1, 1 << 22])
def test_what_is_learned_is_handed_over_in_its_order(
    occurrences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_host, "SLICE_OCCURRENCES", occurrences)
    words = symbol_words([make_text(6, 300)], "class")
    pieces: list[tuple[NDArray[np.uint32], NDArray[np.int64]]] = []
    seen: list[tuple[str, int, int | None]] = []
    trained = merge_host.train(
        words,
        REPEATED,
        MergeTask(
            merges=50,
            on_merges=lambda pairs, counts: pieces.append((pairs, counts)),
            progress=lambda *call: seen.append(call),
        ),
    )
    assert len(pieces) == (50 if occurrences == 1 else 1)
    assert np.concatenate([pairs for pairs, _ in pieces]).tolist() == trained.pairs.tolist()
    assert np.concatenate([counts for _, counts in pieces]).tolist() == trained.counts.tolist()
    assert seen[-1] == ("merging", 50, 50)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_what_can_not_be_numbered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = symbol_words([b"abcdef"], "none")
    with pytest.raises(LlmgpuError, match=r"1048577 tokens asked for.* 1048576"):
        merge_host.train(words, REPEATED, MergeTask(merges=(1 << 20) - 255))
    monkeypatch.setattr(batched_numpy, "MAX_POSITIONS", 7)
    with pytest.raises(LlmgpuError, match="8 positions, but the limit is 7"):
        merge_host.train(words, REPEATED, MergeTask(merges=9))


def test_numpy_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    words = symbol_words([make_text(7, 300)], "class")
    trained = merge_host.train(words, REPEATED, MergeTask(merges=50))
    monkeypatch.setenv(library.VARIABLE, "numpy")
    without = merge_host.train(words, REPEATED, MergeTask(merges=50))
    assert_same(trained, without)
    assert without.batches is not None and without.batches < 50


def test_pairs_that_two_merges_make_are_merged_from_the_left() -> None:
    """The second adds to the list of a pair what lies before the positions of the first."""
    symbols = byte_symbols(distinct({b"cdababab": 1, b"abcdabcdcd": 2}), byte_ranks("bytes"))
    a, b, c, d = b"abcd"
    merges = np.array([[a, b, 256], [c, d, 256], [256, 256, 257]], np.uint32)
    expected = batched_numpy.apply_merges(symbols, merges)
    assert sorted(expected.symbols.tolist()) == [256, 257, 257, 257, 257]
    assert_same_words(merge_host.apply_merges(symbols, merges), expected)
