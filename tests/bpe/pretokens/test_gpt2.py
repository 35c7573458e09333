"""Pattern gpt2 against the `regex` module: characters, broken UTF-8, contractions, and any cut."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from llmgpu.bpe.pretokens import unicode_classes
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.words.count_host import count_words
from llmgpu.text.corpus import corpus_from_bytes
from tests.bpe.patterns import start_mask
from tests.bpe.pretokens.test_pattern import ANY_TEXT, PIECES
from tests.reference import bpe as reference
from tests.reference.characters import CHARACTERS

DOCUMENTS = st.lists(ANY_TEXT, max_size=4)
TRICKY = [
    "a 's've it'll 'tis 's's''s",
    "x  \u3000 y\r\n\r\n z \u2028\u00a0q",
    "\u0663're 'RE\u00a0\u00a0b'\u017f '\u00e9",
    "\U0001f44d\U0001f44d  \U0001d400'd\U0001d400\U0001d7ce '  '",
    "漢字'll漢 ,. '...'s\n\n\t's\v\f ",
    "\u3000" * 5 + "漢'll漢",
    "漢'll\U0001d400'vex're",
    "   ",
]
# RFC 3629, section 4.
SEQUENCE = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
BOUNDARY_BYTES = bytes.fromhex("20 27 61 73 7f 80 8f 90 9f a0 bf c0 c1 c2 c3 df e0 e1 ed ef f0 f4")
CONTINUATIONS = bytes.fromhex("20 7f 80 8f 90 9f a0 bf c0")
LEADS = bytes.fromhex("e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def mask_of(documents: list[bytes]) -> NDArray[np.bool_]:
    lengths = np.array([len(document) for document in documents], np.int64)
    data = np.frombuffer(b"".join(documents), np.uint8)
    return start_mask(data, "gpt2", np.cumsum(lengths) - lengths)


def plain_starts(documents: list[bytes]) -> list[bool]:
    """Take characters as RFC 3629 has them, any other byte for one sign, and cut with `regex`."""
    marks: list[bool] = []
    for document in documents:
        text, sizes, at = "", [], 0
        while at < len(document):
            found = SEQUENCE.match(document, at)
            text += found.group().decode() if found else "\ufffd"
            sizes.append(len(found.group()) if found else 1)
            at += sizes[-1]
        text = text.translate(reference.stand_ins())
        for piece in regex.finditer(PATTERNS["gpt2"].expression, text):
            size = sum(sizes[piece.start() : piece.end()])
            marks += [True] + [False] * (size - 1)
    return marks


@pytest.mark.slow
@pytest.mark.pinned_regex
def test_every_code_point() -> None:
    # Letters go with "a", numbers with "1", other signs with "'"; white space with nothing.
    text = "".join(f"a{character}1 {character}'s\n" for character in CHARACTERS).encode()
    lengths = [len(piece) for piece in reference.pre_tokens(text, "gpt2")]
    expected = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    np.testing.assert_array_equal(np.flatnonzero(mask_of([text])), expected)


@pytest.mark.slow
def test_every_code_point_alone() -> None:
    documents = [character.encode() for character in CHARACTERS]
    lengths = np.array([len(document) for document in documents])
    starts = np.cumsum(lengths) - lengths
    np.testing.assert_array_equal(np.flatnonzero(mask_of(documents)), starts)


def test_white_space_of_every_kind() -> None:
    spaces = [*filter(str.isspace, CHARACTERS), "\x1c", "\u200b", "\u180e", "\ufeff"]
    followers = ["", "a", "1", "!", "'s", " 's", "\u0301", "\n"]
    documents = [
        "".join(parts).encode() for parts in product(["", "a", "'"], spaces, spaces, followers)
    ]
    assert mask_of(documents).tolist() == reference.pre_token_starts(documents, "gpt2")


def test_apostrophes_and_letters() -> None:
    signs = ["'", "s", "l", "r", "e", "v", "S", " ", "1", "\u0131"]
    documents = ["".join(parts).encode() for parts in product(signs, repeat=4)]
    assert mask_of(documents).tolist() == reference.pre_token_starts(documents, "gpt2")
    behind = ["", "x", "9", "\n", " ", "."]
    opened = ["'s", "'ll", "'ve'", "'re's", "''d", "'t'm"]
    documents = [f"{a}{b}{c}".encode() for a, b, c in product(behind, opened, behind)]
    assert mask_of(documents).tolist() == reference.pre_token_starts(documents, "gpt2")


def test_sequences_of_bytes_at_the_bounds_of_utf8() -> None:
    documents = [bytes(parts) for parts in product(BOUNDARY_BYTES, repeat=3)]
    documents += [b"a%ca" % byte for byte in range(256)]
    documents += [b"a" + bytes(parts) + b"a" for parts in product(LEADS, *[CONTINUATIONS] * 3)]
    assert mask_of(documents).tolist() == plain_starts(documents)


@pytest.mark.pinned_regex
@settings(deadline=None)
@given(st.lists(st.binary(max_size=40) | st.lists(st.sampled_from(BOUNDARY_BYTES)).map(bytes)))
def test_any_bytes(documents: list[bytes]) -> None:
    expected = plain_starts(documents)
    assert mask_of(documents).tolist() == expected
    assert reference.pre_token_starts(documents, "gpt2") == expected


@pytest.mark.parametrize("text", TRICKY)
def test_blocks_of_every_size(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = reference.pre_token_starts([text.encode()], "gpt2")
    for block in range(1, len(text.encode())):
        monkeypatch.setattr(unicode_classes, "_BLOCK", block)
        assert mask_of([text.encode()]).tolist() == expected


@settings(deadline=None)
@given(DOCUMENTS, st.integers(1, 50))
def test_blocks_of_any_size(documents: list[bytes], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unicode_classes, "_BLOCK", block)
        mask = mask_of(documents)
    assert mask.tolist() == reference.pre_token_starts(documents, "gpt2")


def test_long_texts() -> None:
    rng = np.random.default_rng(11)
    plain = [piece for piece in PIECES if piece.isascii()]
    texts = ["".join(rng.choice(pieces, 120_000)).encode() for pieces in (plain, PIECES, plain)]
    assert mask_of(texts).tolist() == reference.pre_token_starts(texts, "gpt2")


@settings(deadline=None)
@given(DOCUMENTS, st.integers(1, 50))
def test_words_are_counted_in_pieces_of_any_size(documents: list[bytes], slice_bytes: int) -> None:
    check_count(documents, slice_bytes)


@pytest.mark.parametrize("text", TRICKY)
def test_words_are_counted_in_pieces_of_every_size(text: str) -> None:
    for slice_bytes in range(1, 60):
        check_count([text.encode(), b"", text[1:].encode(), text.encode()], slice_bytes)


def check_count(documents: list[bytes], slice_bytes: int) -> None:
    words = count_words(corpus_from_bytes(documents), "gpt2", slice_bytes=slice_bytes)
    data, bounds = words.data.tobytes(), words.offsets.tolist()
    spelled = [data[a:b] for a, b in pairwise(bounds)]
    counts = dict(zip(spelled, words.counts.tolist(), strict=True))
    assert counts == Counter(w for text in documents for w in reference.pre_tokens(text, "gpt2"))
