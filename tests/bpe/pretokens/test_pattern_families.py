"""The patterns that are rules on characters against the `regex` module, and where texts are cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Regex, pre_tokenizers

from llmgpu.bpe.pretokens import blocks as pattern_blocks
from llmgpu.bpe.pretokens import expressions, unicode_classes
from llmgpu.bpe.pretokens.names import PATTERNS
from tests.bpe.patterns import last_start, start_mask
from tests.reference import bpe as reference
from tests.reference.characters import CHARACTERS

FAMILIES = sorted(
    name for name, found in PATTERNS.items() if isinstance(found, pattern_blocks.RulePattern)
)

# What some pattern tells apart.
SPACES = [" ", " ", "\t", "\r", "\n", "\u00a0", "\u3000"]
CONTRACTIONS = ["'", "'s", "'\u017f", "'lL", "'Ve", "'r", "e"]
LETTERS = ["S", "a", "\u01c5", "\u02b0", "\u6f22", "\u0301", "\u093e", "\U0001d400"]
SIGNS = ["1", "\u0663", "\u00bd", "\U0001d7ce", "/", "/", ".", "!", "\U0001f44d", "\u200d"]
ALPHABET = [piece.encode() for piece in (*SPACES, *CONTRACTIONS, *LETTERS, *SIGNS)]
BROKEN = [bytes([value]) for value in b"\x80\xbf\xc5\xe6\xf0\xff"]


@st.composite
def adversarial_texts(draw: st.DrawFn) -> bytes:
    """Texts of a few pieces each, so that runs of them are met."""
    pieces = draw(st.lists(st.sampled_from([*ALPHABET, *BROKEN]), min_size=1, max_size=6))
    return b"".join(draw(st.lists(st.sampled_from(pieces), max_size=40)))


DOCUMENTS = st.lists(adversarial_texts(), min_size=1, max_size=3)


def begins_of(documents: list[bytes]) -> NDArray[np.int64]:
    return np.array(list(accumulate(map(len, documents[:-1]), initial=0)), np.int64)


def mask_of(documents: list[bytes], pattern: str) -> NDArray[np.bool_]:
    data = np.frombuffer(b"".join(documents), np.uint8)
    return start_mask(data, pattern, begins_of(documents))


def expected_mask(documents: list[bytes], pattern: str) -> NDArray[np.bool_]:
    """What the expression says, in an array."""
    mask = np.zeros(sum(map(len, documents)), np.bool_)
    for begin, document in zip(begins_of(documents), documents, strict=True):
        lengths = [len(piece) for piece in reference.pre_tokens(document, pattern)]
        mask[begin + np.cumsum([0, *lengths[:-1]], dtype=np.int64)[: len(lengths)]] = True
    return mask


@pytest.mark.parametrize("pattern", FAMILIES)
@given(documents=DOCUMENTS)
def test_mask_is_that_of_the_expression(pattern: str, documents: list[bytes]) -> None:
    np.testing.assert_array_equal(mask_of(documents, pattern), expected_mask(documents, pattern))


@pytest.mark.parametrize("pattern", FAMILIES)
def test_every_short_text(pattern: str) -> None:
    alphabet = [" ", "\n", "\t", "'", "s", "S", "\u6f22", "\u0301", "1", "/", "!"]
    documents = ["".join(text).encode() for text in product(alphabet, repeat=4)]
    np.testing.assert_array_equal(mask_of(documents, pattern), expected_mask(documents, pattern))


@pytest.mark.slow
@pytest.mark.pinned_regex
@pytest.mark.parametrize("pattern", FAMILIES)
def test_code_points_between_others(pattern: str) -> None:
    mixed = [*CHARACTERS[:0x3400], *CHARACTERS[0xA000:0xAC00], *CHARACTERS[0xF000:0x20000]]
    frame = "{0}a{0}B{0}1{0}{0} {0}\n{0}!{0}'{0}"
    text = "".join(map(frame.format, [*mixed, *CHARACTERS[::97]])).encode()
    np.testing.assert_array_equal(mask_of([text], pattern), expected_mask([text], pattern))


def test_the_first_and_last_characters_of_each_length() -> None:
    """One that is no letter goes with those after it; the bytes of none would be several."""
    for point in (0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF):
        text = f"{chr(point)}a".encode()
        assert mask_of([text], "cl100k").tolist() == [True] + [False] * (len(text) - 1)
    for surrogate in ("\ud800", "\udfff"):
        text = f"{surrogate}a".encode(errors="surrogatepass")
        assert mask_of([text], "cl100k").tolist() == [True, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", FAMILIES)
def test_every_code_point_alone(pattern: str) -> None:
    documents = [character.encode() for character in CHARACTERS]
    np.testing.assert_array_equal(np.flatnonzero(mask_of(documents, pattern)), begins_of(documents))


LONG = {
    "digits": "1234567890" * 500,
    "newline at the end of spaces": "a" + " " * 5000 + "\n",
    "newlines in spaces": "a \t \n" * 1000 + " " * 5000,
    "newlines behind a sign": "!" + "\n" * 5000 + " a!\r\n\r\n" * 20,
    "other letters": "\u6f22" * 3000 + "A" * 3000 + "\u6f22a" * 1000,
    "capitals": "A\u6f22" * 1500 + "B" * 5000,
    "contractions": "a" + "'s" * 2500 + " 'll" * 100,
    "marks": "!" + "\u0301" * 2000 + "!!" + "\u0301!" * 1000,
    "slashes": "!\n" + "/\n" * 2000 + "x//\u0301\n" * 1000,
    "single marks": "!\u0301\n/" * 1000,
}


@pytest.mark.parametrize("pattern", FAMILIES)
@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("block", [1 << 17, 1000])
def test_long_runs(monkeypatch: pytest.MonkeyPatch, pattern: str, name: str, block: int) -> None:
    monkeypatch.setattr(unicode_classes, "_BLOCK", block)
    documents = [LONG[name].encode(), LONG[name].encode() + b"x"]
    np.testing.assert_array_equal(mask_of(documents, pattern), expected_mask(documents, pattern))


@pytest.mark.parametrize("pattern", FAMILIES)
@given(documents=DOCUMENTS, block=st.integers(1, 40))
def test_blocks_of_any_size(pattern: str, documents: list[bytes], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unicode_classes, "_BLOCK", block)
        patch.setattr(expressions, "_BLOCK", block)
        found = mask_of(documents, pattern)
    np.testing.assert_array_equal(found, expected_mask(documents, pattern))


@pytest.mark.parametrize("pattern", FAMILIES)
@given(documents=DOCUMENTS)
def test_what_follows_a_start_does_not_depend_on_what_is_before(
    pattern: str, documents: list[bytes]
) -> None:
    data, begins = np.frombuffer(b"".join(documents), np.uint8), begins_of(documents)
    whole = start_mask(data, pattern, begins)
    for start in np.flatnonzero(whole):
        rest = start_mask(data[start:], pattern, begins[begins >= start] - start)
        np.testing.assert_array_equal(rest, whole[start:])


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@given(documents=DOCUMENTS, follows=adversarial_texts(), data=st.data())
def test_the_last_start_holds_whatever_follows(
    pattern: str, documents: list[bytes], follows: bytes, data: st.DataObject
) -> None:
    open_text = b"".join(documents)
    window = data.draw(st.sampled_from([4, 16, 1 << 12]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_blocks, "_WINDOW", window)
        array = np.frombuffer(open_text, np.uint8)
        start = last_start(array, pattern, begins_of(documents))
    going_on = [*documents[:-1], documents[-1] + follows]
    if open_text:
        assert expected_mask(going_on, pattern)[start]
    assert 0 <= start <= max(0, len(open_text) - 1)


@pytest.mark.parametrize("pattern", sorted(set(PATTERNS) - {"none"}))
@pytest.mark.parametrize("sentence", ["It's 12 words, or so.\n", "漢字を書く。\r\n", "не́ был "])
def test_the_last_start_is_near_the_end_of_plain_text(pattern: str, sentence: str) -> None:
    data = np.frombuffer((sentence * 5000).encode(), np.uint8)
    assert len(data) - last_start(data, pattern, np.zeros(1, np.int64)) <= 40


@pytest.mark.parametrize("line", ["12\n", "1 2 34,56\n", '"\u2588\u2581", \n', "-- --\r\n"])
@pytest.mark.parametrize("pattern", FAMILIES)
def test_starts_are_certain_without_letters(pattern: str, line: str) -> None:
    data = np.frombuffer((line * 5000).encode() + b"!" * 100, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_blocks, "byte_codes", byte_codes_of_at_most(9000))
        assert len(data) - last_start(data, pattern, np.zeros(1, np.int64)) <= 120


def byte_codes_of_at_most(limit: int) -> Callable[..., Any]:
    """Return `byte_codes` that refuses more bytes than a window or two."""

    def checked(text: NDArray[np.uint8], *others: Any) -> Any:
        assert len(text) <= limit
        return unicode_classes.byte_codes(text, *others)

    return checked


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_the_last_start_of_one_long_pre_token_is_its_beginning(pattern: str) -> None:
    data = np.frombuffer(b"a" * 100_000, np.uint8)
    assert last_start(data, pattern, np.zeros(1, np.int64)) == 0
    assert last_start(data, pattern, np.array([70_000, 100_000])) == 70_000
    assert last_start(data[:0], pattern, np.zeros(1, np.int64)) == 0


@pytest.mark.parametrize("pattern", FAMILIES)
@given(documents=DOCUMENTS)
def test_hugging_face_reads_the_same_expression(pattern: str, documents: list[bytes]) -> None:
    text = b"".join(documents).decode(errors="replace")
    splitter = pre_tokenizers.Split(Regex(PATTERNS[pattern].expression), "isolated")
    pieces = [piece for piece, _ in splitter.pre_tokenize_str(text)]
    assert pieces == regex.findall(PATTERNS[pattern].expression, text)


CL100K_AS_PUBLISHED = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\Z|\s*[\r\n]|\s+(?!\S)|\s"
)


@given(adversarial_texts())
def test_cl100k_is_what_tiktoken_has(text: bytes) -> None:
    published = regex.findall(CL100K_AS_PUBLISHED, text.decode(errors="replace"))
    assert published == regex.findall(PATTERNS["cl100k"].expression, text.decode(errors="replace"))
