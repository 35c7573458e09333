"""The words of a slice and their places, against a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.arrays import PADDING, offsets_of
from llmgpu.bpe.words.distinct_words import number_words

# Words that differ little: in length only (NUL bytes), in one byte, at either end.
LETTERS = st.sampled_from(b"\x00\x00ab\xff")
WORD = st.one_of(
    st.lists(LETTERS, min_size=1, max_size=20).map(bytes),
    st.builds(
        lambda head, size, tail: head + b"\x00" * size + tail,
        st.lists(LETTERS, max_size=2).map(bytes),
        st.integers(1, 300),
        st.lists(LETTERS, max_size=2).map(bytes),
    ),
)


def assert_numbered(words: Sequence[bytes]) -> None:
    padded = np.frombuffer(b"".join(words) + b"x" * PADDING, np.uint8)
    bounds = offsets_of(np.array([len(word) for word in words], np.int64))
    distinct, numbers = number_words(padded, bounds)
    assert sorted(distinct) == sorted(set(words))
    assert [distinct[number] for number in numbers.tolist()] == list(words)


@settings(deadline=None)
@given(words=st.lists(WORD, max_size=100))
def test_numbers_are_those_of_a_dictionary(words: list[bytes]) -> None:
    assert_numbered(words)


@settings(deadline=None)
@given(words=st.lists(st.lists(LETTERS, min_size=1, max_size=3).map(bytes), max_size=400))
def test_short_words_that_occur_often(words: list[bytes]) -> None:
    assert_numbered(words)


@settings(deadline=None)
@given(words=st.lists(WORD, max_size=40), times=st.integers(1, 3))
def test_words_that_are_repeated(words: list[bytes], times: int) -> None:
    assert_numbered(words * times)


def test_words_of_each_length_and_last_byte() -> None:
    """Keys hold bytes and length: no byte may be taken for a length, nor the reverse."""
    for letter in (b"\x00", b"a", b"\xff"):
        words = [letter * n + bytes([last]) for n in range(18) for last in range(256)]
        assert_numbered([*words, *words[::-1]])


def test_a_very_long_word_and_its_variants() -> None:
    long = bytes(range(256)) * 4096
    assert_numbered([long, long + b"x", b"x" + long, long, long[:-1], b"x"])
