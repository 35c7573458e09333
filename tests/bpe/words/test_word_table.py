"""The numbers that a word table gives, against a dictionary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.words import word_table
from llmgpu.bpe.words.word_table import LONGEST_HASHED, WordTable
from tests.conftest import examples

# Words that differ little: in length only (NUL bytes), in one byte, at either end.
LETTERS = st.sampled_from(b"\x00\x00ab\xff")
WORD = st.one_of(
    st.lists(LETTERS, min_size=1, max_size=20).map(bytes),
    st.builds(
        lambda head, size, tail: head + b"\x00" * size + tail,
        st.lists(LETTERS, max_size=2).map(bytes),
        st.integers(1, LONGEST_HASHED + 3),
        st.lists(LETTERS, max_size=2).map(bytes),
    ),
)


def number(table: WordTable, words: list[bytes]) -> list[int]:
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    padded = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
    numbers = table.number(padded, starts, ends)
    return [int(number) for number in numbers]


def assert_numbered(pieces: list[list[bytes]]) -> None:
    """Each distinct word gets one number, and the table has its bytes under it."""
    table = WordTable()
    known: dict[bytes, int] = {}
    for piece in pieces:
        numbers = number(table, piece)
        assert all(known.setdefault(word, k) == k for word, k in zip(piece, numbers, strict=True))
        assert sorted(known.values()) == list(range(len(table))) == list(range(len(known)))
    data, offsets = table.data.tobytes(), table.offsets.tolist()
    assert all(data[offsets[k] : offsets[k + 1]] == word for word, k in known.items())
    assert (table.data.dtype, table.offsets.dtype) == (np.dtype(np.uint8), np.dtype(np.int64))


@settings(deadline=None)
@given(pieces=st.lists(st.lists(WORD, max_size=30), max_size=4))
def test_numbers_are_those_of_a_dictionary(pieces: list[list[bytes]]) -> None:
    assert_numbered(pieces)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("_hash", lambda loads, starts, lengths: np.zeros_like(loads[starts])),
        ("_mix", np.zeros_like),
        ("_GOLDEN", np.uint64(0)),  # every search begins at the same slot
    ],
)
@settings(deadline=None, max_examples=examples(50))
@given(pieces=st.lists(st.lists(WORD, max_size=40), max_size=3))
def test_words_that_collide_are_told_apart(
    name: str, same: Callable[..., object] | np.uint64, pieces: list[list[bytes]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_table, name, same)
        assert_numbered(pieces)


@pytest.mark.parametrize("block", [100, 1000])
def test_many_words_in_small_blocks(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(word_table, "_BLOCK", block)
    monkeypatch.setattr(word_table, "_PENDING_BLOCK", 3 * block)
    words = [b"%d" % (k * k % 20011) * (1 + k % 3) for k in range(30_000)]
    assert_numbered([words[:100], words, words])


def test_slots_of_more_bits_as_the_table_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "_NARROW_BITS", 14)
    words = [b"%d" % (k * k % 20011) for k in range(30_000)]
    assert_numbered([words[:1000], words, words])


def test_words_of_each_length_and_last_byte() -> None:
    """Keys hold bytes and length: no byte may be taken for a length, nor the reverse."""
    for letter in (b"\x00", b"a", b"\xff"):
        words = [letter * n + bytes([last]) for n in range(18) for last in range(256)]
        assert_numbered([words, words[::-1]])


def test_a_very_long_word_and_its_variants() -> None:
    long = bytes(range(256)) * 4096
    assert_numbered([[long, long + b"x", b"x" + long, long, long[:-1], b"x"]])


def test_no_words() -> None:
    assert_numbered([[], []])


def test_memory_grows_with_the_words() -> None:
    table = WordTable()
    few = table.nbytes
    number(table, [b"%d" % k for k in range(100_000)])
    assert few + 100_000 * (5 + 16 + 16) < table.nbytes < few + 100_000 * (10 + 32 + 64)
    many = table.nbytes
    number(table, [bytes(1_000_000 + k) for k in range(3)])
    assert table.nbytes > many + 6_000_000  # in the table and in the dictionary


def look_up(table: WordTable, words: list[bytes]) -> list[int]:
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    padded = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
    return [int(number) for number in table.look_up(padded, starts, ends)]


@settings(deadline=None)
@given(known=st.lists(WORD, max_size=30), others=st.lists(WORD, max_size=30))
def test_words_that_are_not_in_the_table_have_no_number(
    known: list[bytes], others: list[bytes]
) -> None:
    table = WordTable()
    numbers = dict(zip(known, number(table, known), strict=True))
    size = len(table)
    assert look_up(table, known + others) == [numbers.get(word, -1) for word in known + others]
    assert len(table) == size


@pytest.mark.parametrize("length", [7, 8, 15, 16, LONGEST_HASHED, LONGEST_HASHED + 1, 5000])
def test_a_word_of_each_kind_that_is_not_in_the_table(length: int) -> None:
    table = WordTable()
    number(table, [b"first", b"a" * length])
    assert look_up(table, [b"b" * length, b"a" * length, b"a" * (length - 1)]) == [-1, 1, -1]
