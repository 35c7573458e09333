"""The batched trainer against one that counts all pairs again for every merge."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.training import batched_numpy
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import (
    Merges,
    MergeTask,
    Spellings,
    SymbolWords,
    byte_symbols,
    translate,
)
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.bpe.words.count_host import count_words
from llmgpu.errors import LlmgpuError
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.word_lists import byte_ids
from tests.conftest import examples
from tests.reference import bpe as reference

REPEATED = TrainingOptions(256)  # merge pairs that occur twice or more

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
) -> Merges:
    return batched_numpy.train(
        symbol_words(documents, pattern, tie),
        TrainingOptions(256, min_frequency=min_frequency),
        MergeTask(merges=merges),
    )


def symbol_words(documents: list[bytes], pattern: str, tie: str = "hf") -> SymbolWords:
    words = count_words(corpus_from_bytes(documents), pattern)
    return byte_symbols(words, byte_ranks(tie))


def id_pairs(merges: Merges, tie: str) -> list[tuple[int, int]]:
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


@settings(deadline=None, max_examples=examples(300))
@given(DOCUMENTS, st.integers(0, 40), PATTERNS, TIES, st.integers(0, 4))
def test_merges_of_the_sequential_algorithm(
    documents: list[bytes], merges: int, pattern: str, tie: str, min_frequency: int
) -> None:
    check(documents, merges, pattern, tie, min_frequency)


@settings(deadline=None, max_examples=examples(150))
@given(DOCUMENTS, PATTERNS, st.integers(1, 5), st.integers(1, 9))
def test_sizes_of_batches_and_lists_do_not_matter(
    documents: list[bytes], pattern: str, batch: int, short_list: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_numpy, "MAX_BATCH", batch)
        patch.setattr(batched_numpy, "SHORT_LIST", short_list)
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
    documents = [make_text(seed, 1000) for seed in (1, 2)]
    check(documents, 200, "class", tie, 2)


def test_merges_of_a_short_text() -> None:
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
    trained = batched_numpy.train(words, REPEATED, MergeTask(merges=9))
    assert id_pairs(trained, "hf") == [(97, 98), (256, 256)]
    assert trained.counts.tolist() == [2 << 40, 1 << 40]
    assert trained.symbols == 1 << 40


def test_progress_counts_merges() -> None:
    seen: list[tuple[str, int, int | None]] = []
    words = symbol_words([make_text(4, 100)], "class")
    batched_numpy.train(
        words, REPEATED, MergeTask(merges=20, progress=lambda *call: seen.append(call))
    )
    assert seen[-1] == ("merging", 20, 20)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})


def test_too_many_merges_are_refused() -> None:
    words = symbol_words([b"abab"], "class")
    with pytest.raises(LlmgpuError, match=r"1048577 tokens asked for.* 1048576"):
        batched_numpy.train(words, REPEATED, MergeTask(merges=(1 << 20) - 255))


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_numpy, "MAX_POSITIONS", 8)
    assert len(train([b"abcdef"], 9, "none", "hf", 1).pairs) == 5  # and a separator at each end
    with pytest.raises(LlmgpuError, match="9 positions, but the limit is 8"):
        train([b"abcdefg"], 9, "none", "hf", 1)


@settings(deadline=None, max_examples=examples(150))
@given(DOCUMENTS, PATTERNS, TIES, st.integers(0, 3), st.integers(1, 7))
def test_no_token_is_longer_than_allowed(
    documents: list[bytes], pattern: str, tie: str, min_frequency: int, longest: int
) -> None:
    trained = batched_numpy.train(
        symbol_words(documents, pattern, tie),
        TrainingOptions(256, min_frequency=min_frequency, max_token_length=longest),
        MergeTask(merges=30),
    )
    expected = reference.train(documents, 30, pattern, tie, min_frequency, longest)
    assert id_pairs(trained, tie) == expected


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_the_longest_token_is_one_byte_shorter_than_that_of_tokenizers(longest: int) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    text = make_text(5, 400)
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = level
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=356,
        min_frequency=2,
        initial_alphabet=level.alphabet(),
        max_token_length=longest + 1,
        show_progress=False,
    )
    pieces = [piece.decode() for piece in reference.pre_tokens(text, "class")]
    tokenizer.train_from_iterator(pieces, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    words = symbol_words([text], "class")
    trained = batched_numpy.train(
        words, TrainingOptions(256, max_token_length=longest), MergeTask(merges=100)
    )
    shown = reference.bytes_to_unicode()
    tokens = [
        "".join(shown[byte] for byte in token) for token in reference.spell(id_pairs(trained, "hf"))
    ]
    expected = [(tokens[left], tokens[right]) for left, right in id_pairs(trained, "hf")]
    assert [tuple(pair) for pair in merges] == expected


def triples_of(pairs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.column_stack([pairs, np.arange(256, 256 + len(pairs))]).astype(np.uint32)


@settings(deadline=None, max_examples=examples(200))
@given(DOCUMENTS, PATTERNS, st.integers(0, 40), st.integers(0, 3))
def test_training_resumes_from_replayed_merges(
    documents: list[bytes], pattern: str, replayed: int, min_frequency: int
) -> None:
    words = symbol_words(documents, pattern)
    whole = batched_numpy.train(
        words, TrainingOptions(256, min_frequency=min_frequency), MergeTask(merges=40)
    )
    first = triples_of(whole.pairs)[:replayed]
    rest = batched_numpy.train(
        batched_numpy.apply_merges(words, first),
        TrainingOptions(256, min_frequency=min_frequency),
        MergeTask(merges=40 - len(first)),
    )
    assert np.concatenate([first[:, :2], rest.pairs]).tolist() == whole.pairs.tolist()
    assert rest.counts.tolist() == whole.counts[replayed:].tolist()
    assert rest.symbols == whole.symbols


def spelled_words(words: SymbolWords) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for k, count in enumerate(words.counts.tolist()):
        found[tuple(words.symbols[words.offsets[k] : words.offsets[k + 1]].tolist())] += count
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_any_merges_are_replayed_in_their_order(data: st.DataObject) -> None:
    """Absent pairs, repeated ones, runs, and results that are there already."""
    letters = st.lists(st.integers(0, 3), max_size=12).map(bytes)
    counted = Counter(data.draw(st.lists(letters, max_size=12)))
    pieces = [list(piece) for piece in counted]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    words = SymbolWords(
        np.array([symbol for piece in pieces for symbol in piece], np.uint32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array(list(counted.values()), np.int64),
        np.ones(4, np.uint32),
        sum(len(piece) * weight for piece, weight in counted.items()),
    )
    merges: list[tuple[int, int, int]] = []
    size = 4
    for _ in range(data.draw(st.integers(0, 12))):
        part = st.integers(0, size - 1)
        result = data.draw(st.one_of(st.just(size), part))
        merges.append((data.draw(part), data.draw(part), result))
        size = max(size, result + 1)
    replayed = batched_numpy.apply_merges(words, np.array(merges, np.uint32).reshape(-1, 3))
    expected: Counter[tuple[int, ...]] = Counter()
    total = 0
    for piece, weight in counted.items():
        word = tuple(piece)
        for left, right, result in merges:
            word = reference.merge_word(word, (left, right), result)
        total += len(word) * weight
        if len(word) > 1:
            expected[word] += weight
    assert spelled_words(replayed) == expected
    assert (replayed.total, len(replayed.lengths)) == (total, size)


def test_merges_are_handed_over_in_their_order() -> None:
    words = symbol_words([make_text(6, 300)], "class")
    pieces: list[tuple[NDArray[np.uint32], NDArray[np.int64]]] = []
    trained = batched_numpy.train(
        words,
        REPEATED,
        MergeTask(merges=50, on_merges=lambda pairs, counts: pieces.append((pairs, counts))),
    )
    assert np.concatenate([pairs for pairs, _ in pieces]).tolist() == trained.pairs.tolist()
    assert np.concatenate([counts for _, counts in pieces]).tolist() == trained.counts.tolist()
    assert len(pieces) == trained.batches


def test_a_batch_ends_with_a_merge_that_spells_an_existing_token() -> None:
    documents = [b"ab"] * 5 + [b"cd"] * 4 + [b"ef"] * 3 + [b"gh"] * 2
    words = symbol_words(documents, "none", "bytes")
    existing = [*(bytes([value]) for value in range(256)), b"ef"]
    batches: list[list[list[int]]] = []
    batched_numpy.train(
        replace(words, lengths=np.array([len(token) for token in existing], np.uint32)),
        REPEATED,
        MergeTask(
            merges=9,
            spellings=Spellings(existing, [256]),
            on_merges=lambda pairs, _: batches.append(pairs.tolist()),
        ),
    )
    assert batches == [[list(b"ab"), list(b"cd"), list(b"ef")], [list(b"gh")]]


def test_the_first_symbol_after_the_bytes() -> None:
    """Symbol 256 is not taken for symbol 0, which is what a byte would hold of it."""
    symbols = np.array([256, 5, 0, 5, 256, 5, 0, 5, 0, 5, 256, 5], np.uint32)
    lengths = np.ones(257, np.uint32)
    words = SymbolWords(symbols, np.array([0, 12]), np.ones(1, np.int64), lengths, 12)
    trained = batched_numpy.train(words, TrainingOptions(300), MergeTask(merges=2))
    assert trained.pairs.tolist() == [[0, 5], [256, 5]]
    assert trained.counts.tolist() == [3, 3]
