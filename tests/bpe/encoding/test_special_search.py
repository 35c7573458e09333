"""Many byte strings searched for at once, against a loop over positions and strings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.encoding.special_search import search_for

TEXT = st.lists(st.sampled_from([b"<", b"|", b"a", b"b", b".", b"\n", b"\xff"]), max_size=12).map(
    b"".join
)


def first_of(texts: list[bytes], data: bytes, borders: list[int]) -> tuple[int, int] | None:
    """Find the leftmost, then the longest, that no border is within."""
    for begin in range(len(data)):
        for text in sorted(texts, key=len, reverse=True):
            end = begin + len(text)
            if data[begin:end] == text and not any(begin < border < end for border in borders):
                return begin, end
    return None


@given(
    st.lists(TEXT.filter(len), min_size=1, max_size=12),
    TEXT,
    st.lists(st.integers(0, 12), max_size=3).map(sorted),
)
def test_the_longest_of_the_leftmost_is_found(
    texts: list[bytes], data: bytes, borders: list[int]
) -> None:
    borders = [border for border in borders if border <= len(data)]
    assert search_for(texts).find(data, 0, borders) == first_of(texts, data, borders)


def test_strings_that_are_beginnings_of_each_other() -> None:
    texts = [b"a" * length for length in range(1, 300)]
    search = search_for(texts)
    assert search.longest == 299
    for length in (1, 49, 50, 51, 52, 200, 299, 1500):
        assert search.find(b"-" + b"a" * length, 0, []) == (1, 1 + min(length, 299))


def test_one_of_many_is_found_by_few_comparisons() -> None:
    search = search_for([f"<|special{number}|>".encode() for number in range(1070)])
    expression = search.pattern.pattern
    assert expression.count(b"special") == 1
    assert search.find(b"<|" * 1000 + b"<|special1069|>", 0, []) == (2000, 2015)
