"""The slow trainer that everything is compared with, against Hugging Face's and by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.reference import bpe as reference

ASCII_CLASS = r" *[A-Za-z]+| *[0-9]+| +|\n|[^\n A-Za-z0-9]+"
UNICODE_CLASS = r" *[A-Za-z\x{80}-\x{10ffff}]+| *[0-9]+| +|\n|[^\n A-Za-z0-9\x{80}-\x{10ffff}]+"


def hugging_face_merges(
    documents: list[str], merges: int, expression: str, min_frequency: int
) -> list[tuple[bytes, bytes]]:
    tokenizers = pytest.importorskip("tokenizers")
    pre = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(tokenizers.Regex(expression), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + merges,
        min_frequency=min_frequency,
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    bytes_of = {character: byte for byte, character in reference.bytes_to_unicode().items()}
    found: list[Any] = json.loads(tokenizer.to_str())["model"]["merges"]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in found]
    return [tuple(bytes(bytes_of[c] for c in part) for part in pair) for pair in pairs]


def assert_same_merges(
    documents: list[str], merges: int, expression: str, min_frequency: int
) -> None:
    encoded = [document.encode() for document in documents]
    learned = reference.train(encoded, merges, "class", "hf", min_frequency)
    tokens = reference.spell(learned)
    spelled = [(tokens[left], tokens[right]) for left, right in learned]
    assert spelled == hugging_face_merges(documents, merges, expression, min_frequency)


RUNS = st.lists(st.tuples(st.sampled_from("ab ab09.\n\t-"), st.integers(1, 9)), max_size=25).map(
    lambda runs: "".join(character * length for character, length in runs)
)


@settings(deadline=None, max_examples=examples(60))
@given(documents=st.lists(RUNS, max_size=4), min_frequency=st.integers(0, 4))
def test_runs_as_hugging_face(documents: list[str], min_frequency: int) -> None:
    assert_same_merges(documents, 30, ASCII_CLASS, min_frequency)


@settings(deadline=None, max_examples=examples(60))
@given(documents=st.lists(st.text(st.characters(codec="ascii")), max_size=4))
def test_ascii_as_hugging_face(documents: list[str]) -> None:
    assert_same_merges(documents, 40, ASCII_CLASS, 1)


@settings(deadline=None, max_examples=examples(60))
@given(documents=st.lists(st.text("a\u00e9\u0131 \u4e2d\U0001f600\u00ad1.\n"), max_size=4))
def test_unicode_as_hugging_face(documents: list[str]) -> None:
    assert_same_merges(documents, 40, UNICODE_CLASS, 1)


@pytest.mark.parametrize("text", ["aaaa", "aaa aaaa aaaaa", "aaaaaaaa bbbbbbbb abababab aabbaabb"])
def test_known_runs_as_hugging_face(text: str) -> None:
    assert_same_merges([text], 30, ASCII_CLASS, 1)


def test_worked_example() -> None:
    # aa 4 times, ab twice: "aa" -> X; Xab XXab aXc hold Xa 2, ab 2: the lower left id first.
    learned = reference.train([b"aaabdaaabac"], 3, "class", "bytes", 2)
    assert learned == [(97, 97), (97, 98), (256, 257)]


def test_runs_merge_from_the_left() -> None:
    assert reference.merge_word(b"aaa", (97, 97), 256) == (256, 97)
    assert reference.merge_word(b"aaaa", (97, 97), 256) == (256, 256)
    assert reference.merge_word(b"baaab", (97, 97), 256) == (98, 256, 97, 98)


def test_merges_stay_inside_pre_tokens_and_documents() -> None:
    assert reference.train([b"a.a.a.a."], 5, "class", "bytes", 1) == []
    assert reference.train([b"a", b"b", b"a", b"b"], 5, "none", "bytes", 1) == []
    assert reference.train([b""], 5, "class", "bytes", 0) == []


def test_tie_rules_differ() -> None:
    # As characters, 0x80 is U+0122 and 0xFF is U+00FF: Hugging Face's order turns theirs round.
    documents = [b"\x80\x80", b"\xff\xff"]
    assert reference.train(documents, 1, "none", "bytes", 1) == [(0x80, 0x80)]
    assert reference.train(documents, 1, "none", "hf", 1) == [(0xFF, 0xFF)]


def test_min_frequency_stops() -> None:
    assert reference.train([b"ab ab cd"], 5, "class", "bytes", 2) == [(97, 98)]
    assert len(reference.train([b"ab ab cd"], 9, "class", "bytes", 0)) == 4


def test_greedy() -> None:
    tokens = {b"a": 0, b"ab": 1, b"abc": 2, b" ": 3, b" ab": 4, b"cd": 5}
    assert reference.greedy(b"abcd ababc", tokens, "class", unknown=9) == [2, 9, 4, 2]
    with pytest.raises(KeyError):
        reference.greedy(b"d", tokens, "class")
