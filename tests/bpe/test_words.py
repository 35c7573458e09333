"""Counts of distinct words against a Counter, however the text is cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe import word_table
from llmgpu.bpe.arrays import GrowableArray, concatenate_ranges
from llmgpu.bpe.corpus import corpus_from_bytes
from llmgpu.bpe.word_table import LONGEST_HASHED, WordTable
from llmgpu.bpe.words import DistinctWords, WordCounts, count_words
from tests.reference import bpe as reference

# Words that differ little: in length only (NUL bytes), in one byte, at either end.
LETTERS = st.sampled_from(b"\x00\x00ab\xff")
WORD = st.one_of(
    st.lists(LETTERS, min_size=1, max_size=20).map(bytes),
    st.builds(
        lambda size, tail: b"\x00" * size + tail,
        st.integers(1, LONGEST_HASHED + 3),
        st.lists(LETTERS, max_size=2).map(bytes),
    ),
)
TEXT = st.lists(st.sampled_from(b"    \n\nab\x00\xc3\xa9.7"), max_size=80).map(bytes)


def count(pieces: list[list[bytes]]) -> WordCounts:
    counts = WordCounts()
    for piece in pieces:
        ends = np.cumsum([len(word) for word in piece], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
        counts.add(np.frombuffer(b"".join(piece), np.uint8), starts, ends)
    return counts


def listed(words: DistinctWords) -> list[tuple[bytes, int]]:
    data, offsets = words.data.tobytes(), words.offsets.tolist()
    spelled = [data[start:end] for start, end in pairwise(offsets)]
    return list(zip(spelled, words.counts.tolist(), strict=True))


@settings(deadline=None)
@given(pieces=st.lists(st.lists(WORD, max_size=30), max_size=4))
def test_counts_by_first_occurrence(pieces: list[list[bytes]]) -> None:
    result = count(pieces).result()
    expected = Counter(word for piece in pieces for word in piece)  # keeps the first's order
    assert listed(result) == list(expected.items())
    assert (result.data.dtype, result.offsets.dtype) == (np.uint8, np.int64)
    assert result.counts.dtype == np.int64


@settings(deadline=None, max_examples=50)
@given(words=st.lists(WORD, max_size=60))
def test_words_with_equal_hashes_are_told_apart(words: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            word_table, "_hash", lambda loads, starts, lengths: np.zeros_like(loads[starts])
        )
        result = count([words]).result()
    assert listed(result) == list(Counter(words).items())


def test_many_words_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "_BLOCK", 1000)
    words = [b"%d" % (k * k % 20011) * (1 + k % 3) for k in range(60_000)]
    assert listed(count([words]).result()) == list(Counter(words).items())


def test_a_very_long_word_and_its_variants() -> None:
    long = bytes(range(256)) * 4096
    words = [long, long + b"x", b"x" + long, long, long[:-1], b"x"]
    assert listed(count([words]).result()) == list(Counter(words).items())


def test_nothing_to_count() -> None:
    assert listed(count([]).result()) == []
    assert listed(count([[], []]).result()) == []


def test_the_table_keeps_numbers_of_known_words() -> None:
    table = WordTable()
    text = np.frombuffer(b"abcabcabd", np.uint8)
    starts = np.array([0, 3, 6])
    first = table.number(text, starts, starts + 3)
    assert first[0] == first[1] != first[2]
    assert table.number(text, starts, starts + 3).tolist() == first.tolist()
    assert len(table) == 2
    spelled = {table.data[table.offsets[k] : table.offsets[k + 1]].tobytes() for k in range(2)}
    assert spelled == {b"abc", b"abd"}


@settings(deadline=None)
@given(
    documents=st.lists(TEXT, max_size=4),
    pattern=st.sampled_from(["class", "none"]),
    read_bytes=st.integers(1, 50),
)
def test_corpus_is_counted_the_same_in_any_pieces(
    documents: list[bytes], pattern: str, read_bytes: int
) -> None:
    result = count_words(corpus_from_bytes(documents), pattern, read_bytes=read_bytes)
    expected = Counter(w for text in documents for w in reference.pre_tokens(text, pattern))
    assert listed(result) == list(expected.items())


def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[str, int, int | None]] = []
    count_words(corpus_from_bytes(b"a b " * 100), "class", lambda *call: seen.append(call), 64)
    assert seen[-1] == ("counting words", 400, 400)


@given(pieces=st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=9))
def test_growable_array_is_a_list(pieces: list[list[int]]) -> None:
    array = GrowableArray(np.int32, capacity=1)
    for piece in pieces:
        array.append(np.array(piece, np.int64))
    flat = [value for piece in pieces for value in piece]
    assert array.values.tolist() == flat
    assert (len(array), array.values.dtype) == (len(flat), np.int32)
    array.truncate(3)
    assert array.values.tolist() == flat[:3]


@pytest.mark.parametrize("longest", [3, 3000, 200_000])
def test_concatenate_ranges(longest: int) -> None:
    values = np.arange(300_000)
    rng = np.random.default_rng(longest)
    starts, lengths = rng.integers(0, 100_000, 50), rng.integers(0, longest, 50)
    ranges = [values[s : s + n] for s, n in zip(starts, lengths, strict=True)]
    assert np.array_equal(concatenate_ranges(values, starts, lengths), np.concatenate(ranges))
