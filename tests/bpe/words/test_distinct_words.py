"""Distinct words: what they add up to, in Python's integers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.pretokens.slices import word_too_long
from llmgpu.bpe.words.distinct_words import MAX_TEXT_BYTES, add_up, join
from llmgpu.errors import InputError
from tests.bpe.word_lists import as_words, listed

WORD = st.lists(st.sampled_from(b"\x00\x00ab\xff"), min_size=1, max_size=20).map(bytes)
PIECE = st.dictionaries(WORD, st.integers(1, 1 << 50), max_size=12)


@given(counts=st.dictionaries(WORD, st.integers(1, (1 << 63) - 1), max_size=12))
def test_totals_are_exact(counts: dict[bytes, int]) -> None:
    words = as_words(counts)
    assert len(words) == len(counts)
    assert words.lengths.tolist() == [len(word) for word in counts]
    assert words.text_bytes == sum(len(word) * count for word, count in counts.items())
    assert [words.spell(k) for k in range(len(words))] == list(counts)
    assert words.nbytes == len(words.data) + 8 * len(counts) + 8 * (len(counts) + 1)


@given(counts=PIECE, cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)))
def test_ranges_are_slices(counts: dict[bytes, int], cuts: tuple[int, int]) -> None:
    first, last = sorted(min(cut, len(counts)) for cut in cuts)
    taken = as_words(counts).take_range(first, last)
    assert listed(taken) == list(counts.items())[first:last]
    assert taken.offsets[0] == 0
    assert taken.offsets[-1] == len(taken.data)


@given(pieces=st.lists(PIECE, max_size=5))
def test_sums_are_sorted(pieces: list[dict[bytes, int]]) -> None:
    total: Counter[bytes] = Counter()
    for piece in pieces:
        total.update(piece)
    result = add_up([as_words(piece) for piece in pieces])
    assert listed(result) == sorted(total.items())
    dtypes = [array.dtype for array in (result.data, result.offsets, result.counts)]
    assert dtypes == [np.uint8, np.int64, np.int64]


def test_joined_words_keep_their_order() -> None:
    joined = join([as_words({b"b": 1}), as_words({}), as_words({b"a": 2, b"c": 3})])
    assert listed(joined) == [(b"b", 1), (b"a", 2), (b"c", 3)]
    assert listed(join([])) == []


@pytest.mark.parametrize("word", [b"a", b"abc"])
def test_no_sum_overflows(word: bytes) -> None:
    most = {word: MAX_TEXT_BYTES // len(word)}
    left = MAX_TEXT_BYTES % len(word)
    exact = add_up([as_words(most), as_words({bytes([k]): 1 for k in range(left)})])
    assert exact.text_bytes == MAX_TEXT_BYTES
    with pytest.raises(InputError, match="more than 9,223,372,036,854,775,807 bytes"):
        add_up([exact, as_words({b"z": 1})])


def test_the_error_of_a_word_that_is_too_long_names_the_limit() -> None:
    assert "1,073,741,825 bytes or more, but the limit is 1,073,741,824" in str(
        word_too_long((1 << 30) + 1)
    )
