"""Automata cut as the package regex and the instructions do."""

import importlib
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from llmgpu.bpe.pretokens import custom_regex, programs
from llmgpu.bpe.pretokens.programs import automata
from llmgpu.cpu.library import library
from llmgpu.tokenizer import Tokenizer
from tests.bpe.pretokens.test_programs import (
    DEEPSEEK,
    PUBLISHED,
    check,
    pattern_of,
    random_expression,
)

pytest.importorskip("regex")
pytestmark = pytest.mark.skipif(library() is None, reason="without the CPU engine")

NO_PLACES = np.empty(0, np.int64)
# Certain expressions, and expressions that go back or don't match at every first character.
STEPS = (
    r"\p{N}{1,3}",
    "[ab]+",
    r"\p{L}+",
    "[\u3042\u30fb\u4e2d]+",
    r"\s",
    "a|b|'",
    r"[^a\s]{2}",
    r"\s+(?!\S)|\s+",
    r"\p{Lu}\p{Ll}*",
    r"\s*[\r\n]+|\s+(?!\S)",
    "[ab]{2}(?=[ab])|a?B",
)
CHARACTERS = [*"aabAB  \n\r.'1S\u017f\u0301\u4e2d\u3042\u30fb\x00", "  ", "12345", "\ud800"]


def automata_of(*expressions: str) -> Any:
    """Return the tables that the engine gets for expressions, and the columns of pairs."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "automata", lambda *given: made.append(automata(*given)))
        assert programs.compiled.__wrapped__(expressions, importlib.import_module("regex"))
    return made[0]


def test_published_expressions_have_one_automaton_with_columns_of_pairs() -> None:
    for expressions in PUBLISHED[:-1]:
        tables, pairs = automata_of(*expressions)
        assert len(tables) == 1
        assert pairs is not None


def test_lists_of_expressions() -> None:
    rng, counts = Random(3), [0, 0]
    for _ in range(16):
        chosen = [rng.choice(STEPS) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.3:
            chosen.append(random_expression(rng))
        pattern = pattern_of(*chosen)
        if pattern.compiled() is None or (made := automata_of(*chosen)) is None:
            continue
        counts[len(made[0]) == len(chosen)] += 1
        for _ in range(40):
            text = "".join(rng.choices(CHARACTERS, k=rng.randint(1, 25)))
            encoded = text.encode(errors="surrogatepass")
            check(pattern, encoded, sorted({rng.randint(1, len(encoded)) for _ in range(2)})[:-1])
    assert min(counts) > 2


@pytest.mark.parametrize("last", [r"1\d\d(?=a)|1|\d+", r"1\d\d(?=a)|[2-9]+"])
def test_earlier_expressions_keep_their_place_when_the_last_one_goes_back(last: str) -> None:
    pattern = pattern_of(r"\p{N}{1,3}", last)
    for text in (b"123456", b"1231234", b"a12345678a", b"21312341"):
        check(pattern, text, [])


def test_bytes_that_are_no_characters() -> None:
    leads = b"\x00\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf4\xf5\xff"
    others = b"\x00\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xff"
    pattern = pattern_of(r"\P{L}|\p{L}")
    for lead, second, third in product(leads, others, others):
        text = bytes([lead, second, third])
        for after in (b"", b"\x80", b"\x80a", b"abc"):
            check(pattern, text + after, [])
    for lead, second in product(leads, others):
        check(pattern, bytes([lead]), [])
        check(pattern, bytes([lead, second]), [])


@pytest.mark.parametrize(
    ("expressions", "number", "has_pairs"),
    [
        ((r"\p{N}{1,29}", r"\s+(?!\S)|\p{L}+"), 1, True),
        ((r"\p{N}{1,31}", r"\s+(?!\S)|\p{L}+"), 0, False),  # more than 32 states of \p{N}
        (("a{1,400}b{1,400}", "a"), 2, True),
        (("".join(f"{letter}{{1,999}}" for letter in "abcdefg"),), 0, False),
        (("".join(f"{letter}{{1,999}}" for letter in "abe"),), 1, False),
        (("(?=ab)a",), 0, False),
        (("(?=a)[ab]+", "b"), 1, True),
        (("(?!a(?!b))[ab]+",), 0, False),
    ],
)
def test_tables_of_a_permitted_size(
    expressions: tuple[str, ...], number: int, has_pairs: bool
) -> None:
    made = automata_of(*expressions)
    assert (len(made[0]) if made else 0) == number
    assert (made is not None and made[1] is not None) == has_pairs
    rng = Random(5)
    for length in (1, 10, 40, 1000, 2500):
        text = "".join(rng.choices(["a", "b", "bbbb", "1" * 50, "e", "  ", "c"], k=length))[:length]
        check(pattern_of(*expressions), text.encode(), [])
    check(pattern_of(*expressions), b"a" * 100 + b"b" * 200 + b"1" * 70 + b" a", [])


@pytest.mark.parametrize("expression", ["a*[bB]", "a+b|c"])
def test_a_text_that_is_read_too_often_is_left_to_the_package(expression: str) -> None:
    program = pattern_of(expression).compiled()
    assert program is not None
    assert program.mark(np.frombuffer(b"a" * 1200, np.uint8), NO_PLACES) is not None
    text = np.frombuffer(b"a" * 1700, np.uint8)
    assert program.mark(text, NO_PLACES) is None
    check(pattern_of("a+"), text.tobytes(), [])
    marks = pattern_of(expression).start_mask(text, NO_PLACES)
    assert np.flatnonzero(marks).tolist() == [0]


def test_long_texts_have_the_ids_of_the_package() -> None:
    rng = Random(7)
    parts = [
        "a",
        " the",
        "  ",
        "\n",
        "12345",
        "\u4e2d\u6587",
        "\u3042\u30fb",
        "x" * 70,
        "na\u00efve",
        "\x00",
    ]
    texts = ["".join(rng.choices(parts, k=rng.randint(40, 400))) for _ in range(12)]
    texts += ["b" * 63 + " c" * 70, "b" * 64 + " c" * 70, "b" * 200]
    pattern = custom_regex.splits_name(DEEPSEEK)
    made = Tokenizer.train_from_iterator(texts, vocab_size=300, pattern=pattern, device="cpu")
    found = [made.encode(text, dtype=list) for text in texts]
    assert made.encode_batch(texts, dtype=list) == found
    for text, ids in zip(texts, found, strict=True):
        data = np.frombuffer(text.encode(), np.uint8)
        cuts = np.flatnonzero(pattern_of(*DEEPSEEK)._mark_by_regex(data, NO_PLACES))[1:]
        words = [part.tobytes().decode() for part in np.split(data, cuts)]
        assert ids == [token for word in words for token in made.encode(word, dtype=list)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom_regex, "compiled", lambda *_: None)
        plain = Tokenizer(made.vocabulary, "cpu")
        assert [plain.encode(text, dtype=list) for text in texts] == found
        trained = Tokenizer.train_from_iterator(
            texts, vocab_size=300, pattern=pattern, device="cpu"
        )
    assert trained.vocabulary.tokens == made.vocabulary.tokens
